"""How docstrings are asked for.

Each names the functions and says that examples are wanted. Knows what is to be documented, and neither the removed
docstrings nor the mistakes.
"""

from __future__ import annotations

import random
from typing import Final

from etude.forge.origins.docstrings.propose import LEAST_EXAMPLES, UndocumentedFunctions
from etude.forge.steps.instructions import Instructions, code_block, listed, with_typo

TERSE: Final = (
    "can you document {names}? docstrings with doctest examples please ({least} each, name all params)",
    "document {names}: docstring, every parameter, at least {least} examples that run",
    "docstrings missing for {names}. add them, {least}+ doctests each, mention every parameter",
)
OPENINGS: Final = (
    "{names} in `{path}` {have_none}. Could you write {them}?",
    "People keep asking how {names} in `{path}` {are} meant to be used, as {have_none_they}. Please write {them}.",
    "For the next release everything public should be documented. {names} in `{path}` still {need}.",
)


def instruct(candidate: UndocumentedFunctions, rng: random.Random) -> Instructions:
    names = " and ".join(piece.name for piece in candidate.pieces)
    text = with_typo(rng.choice(TERSE), rng).format(names=names, least=LEAST_EXAMPLES)
    terse = f"{text} ({candidate.pieces[0].path})\n"
    return Instructions("documentation", terse, _plain(candidate, rng), _detailed(candidate))


def _plain(candidate: UndocumentedFunctions, rng: random.Random) -> str:
    names, many = listed([piece.name for piece in candidate.pieces]), len(candidate.pieces) > 1
    singular = ("has no docstring", "one", "is", "it has no docstring", "needs a docstring")
    plural = ("have no docstrings", "them", "are", "they have no docstrings", "need docstrings")
    words = dict(zip(("have_none", "them", "are", "have_none_they", "need"), plural if many else singular, strict=True))
    opening = rng.choice(OPENINGS).format(names=names, path=candidate.pieces[0].path, **words)
    return (
        f"{opening} Say what {'each' if many else 'it'} does and what every parameter is for, "
        f"and show at least {LEAST_EXAMPLES} examples{' of each' if many else ''} as an interpreter session (`>>>`), "
        "so that doctest can run them.\n\nThe examples should say enough about the behaviour that a mistake in the "
        "code would make one of them wrong. Please leave the code itself as it is.\n"
    )


def _detailed(candidate: UndocumentedFunctions) -> str:
    specs = [f"`{piece.name}`:\n\n{code_block(piece.signature)}" for piece in candidate.pieces]
    parts = [
        f"# Docstrings for {listed([piece.name for piece in candidate.pieces])}",
        f"Write them in `{candidate.pieces[0].path}`; changes to other files are thrown away, and nothing but "
        "docstrings may change in this one.",
        *specs,
        "## What a good docstring is here",
        f"- It names every parameter.\n- It shows at least {LEAST_EXAMPLES} examples that call the function and expect "
        "something, in the form of doctest (`>>>`, and the result below). What the module defines or imports is there "
        "without an import.\n- The examples are right in every run, whatever the order of sets, and still right when "
        "the code is written in other words: they show what it does, and do not look at how it is written.\n"
        f"- They notice mistakes. {len(candidate.mutants)} versions of the code with one small mistake each will be "
        "tried (a turned condition, a lost statement, a constant off by one, swapped arguments), and at least two "
        "thirds of them have to make an example fail.",
    ]
    return "\n\n".join(parts) + "\n"
