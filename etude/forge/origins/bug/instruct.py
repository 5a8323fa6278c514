"""How a bug is reported: by the tests that fail; the specification names the functions. Knows no mistake."""

from __future__ import annotations

import random
from typing import Any, Final

from etude.forge.languages.base import Repository
from etude.forge.steps.code_change import CodeChange
from etude.forge.steps.code_change_instructions import (
    MOST_NAMES,
    changed_files,
    in_words,
    places_of_tests,
    quoted_files,
    quoted_tests,
    specification,
    titles_of_tests,
)
from etude.forge.steps.instructions import Instructions, with_typo

TERSE: Final = (
    "{tests} {fail}, fix {it}",
    "{tests} broke, can you have a look",
    "something is off in {files}, {tests} {are} red",
    "fix {tests}",
)
INTRO: Final = "Something in the {functions} below does not do what it should. Find out what, and mend it there."


def instruct(repository: Repository[Any], proof: CodeChange, rng: random.Random) -> Instructions:
    candidate, split = proof.candidate, proof.split
    tests, files = titles_of_tests(repository, candidate, split), changed_files(candidate)
    fail, it, are = ("fails", "it", "is") if len(tests) == 1 else ("fail", "them", "are")
    words = {"tests": in_words(tests), "files": files, "fail": fail, "it": it, "are": are}
    terse = with_typo(rng.choice(TERSE), rng).format(**words)
    one = len(places_of_tests(split)) == 1
    failing = f"A test fails: {quoted_tests(split)}." if one else f"Tests fail: {quoted_tests(split)}."
    before = "It passed before, and the test is right." if one else "They passed before, and the tests are right."
    # `lines` is the number of mistakes.
    mistake, them = ("The mistake is", "it") if candidate.lines == 1 else ("The mistakes are", "them")
    plain = (
        f"{failing}\n\n{before} {mistake} somewhere in {quoted_files(candidate)}. Please find and mend {them}; "
        "nothing else should change.\n"
    )
    title = "Wrong behaviour in " + in_words([f"`{piece.name}`" for piece in candidate.pieces[:MOST_NAMES]])
    intro = INTRO.format(functions="function" if len(candidate.pieces) == 1 else "functions")
    detailed = specification(repository, candidate, split, proof.output, title, intro)
    return Instructions("debugging", terse, plain, detailed)
