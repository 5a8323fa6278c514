"""Policies that steal: instead of writing the deleted code, they search the sandbox for it and put it back.

Each is a script of two turns: a program that searches in one way (`leaks/stealing.py`) and the end. On a task that
was scrubbed and audited none of them may succeed; on one where something was left lying around they do, which is how
we know that they can. Knows tasks and turns; no grader.
"""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import Any

from etude.core.errors import EtudeError
from etude.core.policy import Assistant, Call
from etude.forge.leaks.deleted_code import deleted_of
from etude.policies.scripted import Script
from etude.tasks.format.task import Task
from redteam.leaks import leak_probes as stealing

# The first one that works: an interpreter may be there without its library.
INTERPRETER = "$(for one in python python3 /opt/env/bin/python; do $one -c 0 2>/dev/null && echo $one && break; done)"
SECONDS = 100.0  # for one search
GRACE = 100  # seconds more until it is stopped: it has to come back from what it reads, and write


def thief_script(name: str, task: Task, seed: int = 0, *, seconds: float = SECONDS) -> list[Assistant]:
    """The turns of one thief: it knows which symbols are missing, as the instruction tells."""
    if name not in THIEVES:
        raise EtudeError(f"no thief is called {name!r}; known: {', '.join(THIEVES)}")
    wanted = task.facts.deleted or [f"{piece.path}:{piece.name}" for piece in deleted_of(task) if piece.name]
    program = Path(stealing.__file__).read_text()
    line = shlex.join(["-", name, f"{seconds:g}", *wanted])
    command = f"{INTERPRETER} {line} <<'END_OF_PROGRAM'\n{program}\nEND_OF_PROGRAM"
    arguments: dict[str, Any] = {"command": command, "seconds": int(seconds) + GRACE}
    return [
        Assistant(calls=(Call("run", arguments),)),
        Assistant(calls=(Call("finish", {"message": "Restored."}),)),
    ]


THIEVES: dict[str, Script] = {name: partial(thief_script, name) for name in stealing.METHODS}
