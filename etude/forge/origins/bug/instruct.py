"""How a bug is reported: by the tests that fail; the specification names the functions. Knows no mistake."""

from __future__ import annotations

import random
from typing import Any, Final

from etude.forge.languages.base import Repository
from etude.forge.steps.code_change import CodeChange
from etude.forge.steps.code_change_instructions import (
    MOST_NAMES,
    changed_files,
    quoted_files,
    quoted_tests,
    specification,
    titles_of_tests,
)
from etude.forge.steps.instructions import Instructions, with_typo

TERSE: Final = (
    "{tests} fails, fix it",
    "{tests} broke, can you have a look",
    "something is off in {files}, {tests} is red",
    "fix {tests}",
)
INTRO: Final = "Something in the functions below does not do what it should. Find out what, and mend it there."


def instruct(repository: Repository[Any], proof: CodeChange, rng: random.Random) -> Instructions:
    candidate, split = proof.candidate, proof.split
    tests, files = titles_of_tests(repository, split), changed_files(candidate)
    terse = with_typo(rng.choice(TERSE), rng).format(tests=tests, files=files)
    plain = (
        f"Tests fail: {quoted_tests(split)}.\n\nThey passed before, and the tests are right. "
        f"The mistake is somewhere in {quoted_files(candidate)}. Please find and mend it; nothing else should change.\n"
    )
    title = "Wrong behaviour in " + ", ".join(f"`{piece.name}`" for piece in candidate.pieces[:MOST_NAMES])
    detailed = specification(repository, candidate, split, proof.output, title, INTRO)
    return Instructions("debugging", terse, plain, detailed)
