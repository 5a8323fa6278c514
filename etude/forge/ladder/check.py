"""The gates of a ladder task: fewer than `forge/gates` has, and each of them a grade that training would give.

    trial        its tests fail over the changed code, and over two other edits of one token in the place of the fix
    facts        lint finds no error, and every required test was recorded (the grading plan of made tasks is in force)
    worth        the answers that hidden tests withhold are worth at least `LEAST_BITS`
    reference    accepted twice under different hash seeds, for all tests of the package at once (`answers`): it is the
                 same code and the same tests for each of its tasks, which only ask for fewer of them
    nothing      the grader rejects the workspace as it is

What is left out, since a task here lacks one token or a few lines and not a feature: second solutions, the search of
other people's layers for copies, attacks that bend the test process (recorded grading leaves them nothing to bend).
"""

from __future__ import annotations

import random
from typing import Any, Final

from etude.forge.ladder.propose import Step
from etude.forge.languages.base import Repository
from etude.forge.languages.python.one_token import one_token_mistakes
from etude.forge.languages.python.source import Module
from etude.forge.steps.context import MakeContext, Refused
from etude.tasks.format.task import Task
from etude.tasks.grade import grade
from etude.tasks.grading.submission import submission_of
from etude.tasks.lint import lint

LEAST_BITS: Final = 4.0  # of hidden answers: whoever fills in values without mending the code fails 15 times in 16
WRONG_EDITS: Final = 2


def check_facts(task: Task) -> None:
    """What needs no sandbox."""
    errors = [finding for finding in lint(task) if finding.severity == "error"]
    if errors:
        raise Refused(f"lint: {errors[0].rule}", str(errors[0]))
    withheld = task.facts.withheld
    if withheld is None or withheld.bits < LEAST_BITS:
        raise Refused("too few answers can be withheld", f"{withheld.bits if withheld else 0:g} bits")
    if not task.facts.held_out or not task.facts.fail_to_pass:
        raise Refused("too few tests can be held out")


async def check_null(context: MakeContext, task: Task) -> None:
    """The grader does not accept the workspace as it is."""
    if (await grade(task, context.host, submission_of(task, {}), quick=True)).passed:
        raise Refused("a test passes before the work is done")


def wrong_edits(repository: Repository[Any], step: Step, rng: random.Random) -> list[dict[str, bytes | None]]:
    """Other edits of one token in the broken function; of a missing body, one that returns something."""
    piece = step.pieces[0]
    data = step.changes[piece.path]
    assert data is not None
    module = Module.read(piece.path, data)
    assert module is not None
    function = module.definitions[piece.name]
    right = repository.files[piece.path]
    made: list[dict[str, bytes | None]] = []
    if step.origin == "bug":
        texts = {module.edited([each.edit]) for each in one_token_mistakes(module, function)} - {right, data}
        made = [{piece.path: text} for text in sorted(texts) if Module.read(piece.path, text) is not None]
        rng.shuffle(made)
    made = made[:WRONG_EDITS]
    for value in (b"return None", b"return 0")[len(made) :]:
        made.append({piece.path: module.edited([module.without_body(function, value)])})
    return made
