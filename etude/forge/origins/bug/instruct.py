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
    telling_tests,
    titles_of_tests,
)
from etude.forge.steps.instructions import Instructions, last_line, with_typo

TERSE: Final = (
    "{tests} {fail} since the last change to {files}, can you have a look?",
    "CI is red: {tests}. probably {files}",
    "{tests} broke, please find out why and fix {it}",
    "something is off in {files}, {tests} {fail} now",
    "can you fix {tests}? nothing wrong with the {test}, it must be the code",
)
OPENINGS: Final = (
    "{tests} {fail} since the last changes to {files}.",
    "CI has been red since yesterday: {tests} {fail}.",
    "I pulled the latest version, and {tests} {fail} here.",
    "We noticed wrong results lately, and {tests} {fail} as well.",
)
RIGHT: Final = (
    "{they} passed before and {are} right, so please do not change {them}.",
    "Nobody touched the {test}, and what {it_asks} for is right.",
    "The {test} {are} fine, {they_passed} for months.",
)
ONE: Final = (
    "It should be a single mistake, somewhere in {files}. Could you find and fix it? Nothing else should change.",
    "The cause is one small mistake in {files}. Please fix it there and leave the rest as it is.",
)
SEVERAL: Final = (
    "There is more than one mistake behind it, all of them in {files}. Could you find and fix them? Nothing else "
    "should change.",
    "As far as I can see several things went wrong at once in {files}. Please fix them there and leave the rest as it "
    "is.",
)
INTROS: Final = (
    "{functions} below {do} not do what {it} should, and the tests show it. Please find out why and fix it there.",
    "Something is wrong in the {functions_below}: tests that used to pass fail now. The tests are right.",
)


def instruct(repository: Repository[Any], proof: CodeChange, rng: random.Random) -> Instructions:
    candidate, split = proof.candidate, proof.split
    tests, files = titles_of_tests(repository, candidate, split), changed_files(candidate)
    fail, it, test = ("fails", "it", "test") if len(tests) == 1 else ("fail", "them", "tests")
    words = {"tests": in_words(tests), "files": files, "fail": fail, "it": it, "test": test}
    terse = with_typo(rng.choice(TERSE), rng).format(**words)
    title = "Wrong behaviour in " + in_words([f"`{piece.name}`" for piece in candidate.pieces[:MOST_NAMES]])
    one = len(candidate.pieces) == 1
    intro = rng.choice(INTROS).format(
        functions="The function" if one else "The functions",
        functions_below="function below" if one else "functions below",
        do="does" if one else "do",
        it="it" if one else "they",
    )
    plain = _plain(repository, proof, rng)
    detailed = specification(repository, candidate, split, proof.output, title, intro)
    return Instructions("debugging", terse, plain, detailed)


def _plain(repository: Repository[Any], proof: CodeChange, rng: random.Random) -> str:
    candidate, split = proof.candidate, proof.split
    one = len(places_of_tests(split)) == 1
    singular = ("fails", "It", "is", "it", "test", "it asks", "it passed")
    plural = ("fail", "They", "are", "them", "tests", "they ask", "they passed")
    keys = ("fail", "they", "are", "them", "test", "it_asks", "they_passed")
    words = dict(zip(keys, singular if one else plural, strict=True))
    words |= {"tests": quoted_tests(split), "files": quoted_files(candidate)}
    opening = rng.choice(OPENINGS).format(**words)
    # What the test says that runs the wrong code and little else.
    said = next((last for test in telling_tests(repository, candidate, split) if (last := _said(proof, test))), "")
    quoted = f" {said}" if said else ""
    # `lines` is the number of mistakes.
    cause = rng.choice(ONE if candidate.lines == 1 else SEVERAL).format(**words)
    return f"{opening}{quoted}\n\n{rng.choice(RIGHT).format(**words)} {cause}\n"


def _said(proof: CodeChange, test: str) -> str:
    """What a failing test ended with, as one reports it. An assertion without a word says nothing."""
    last = last_line(proof.output.get(test, ""))
    name = test.partition("::")[2].partition("[")[0].rpartition("::")[2]
    return f"`{name}` ends with `{last}`." if ": " in last and name else ""
