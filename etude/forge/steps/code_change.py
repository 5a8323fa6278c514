"""Tasks whose answer is a change of the code that brings a behaviour back: what deletions, bugs and commits share.

Proven by running the tests over the changed workspace; those that fail are split into shown and held out. Knows
nothing about how the change was found or is worded.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from etude.forge.gates.withheld_answers import TOO_FEW, WITHHOLDING
from etude.forge.languages.base import LocatedTest, Repository
from etude.forge.steps.candidate import Candidate
from etude.forge.steps.context import MakeContext, Refused
from etude.forge.steps.hide_tests import Split, split
from etude.forge.steps.instructions import Instructions
from etude.forge.steps.proof import Gates, Proof
from etude.forge.steps.trial import attempt
from etude.forge.steps.verify import refuse_copied
from etude.forge.steps.write import TaskTree, allowed_paths, assemble, beside_tests, choose_kept
from etude.tasks.format.config import PromptStyle
from etude.tasks.format.task import TESTS, Task

# That the tests which decide may take together, a third of what a grade has for all: a machine may be busy.
GRADED_SECONDS: Final = 20.0


@dataclass(frozen=True, kw_only=True)
class CodeChange(Proof[Candidate]):
    """A candidate that tests notice."""

    split: Split
    kept: tuple[str, ...]  # tests that pass with the change
    output: Mapping[str, str] = field(default_factory=dict, repr=False)  # of failing tests
    unfair: tuple[
        str, ...
    ] = ()  # tests that notice and do not judge: they ask for what nobody could know, or take long
    added: tuple[str, ...] = ()  # held-out tests that the repository does not have: its own with other inputs
    test_files: Mapping[str, bytes] = field(default_factory=dict, repr=False)  # files with these tests in them


async def prove_code_change(
    context: MakeContext,
    candidate: Candidate,
    rng: random.Random,
    *,
    timeout: float | None = None,
    preferred: Callable[[], Collection[LocatedTest]] = tuple,
) -> CodeChange:
    """Tests fail with the changes made, and enough of them can be held out: the `preferred` ones first."""
    _refuse_without_answers(context.repository, candidate.expected, "that could notice")
    await refuse_copied(context, candidate)
    # Code that is missing fails at once; the machine may be busier than it was.
    trial = await attempt(context, candidate, timeout or 10 * context.base.seconds + 60)
    slow = too_slow(context.repository, trial.broken)
    broken = [test for test in trial.broken if test not in slow]
    if slow and len(broken) < candidate.least_tests:
        raise Refused("it cannot be graded", f"{len(slow)} of {len(trial.broken)} tests that notice take too long")
    parted = split(context.repository, candidate, broken, rng, preferred())
    if parted is None:
        raise Refused("too few tests can be held out")
    _refuse_without_answers(context.repository, parted.held_out, "held out")
    return CodeChange(
        candidate,
        removed=candidate.pieces,
        gates=Gates(
            [test for test in context.base.green if test not in slow], context.repository.files, candidate.least_tests
        ),
        partial=not trial.whole,
        split=parted,
        kept=trial.kept,
        unfair=tuple(sorted(slow)),
        output=trial.output,
    )


def too_slow(repository: Repository[Any], tests: Collection[str]) -> set[str]:
    """Tests that a grade has no time for: whole functions, those that take longest. Minutes went by until the grader
    said so, which waits for them twice and ends before they do."""
    places: dict[LocatedTest, list[str]] = {}
    for test in tests:
        places.setdefault(repository.place(test), []).append(test)
    seconds = {place: sum(repository.took.get(test, 0.0) for test in found) for place, found in places.items()}
    left, slow = GRADED_SECONDS, set[str]()
    for place in sorted(places, key=lambda each: seconds[each]):
        left -= seconds[place]
        slow.update(places[place] if left < 0 else ())
    return slow


def _refuse_without_answers(repository: Repository[Any], tests: Collection[str], which: str) -> None:
    """What the gate for answers will say, before minutes are spent on the way there: where no held-out test compares a
    value, none can be withheld, and other inputs have none to expect."""
    places = {repository.place(test) for test in tests}
    # Of tests that a file makes as it runs the text says nothing.
    known = repository.task_files.suite in WITHHOLDING and all(place.name for place in places)
    if places and known and repository.answer_bits(places) == 0:
        raise Refused(TOO_FEW, f"no value is compared in {len(tests)} tests {which}")


def write_code_change(
    context: MakeContext, proof: CodeChange, instructions: Instructions, prompt_style: PromptStyle
) -> Task:
    """The workspace is the repository with the candidate's changes and without hidden tests; `tests/` has the test
    files whole, with all that lies beside them; `solution/files/` the changed files as the repository had them."""
    repository, candidate, split = context.repository, proof.candidate, proof.split
    rng = random.Random(f"{context.request.seed}/{candidate.key}/kept")
    read = {test.partition("::")[0] for test in (*split.shown, *split.held_out)}
    pass_to_pass = choose_kept(repository, candidate, proof.kept, rng, read)
    notes = {"not_judging": list(proof.unfair), "other_inputs": list(proof.added)}
    parameters = {name: tests for name, tests in notes.items() if tests}
    tree = TaskTree(repository, {**candidate.changes, **split.files})
    for path, data in repository.files.items():
        if repository.is_test(path) or beside_tests(repository, path):
            tree.put(TESTS, path, proof.test_files.get(path, data))
    tree.put_solution(candidate.changes)
    tree.put_ids([*split.shown, *pass_to_pass, *split.held_out])
    return assemble(
        context,
        candidate,
        instructions,
        prompt_style,
        tree,
        fail_to_pass=list(split.shown),
        pass_to_pass=pass_to_pass,
        held_out=list(split.held_out),
        allowed_paths=allowed_paths(repository, candidate),
        deleted=[piece.id for piece in candidate.pieces],
        **({"parameters": parameters} if parameters else {}),
    )
