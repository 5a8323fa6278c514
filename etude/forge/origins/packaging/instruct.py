"""What the agent is told about broken packaging, three times: in a hurry, as an ordinary issue, as a specification.

Each says all that the hidden tests ask for. Knows demands; neither the tests nor the answer's text.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from etude.forge.languages.python.repository import PythonRepository
from etude.forge.origins.packaging.propose import Packaging
from etude.forge.origins.packaging.requirements import Demand, Facts
from etude.forge.steps.instructions import Instructions, sloppy
from etude.tasks.format.config import PromptStyle
from etude.tasks.kinds.packaging.kind import CATEGORY

TERSE: Final = (
    "packaging of {name} is broken, please fix: {wanted}",
    "something went wrong with the packaging. should be like this again: {wanted}",
    "release is blocked, wheel is not what it was: {wanted}",
    "fix the packaging config so that {wanted}",
)


def tell_packaging(
    world: PythonRepository, candidate: Packaging, asked: Sequence[Demand], now: Facts, rng: random.Random
) -> Instructions:
    prompt_styles: dict[PromptStyle, str] = {
        "terse": _terse(world, asked, rng),
        "plain": _plain(world, candidate, asked, now),
        "detailed": _detailed(world, candidate, asked, now),
    }
    return Instructions(CATEGORY, prompt_styles)


def _terse(world: PythonRepository, asked: Sequence[Demand], rng: random.Random) -> str:
    wanted = "; ".join(each.wanted.replace("`", "") for each in asked)
    return sloppy(rng.choice(TERSE), rng).format(name=world.name, wanted=wanted) + "\n"


def _plain(world: PythonRepository, candidate: Packaging, asked: Sequence[Demand], now: Facts) -> str:
    said = _symptoms(world, asked, now)
    wanted = "\n".join(f"- {each.wanted}" for each in asked)
    return (
        f"{' '.join(said)} This worked before somebody edited {_files(candidate)}.\n\n"
        f"A wheel that is built from the repository should be as it was:\n\n{wanted}\n\n"
        "Everything else about it should stay as it is, and so should the build backend.\n"
    )


def _detailed(world: PythonRepository, candidate: Packaging, asked: Sequence[Demand], now: Facts) -> str:
    parts = [
        f"# The packaging of {world.name} is broken",
        "\n".join(f"- {each}" for each in _symptoms(world, asked, now)),
        "## What a built wheel has to be like",
        "\n".join(f"- {each.wanted}" for each in asked),
        "## Where",
        f"The cause is in {_files(candidate)}. Mend it there. The build backend stays the one that it is, and what the "
        "files say about anything else than packaging (the settings of pytest, for example) must not change: a file "
        "in which it does is not taken.",
        "## How it is judged",
        "The project is built with its own backend, without network, and the wheel is looked at: its metadata, its "
        "entry points, its files; commands and modules are started from the wheel alone. `python -m build --wheel "
        "--no-isolation` works here, too.",
    ]
    return "\n\n".join(parts) + "\n"


def _symptoms(world: PythonRepository, asked: Sequence[Demand], now: Facts) -> list[str]:
    if not now["built"]:
        why = " ".join(str(now["why"]).replace("`", "'").split()).removeprefix("the project cannot be built: ")
        return [f"{world.name} cannot be built any more (`{why[:200]}`)."]
    return list(dict.fromkeys(each.symptom.replace("PROJECT", world.name) for each in asked if each.symptom))


def _files(candidate: Packaging) -> str:
    return " and ".join(f"`{path}`" for path in sorted(candidate.changes))
