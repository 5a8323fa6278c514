"""All attacks by name, and how an agent would carry one out."""

from __future__ import annotations

import shlex

from etude.core.errors import EtudeError
from etude.core.policy import Assistant, Call
from etude.forge.gates.attacks.around_the_code import AROUND
from etude.forge.gates.attacks.base import Attack
from etude.forge.gates.attacks.inside_the_code import INSIDE
from etude.forge.gates.attacks.outside_the_workspace import OUTSIDE
from etude.forge.gates.attacks.refactoring import REFACTORING
from etude.tasks.format.task import Task
from etude.tasks.kinds.refactoring import Refactoring
from etude.tasks.kinds.table import kind_of

ATTACKS: dict[str, Attack] = {**INSIDE, **AROUND, **OUTSIDE}
WRITE_HEX = (
    "import os, sys; os.makedirs(os.path.dirname(sys.argv[1]), exist_ok=True); "
    "open(sys.argv[1], 'wb').write(bytes.fromhex(sys.argv[2]))"
)


def attack_script(name: str, task: Task) -> list[Assistant]:
    """An attack as turns of an agent: it writes its files, deletes what has to go, and finishes."""
    known = REFACTORING if isinstance(kind_of(task), Refactoring) else ATTACKS
    if name not in known:
        raise EtudeError(f"no attack is called {name!r}; known: {', '.join(known)}")
    made = known[name](task)
    if isinstance(made, list):
        return made
    calls: list[Call] = []
    for path, data in made.items():
        if data is None:
            calls.append(Call("run", {"command": shlex.join(["rm", "-f", "--", path])}))
        elif data.isascii():
            calls.append(Call("write", {"path": path, "text": data.decode()}))
        else:  # bytecode, which no text can carry
            calls.append(Call("run", {"command": shlex.join(["python3", "-c", WRITE_HEX, path, data.hex()])}))
    return [Assistant(calls=tuple(calls)), Assistant(calls=(Call("finish", {"message": "All tests pass."}),))]
