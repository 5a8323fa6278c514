"""How tests are asked for.

Each names the functions and the file. Knows what is to be tested, and neither the removed tests nor the mistakes.
"""

from __future__ import annotations

import random
from typing import Final

from etude.forge.origins.test_writing.propose import UntestedFunctions
from etude.forge.steps.instructions import Instructions, code_block, listed, quoted_doc, with_typo

TERSE: Final = (
    "need tests for {names}, put them in {file}",
    "the tests we have for {names} are thin, could you add some in {file}?",
    "write tests for {names} -> {file}. should catch it if somebody breaks something",
    "can you cover {names} with tests? new file {file}",
)
OPENINGS: Final = (
    "The tests for {names} in `{path}` have gaps. Could you write some for {them}, in a new file `{file}` and in the "
    "style of the tests that are there?",
    "I am about to change {names} in `{path}`, and I do not trust our tests for {them}. Please add some in a "
    "new file `{file}` before I do, in the style of the others.",
    "A bug in `{path}` went unnoticed last week because {names} {are} hardly tested. Could you add tests for {them} in "
    "a new file, `{file}`? Have a look at the other test files for our style.",
)


def instruct(candidate: UntestedFunctions, rng: random.Random) -> Instructions:
    names = " and ".join(piece.name for piece in candidate.pieces)
    text = with_typo(rng.choice(TERSE), rng).format(names=names, file=candidate.file)
    terse = f"{text} ({candidate.pieces[0].path})\n"
    return Instructions("testing", terse, _plain(candidate, rng), _detailed(candidate))


def _plain(candidate: UntestedFunctions, rng: random.Random) -> str:
    names = listed([piece.name for piece in candidate.pieces])
    them, are = ("them", "are") if len(candidate.pieces) > 1 else ("it", "is")
    path, file = candidate.pieces[0].path, candidate.file
    opening = rng.choice(OPENINGS).format(names=names, path=path, file=file, them=them, are=are)
    return (
        f"{opening}\n\nThey should pass with the code as it is, and fail when somebody makes a mistake in {them} one "
        "day: a wrong comparison, a lost line, an off-by-one. Please leave the code itself alone.\n"
    )


def _detailed(candidate: UntestedFunctions) -> str:
    path = candidate.pieces[0].path
    parts = [
        f"# Tests for {listed([piece.name for piece in candidate.pieces])}",
        f"Write them into `{candidate.file}`, which does not exist yet; changes to other files are thrown away.",
        f"## What is to be tested, in `{path}`",
        *(f"`{each.name}`:\n\n{code_block(each.signature)}{quoted_doc(each.doc)}" for each in candidate.pieces),
        "## What good tests are here",
        "- They are collected by pytest and all pass with the code as it is, in any order and in every run.\n"
        "- They test what the code does, not how it is written: they still pass when it is reformatted or a local "
        "variable has another name.\n"
        f"- They fail when there is a mistake in the code. {len(candidate.mutants)} versions with one small mistake "
        "each will be tried (a turned condition, a lost statement, a constant off by one, swapped arguments), and at "
        "least two thirds of them have to be noticed.",
    ]
    return "\n\n".join(parts) + "\n"
