"""How tests are asked for, three times: in a hurry, as an ordinary request, as a specification.

Each names the functions and the file. Knows what is to be tested, and neither the removed tests nor the mistakes.
"""

from __future__ import annotations

import random
from typing import Final

from etude.forge.languages.python.repository import PythonRepository
from etude.forge.steps.candidate import RemovedCode, Testing
from etude.forge.steps.instructions import LONGEST_DOC, Instructions, sloppy
from etude.tasks.format.config import PromptStyle

TERSE: Final = (
    "need tests for {names}, put them in {file}",
    "{names} needs better tests, add some in {file}",
    "write tests for {names} -> {file}. should catch it if somebody breaks something",
    "can you cover {names} with tests? new file {file}",
)


def tell_testing(world: PythonRepository, asked: Testing, rng: random.Random) -> Instructions:
    prompt_styles: dict[PromptStyle, str] = {
        "terse": _terse(asked, rng),
        "plain": _plain(asked),
        "detailed": _detailed(asked),
    }
    return Instructions("testing", prompt_styles)


def _terse(asked: Testing, rng: random.Random) -> str:
    names = " and ".join(piece.name for piece in asked.pieces)
    said = sloppy(rng.choice(TERSE), rng).format(names=names, file=asked.file)
    return f"{said} ({asked.pieces[0].path})\n"


def _plain(asked: Testing) -> str:
    names = _listed([f"`{piece.name}`" for piece in asked.pieces])
    them = "them" if len(asked.pieces) > 1 else "it"
    return (
        f"The tests for {names} in `{asked.pieces[0].path}` have gaps. Could you write some for {them}, in a new file "
        f"`{asked.file}` and in the style of the tests that are there?\n\nThey should pass with the code as it is, and "
        f"fail when somebody makes a mistake in {them} one day: a wrong comparison, a lost line, an off-by-one. Please "
        "leave the code itself alone.\n"
    )


def _detailed(asked: Testing) -> str:
    path = asked.pieces[0].path
    parts = [
        f"# Tests for {_listed([f'`{piece.name}`' for piece in asked.pieces])}",
        f"Write them into `{asked.file}`, which does not exist yet; changes to other files are thrown away.",
        f"## What is to be tested, in `{path}`",
        *(_spec(piece) for piece in asked.pieces),
        "## What good tests are here",
        "- They are collected by pytest and all pass with the code as it is, in any order and in every run.\n"
        "- They test what the code does, not how it is written: they still pass when it is reformatted or a local "
        "variable has another name.\n"
        f"- They fail when there is a mistake in the code. {len(asked.mutants)} versions with one small mistake each "
        "will be tried (a turned condition, a lost statement, a constant off by one, swapped arguments), and at least "
        "two thirds of them have to be noticed.",
    ]
    return "\n\n".join(parts) + "\n"


def _spec(piece: RemovedCode) -> str:
    text = f"`{piece.name}`:\n\n```python\n{piece.signature}\n```"
    doc = piece.doc.strip().splitlines()[:LONGEST_DOC]
    return text + ("\n\n" + "\n".join(f"> {line}".rstrip() for line in doc) if doc else "")


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
