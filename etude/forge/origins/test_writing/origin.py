"""Tests to write: mistakes are found that a function's own tests notice, and those tests go.

Kept are mistakes that few tests notice, by a failing assertion rather than by a crash, and all tests that notice them
leave the workspace. The rest of the suite has to be green without the removed tests.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from etude.forge.origins.base import Origin
from etude.forge.origins.test_writing.instruct import instruct
from etude.forge.origins.test_writing.propose import UntestedFunctions, can_go, home, take_out, untested_functions
from etude.forge.steps.context import MakeContext, Refused
from etude.forge.steps.instructions import Instructions
from etude.forge.steps.killed_mutants import (
    LEAST,
    SHARE,
    TEST_SH,
    TRIED,
    choose_mistakes,
    noticed,
    versions_with_mistakes,
)
from etude.forge.steps.proof import Proof
from etude.forge.steps.trial import refuse_failing
from etude.forge.steps.write import TaskTree, assemble
from etude.tasks.format.config import PromptStyle
from etude.tasks.format.config import Testing as TestingFacts
from etude.tasks.format.task import SOLUTION, TESTS, Task
from etude.tasks.kinds.mutants import needed

SECONDS: Final = 60.0  # of tests that all mistakes together may take
MOST_NOTICE: Final = 20  # test functions that notice one of them
COMMAND: Final = 'python -B -m pytest -q -p no:cacheprovider "$(cat /tests/file.txt)"'


class TestWriting(Origin[UntestedFunctions, Proof[UntestedFunctions]]):
    __test__ = False  # pytest takes the name for a class of tests
    name = "test_writing"
    label = "testing"
    turns = (5,)

    def propose(self, context: MakeContext, rng: random.Random) -> Iterator[UntestedFunctions]:
        return untested_functions(context.python, rng)

    async def prove(
        self, context: MakeContext, candidate: UntestedFunctions, rng: random.Random
    ) -> Proof[UntestedFunctions]:
        """The candidate with mistakes, and without the tests that notice them; the rest of the suite is green."""
        found = await _with_mistakes(context, candidate, rng)
        repository = context.repository
        removed = {(piece.path, piece.name) for piece in found.removed}
        places = {test: repository.place(test) for test in repository.green}
        gone = [test for test, place in places.items() if (place.path, place.name) in removed]
        await refuse_failing(context, found.changes, gone)
        return Proof(found, removed=found.removed)

    def instruct(self, context: MakeContext, proof: Proof[UntestedFunctions], rng: random.Random) -> Instructions:
        return instruct(proof.candidate, rng)

    def write(
        self,
        context: MakeContext,
        proof: Proof[UntestedFunctions],
        instructions: Instructions,
        prompt_style: PromptStyle,
    ) -> Task:
        candidate = proof.candidate
        tree = TaskTree(context.repository, candidate.changes)
        tree.put_mutants(candidate.mutants)
        tree.put(SOLUTION, candidate.file, candidate.reference)
        tree.files |= {
            f"{TESTS}/test.sh": TEST_SH.format(command=COMMAND).encode(),
            f"{TESTS}/file.txt": f"{candidate.file}\n".encode(),
        }
        task = assemble(
            context,
            candidate,
            instructions,
            prompt_style,
            tree,
            testing=TestingFacts(file=candidate.file, share=SHARE),
            allowed_paths=[candidate.file],
            parameters={"functions": [piece.id for piece in candidate.pieces]},
        )
        return replace(task, files=task.files.replaced({f"{TESTS}/wanted.txt": f"{needed(task)}\n".encode()}))


async def _with_mistakes(context: MakeContext, candidate: UntestedFunctions, rng: random.Random) -> UntestedFunctions:
    repository = context.python
    tests = [test for test in sorted(candidate.expected) if test not in context.unsteady]
    took = sum(repository.took.get(test, 0.0) for test in tests)
    most = max(LEAST, min(TRIED, int(SECONDS / (took + 0.1))))
    tried = versions_with_mistakes(repository, candidate.pieces, rng)[:most]
    runs = await context.run_variants(tried, tests, until_failure=False)
    found = []
    for files, run in zip(tried, runs, strict=True):
        mistake = noticed(files, run, lambda test: repository.place(test) if test in repository.bits else None)
        if mistake and len(mistake.by) <= MOST_NOTICE and all(can_go(repository, place) for place in mistake.by):
            found.append(mistake)
    if len(found) < LEAST:
        raise Refused("too few mistakes are noticed", f"{len(found)} of {len(tried)}, by tests that could go")
    path = home([place for each in found for place in each.by])
    chosen = choose_mistakes([each for each in found if any(place.path == path for place in each.by)])
    gone = {place for each in chosen for place in each.by}
    made = take_out(repository, candidate, gone, path) if len(chosen) >= LEAST else None
    if made is None:
        raise Refused("too few tests can go", f"{len(chosen)} of {len(found)} mistakes")
    return replace(made, mutants=tuple(each.files for each in chosen))


ORIGIN: Final = TestWriting()
