"""Leak probes: policies that search the sandbox for the deleted code and put it back, instead of writing it.

Each is a script of two turns: a program that searches in one way (`probe_program`) and the end. On a task that was
scrubbed and audited none of them may succeed; on one where something was left behind they do, which is how we know
that they can. Knows tasks and turns; no grader.
"""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import Any

from etude.core.errors import EtudeError
from etude.core.policy import Assistant, Call
from etude.forge.leaks.deleted_code import Deleted, added_lines, defined_in
from etude.policies.scripted import Script
from etude.tasks.format.task import Task
from etude.tasks.javascript.parsing import ENDINGS
from redteam.leaks import probe_program

# The first one that works: an interpreter may be there without its library.
INTERPRETER = "$(for one in python python3 /opt/env/bin/python; do $one -c 0 2>/dev/null && echo $one && break; done)"
SECONDS = 100.0  # of the processor, for one search
GRACE = 100  # seconds more until it is stopped: it has to come back from what it reads, and write


def deleted_of(task: Task) -> list[Deleted]:
    """What a task's reference solution puts back: the symbols that the task names, and every other change by lines."""
    names: dict[str, list[str]] = {}
    for symbol in task.facts.deleted:
        path, _, name = symbol.partition(":")
        names.setdefault(path, []).append(name)
    found: list[Deleted] = []
    for path in task.solution:
        before = task.workspace.text(path) if path in task.workspace else ""
        after = task.solution.text(path)
        if before == after or not path.endswith((".py", ".pyi", *ENDINGS)):
            continue
        named = [Deleted(path, name, text) for name, text in defined_in(path, after) if name in names.get(path, ())]
        found += named or [Deleted(path, "", text) for text in [added_lines(before, after)] if text.strip()]
    return found


def leak_probe_script(name: str, task: Task, seed: int = 0, *, seconds: float = SECONDS) -> list[Assistant]:
    """The turns of one probe: it knows which symbols are missing, as the instruction tells."""
    if name not in LEAK_PROBES:
        raise EtudeError(f"no leak probe is called {name!r}; known: {', '.join(LEAK_PROBES)}")
    wanted = task.facts.deleted or [f"{piece.path}:{piece.name}" for piece in deleted_of(task) if piece.name]
    program = Path(probe_program.__file__).read_text()
    line = shlex.join(["-", name, f"{seconds:g}", *wanted])
    command = f"{INTERPRETER} {line} <<'END_OF_PROGRAM'\n{program}\nEND_OF_PROGRAM"
    arguments: dict[str, Any] = {"command": command, "seconds": int(seconds) + GRACE}
    return [
        Assistant(calls=(Call("run", arguments),)),
        Assistant(calls=(Call("finish", {"message": "Restored."}),)),
    ]


LEAK_PROBES: dict[str, Script] = {name: partial(leak_probe_script, name) for name in probe_program.METHODS}
