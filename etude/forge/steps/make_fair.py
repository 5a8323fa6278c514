"""Whether what hidden tests ask for can be known: it is said in the instruction, or those tests do not judge.

First by reading: what only hidden tests and the deleted code share is added to all three instructions. Then by running:
other right solutions, which keep only what the instruction and the visible code state, must pass the hidden tests. One
that a second solution fails asks for something else still, and belongs to no list of the task. Python alone.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from etude.forge.languages.python.hidden_demands import (
    DeletedPiece,
    Demand,
    Visible,
    hidden_demands,
    visible_text,
)
from etude.forge.languages.python.repository import PythonRepository
from etude.forge.languages.python.second_solutions import COUNT, second_solution
from etude.forge.steps.code_change import CodeChange
from etude.forge.steps.context import MakeContext, Refused
from etude.forge.steps.hide_tests import LEAST_HIDDEN
from etude.forge.steps.instructions import Instructions

MOST_SAID: Final = 12  # things that an instruction adds; a request with more is a specification of the tests
SEEDS: Final = 4  # rewrites that are made until two of them are known to be right
# How a request goes on with what nobody could guess.
ASIDES: Final = ("note:", "btw", "important:", "careful,")
ONE_DETAIL: Final = ("Mind that", "Callers expect that", "One thing that is easy to miss:", "Note that")
DETAILS: Final = (
    "Some details that other code relies on:",
    "A few things have to be exactly as they were, since callers depend on them:",
    "Please keep to these details, they are used elsewhere:",
)
UNFAIR: Final = "hidden tests ask for what nothing says"


@dataclass(frozen=True)
class Fair:
    """A proof whose hidden tests ask for nothing that is not said, and the instructions that say it."""

    proof: CodeChange
    instructions: Instructions
    said: tuple[str, ...]  # what was added
    unfair: tuple[str, ...]  # tests that do not judge
    solutions: int  # second solutions that were tried and right
    visible: Visible | None = None  # all that the agent sees, what was added with it; None where nothing was compared


async def make_fair(context: MakeContext, proof: CodeChange, instructions: Instructions) -> Fair:
    """The same task, made fair, or `Refused` where too few hidden tests are left."""
    repository = context.repository
    if not isinstance(repository, PythonRepository):
        return Fair(proof, instructions, (), (), 0)
    candidate, split = proof.candidate, proof.split
    pieces = [
        DeletedPiece(each.id, each.name, each.source, each.signature, each.doc, each.gone) for each in candidate.pieces
    ]
    changes = {**candidate.changes, **split.files}
    # The terse one says least: what it does not say has to be added for all.
    visible = visible_text(repository, changes, pieces, split.shown, instructions.terse)
    demands = hidden_demands(repository, pieces, split.held_out, split.shown, visible)
    said = [each for each in demands if each.can_be_said][:MOST_SAID]
    unsaid = {test for each in demands if each not in said for test in each.tests}
    text = say(instructions, said)
    stated = replace(visible, texts=[*visible.texts, *(each.said for each in said)])
    stated = replace(stated, words=visible.words.union(*(each.said.replace("`", " ").split() for each in said)))
    failing, solutions = await _failing(context, proof, stated)
    tried = len(solutions)
    assert proof.gates is not None
    gates = replace(proof.gates, others=solutions)
    unfair = unsaid | failing
    held_out = tuple(test for test in split.held_out if test not in unfair)
    asked = len(held_out) + len(split.shown)
    if unfair and (not held_out or asked < candidate.least_tests or len(held_out) < LEAST_HIDDEN * asked):
        raise Refused(UNFAIR, ", ".join(sorted(unfair)[:3]))
    if not unfair:
        return Fair(replace(proof, gates=gates), text, tuple(each.said for each in said), (), tried, stated)
    left = replace(proof, split=replace(split, held_out=held_out), unfair=tuple(sorted(unfair.union(proof.unfair))))
    # They fail before the work is done and are in no list: for the gates they are not there.
    left = replace(left, gates=replace(gates, green=[test for test in gates.green if test not in unfair]))
    return Fair(left, text, tuple(each.said for each in said), tuple(sorted(unfair)), tried, stated)


def say(instructions: Instructions, demands: Sequence[Demand]) -> Instructions:
    """The instructions with what callers rely on and nothing else says."""
    if not demands:
        return instructions
    rng = random.Random(instructions.plain)
    said = [each.said for each in demands]
    lines = "\n".join(f"- {each}" for each in said)
    sentence = f"{said[0]}{f', and {said[1]}' if len(said) == 2 else ''}."
    listed = f"{rng.choice(DETAILS)}\n\n{lines}" if len(said) > 2 else f"{rng.choice(ONE_DETAIL)} {sentence}"
    return replace(
        instructions,
        terse=f"{instructions.terse.rstrip()} ({rng.choice(ASIDES)} {', '.join(said)})",
        plain=f"{instructions.plain.rstrip()}\n\n{listed}\n",
        detailed=f"{instructions.detailed.rstrip()}\n\n{listed}\n",
    )


async def _failing(
    context: MakeContext, proof: CodeChange, visible: Visible
) -> tuple[set[str], tuple[Mapping[str, bytes | None], ...]]:
    """Hidden tests that a second solution fails, and those solutions that were right by all that is shown."""
    repository, candidate, split = context.repository, proof.candidate, proof.split
    reference = {
        path: repository.files[path] for path in candidate.changes if path.endswith(".py") and path in repository.files
    }
    deleted: dict[str, set[str]] = {}
    for piece in candidate.pieces:
        deleted.setdefault(piece.path, set()).add(piece.name)
    failing: set[str] = set()
    right: list[Mapping[str, bytes | None]] = []
    # A rewrite more costs as much as these tests take, so there are no more than are needed.
    for seeds in (range(COUNT), range(COUNT, SEEDS)):
        variants = [dict(second_solution(reference, deleted, visible, seed)) for seed in seeds]
        if len(right) == COUNT:
            break
        runs = await context.run_variants(variants, [*split.shown, *split.held_out], until_failure=False)
        for variant, run in zip(variants, runs, strict=True):
            # One that fails a test which is shown is no right solution: the rewrite went wrong, not the test.
            if len(right) < COUNT and run.complete and run.passed.issuperset(split.shown):
                right.append(variant)
                failing |= set(split.held_out) - run.passed
    return failing, tuple(right)
