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
    "the wheel of {name} comes out wrong since somebody edited {files}, can you fix it so that {wanted}?",
    "can't release {name}, the packaging is broken. please repair it, in a good wheel {wanted}",
    "please repair {files}, after that it has to be like before again: {wanted}",
    "{name} builds a wrong wheel, can you check {files}? what I expect: {wanted}",
)
OPENINGS: Final = (
    "I wanted to release {name} today and noticed that the packaging is broken. {symptoms}",
    "{symptoms} It worked before somebody edited {files}.",
    "A user reported a problem with the last build of {name}. {symptoms}",
    "Something went wrong in our packaging when {files} was tidied up. {symptoms}",
)
WANTED: Final = (
    "A wheel that is built from the repository should be like this again:",
    "To be clear about what the wheel should be like:",
    "Could you repair it? What I expect of a built wheel:",
)


def instruct(context: BuildContext, proof: PackagingProof, rng: random.Random) -> Instructions:
    name, candidate = context.repository.name, proof.candidate
    symptoms, goals = _symptoms(name, proof), [each.goal for each in proof.expected]
    changed = " and ".join(sorted(candidate.changes))
    words = {"name": name, "wanted": "; ".join(goals), "files": changed}
    terse = with_typo(rng.choice(TERSE), rng).format(**words) + "\n"
    files = " and ".join(f"`{path}`" for path in sorted(candidate.changes))
    listed = "\n".join(f"- {goal}" for goal in goals)
    opening = rng.choice(OPENINGS).format(name=name, symptoms=" ".join(symptoms), files=files)
    plain = (
        f"{opening}\n\n{rng.choice(WANTED)}\n\n{listed}\n\n"
        "Everything else about it should stay as it is, and so should the build backend.\n"
    )
    parts = [
        f"# The packaging of {name} is broken",
        opening,
        f"This is what a built wheel has to be like:\n\n{listed}",
        f"The cause is in {files}; please fix it there. The build backend stays the one that it is, and what the "
        "files say about anything else than packaging (the settings of pytest, for example) must not change: a file "
        "in which it does is not taken.",
        "To check the result, the project is built with its own backend, without network, and the wheel is looked at: "
        "its metadata, its entry points, its files; commands and modules are started from the wheel alone. `python -m "
        "build --wheel --no-isolation` works here, too.",
    ]
    return Instructions(CATEGORY, terse, plain, "\n\n".join(parts) + "\n")


def _symptoms(name: str, proof: PackagingProof) -> list[str]:
    if not proof.now["built"]:
        why = " ".join(str(proof.now["why"]).replace("`", "'").split()).removeprefix("the project cannot be built: ")
        return [f"{name} cannot be built any more (`{why[:200]}`)."]
    return list(dict.fromkeys(each.symptom.replace("PROJECT", name) for each in proof.expected if each.symptom))
