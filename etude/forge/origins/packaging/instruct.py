"""How broken packaging is reported: each style says all that the hidden tests ask for.

Knows expectations; neither the tests nor the answer's text.
"""

from __future__ import annotations

import random
from typing import Final

from etude.forge.origins.packaging.distribution import BuildContext
from etude.forge.origins.packaging.prove import PackagingProof
from etude.forge.steps.instructions import Instructions, with_typo
from etude.tasks.kinds.packaging.kind import CATEGORY

TERSE: Final = (
    "packaging of {name} is broken, please fix: {wanted}",
    "something went wrong with the packaging. should be like this again: {wanted}",
    "release is blocked, wheel is not what it was: {wanted}",
    "fix the packaging config so that {wanted}",
)


def instruct(context: BuildContext, proof: PackagingProof, rng: random.Random) -> Instructions:
    name, candidate = context.repository.name, proof.candidate
    symptoms, goals = _symptoms(name, proof), [each.goal for each in proof.expected]
    terse = with_typo(rng.choice(TERSE), rng).format(name=name, wanted="; ".join(goals).replace("`", "")) + "\n"
    files = " and ".join(f"`{path}`" for path in sorted(candidate.changes))
    listed = "\n".join(f"- {goal}" for goal in goals)
    plain = (
        f"{' '.join(symptoms)} This worked before somebody edited {files}.\n\n"
        f"A wheel that is built from the repository should be as it was:\n\n{listed}\n\n"
        "Everything else about it should stay as it is, and so should the build backend.\n"
    )
    parts = [
        f"# The packaging of {name} is broken",
        "\n".join(f"- {each}" for each in symptoms),
        "## What a built wheel has to be like",
        listed,
        "## Where",
        f"The cause is in {files}. Mend it there. The build backend stays the one that it is, and what the "
        "files say about anything else than packaging (the settings of pytest, for example) must not change: a file "
        "in which it does is not taken.",
        "## How it is judged",
        "The project is built with its own backend, without network, and the wheel is looked at: its metadata, its "
        "entry points, its files; commands and modules are started from the wheel alone. `python -m build --wheel "
        "--no-isolation` works here, too.",
    ]
    return Instructions(CATEGORY, terse, plain, "\n\n".join(parts) + "\n")


def _symptoms(name: str, proof: PackagingProof) -> list[str]:
    if not proof.now["built"]:
        why = " ".join(str(proof.now["why"]).replace("`", "'").split()).removeprefix("the project cannot be built: ")
        return [f"{name} cannot be built any more (`{why[:200]}`)."]
    return list(dict.fromkeys(each.symptom.replace("PROJECT", name) for each in proof.expected if each.symptom))
