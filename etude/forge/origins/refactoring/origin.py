"""Refactorings as an origin of tasks.

The workspace is the repository as it is; `tests/` has the test files in their new form and one more that looks for what
was left behind; the reference is the edit of code, tests and documents.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from etude.forge.languages.base import Repository
from etude.forge.origins.base import Origin
from etude.forge.origins.refactoring.candidate import Refactoring
from etude.forge.origins.refactoring.instruct import instruct
from etude.forge.origins.refactoring.propose import refactorings
from etude.forge.origins.refactoring.prove import RefactoringProof, prove
from etude.forge.steps.candidate import Candidate
from etude.forge.steps.context import MakeContext
from etude.forge.steps.instructions import Instructions
from etude.forge.steps.write import TaskTree, allowed_paths, assemble, beside_tests, choose_kept
from etude.tasks.format.config import PromptStyle, Refactor
from etude.tasks.format.task import SOLUTION, TESTS, Task, solve_script


class Refactorings(Origin[Refactoring, RefactoringProof]):
    name = "refactoring"
    label = "refactor"
    turns = (7,)

    def propose(self, context: MakeContext, rng: random.Random) -> Iterator[Refactoring]:
        return refactorings(context.python, rng)

    async def prove(self, context: MakeContext, candidate: Refactoring, rng: random.Random) -> RefactoringProof:
        return await prove(context, candidate)

    def instruct(self, context: MakeContext, proof: RefactoringProof, rng: random.Random) -> Instructions:
        return instruct(proof.candidate, rng)

    def write(
        self, context: MakeContext, proof: RefactoringProof, instructions: Instructions, prompt_style: PromptStyle
    ) -> Task:
        repository, candidate = context.repository, proof.candidate
        rng = random.Random(f"{context.request.seed}/{candidate.key}/kept")
        changed = replace(
            candidate, changes={path: data for path, data in candidate.edits.items() if not repository.is_test(path)}
        )
        read = {test.partition("::")[0] for test in (*proof.noticing, *proof.leftover)}
        pass_to_pass = choose_kept(repository, changed, proof.kept, rng, read)
        tree = TaskTree(repository, {})
        for path, data in repository.files.items():
            if repository.is_test(path) or beside_tests(repository, path):
                tree.put(TESTS, path, candidate.edits.get(path, data))
        for path, after in candidate.edits.items():
            tree.put(SOLUTION, path, after)
        tree.put(TESTS, *candidate.leftover_tests)
        tree.put_ids([*proof.noticing, *pass_to_pass, *proof.leftover])
        removed = [path for path, after in candidate.edits.items() if after is None]
        tree.files["solution/solve.sh"] = solve_script("/app", removed)
        return assemble(
            context,
            candidate,
            instructions,
            prompt_style,
            tree,
            fail_to_pass=list(proof.noticing),
            pass_to_pass=pass_to_pass,
            held_out=list(proof.leftover),
            allowed_paths=_allowed(repository, changed, candidate),
            removed=removed,
            refactor=Refactor(
                kind=candidate.how,
                symbol="" if candidate.how == "move" else candidate.pieces[0].id,
                old=candidate.old,
                new=candidate.new,
            ),
        )


def _allowed(repository: Repository[Any], changed: Candidate, candidate: Refactoring) -> list[str]:
    """The project's folders, a new one among them, the documents that change; and the tests that do, by name: what
    lies in the task's own is laid over them."""
    found = allowed_paths(repository, changed)
    if candidate.how == "move" and f"{candidate.old.rpartition('/')[0]}/*.py" in found:
        folder = candidate.new.rpartition("/")[0]
        found = [*(path for path in found if not path.startswith(f"{folder}/")), f"{folder}/*.py"]
    return [*found, *(path for path in sorted(candidate.edits) if repository.is_test(path))]


ORIGIN: Final = Refactorings()
