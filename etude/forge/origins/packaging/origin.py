"""Broken packaging as an origin of tasks: the tests, which no agent sees, build a wheel and look at it."""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

from etude.forge.origins.base import Origin
from etude.forge.origins.packaging.distribution import BuildContext, open_build
from etude.forge.origins.packaging.expectations import Facts
from etude.forge.origins.packaging.instruct import instruct
from etude.forge.origins.packaging.propose import Area, BrokenPackaging, broken_packagings
from etude.forge.origins.packaging.prove import PackagingProof, prove
from etude.forge.steps.context import MakeContext, Opening, Refused
from etude.forge.steps.instructions import Instructions
from etude.forge.steps.write import TaskTree, assemble, choose_kept
from etude.tasks.format.config import PromptStyle
from etude.tasks.format.task import TESTS, Task
from etude.tasks.kinds.packaging.attacks import false_restorations
from etude.tasks.kinds.packaging.config_entries import FILES

LEAST_KEPT: Final = 40  # of the repository's own tests that stay green; with ours, all are asked for at each grading


class Packaging(Origin[BrokenPackaging, PackagingProof]):
    name = "packaging"
    label = "devops"
    needs_build = True
    turns = (8,)

    async def open(self, opening: Opening) -> BuildContext:
        return await open_build(opening)

    def propose(self, context: MakeContext, rng: random.Random) -> Iterator[BrokenPackaging]:
        return broken_packagings(context.repository.files, rng)

    async def prove(self, context: MakeContext, candidate: BrokenPackaging, rng: random.Random) -> PackagingProof:
        return await prove(_buildable(context), candidate)

    def instruct(self, context: MakeContext, proof: PackagingProof, rng: random.Random) -> Instructions:
        return instruct(_buildable(context), proof, rng)

    def write(
        self, context: MakeContext, proof: PackagingProof, instructions: Instructions, prompt_style: PromptStyle
    ) -> Task:
        """No test of it is in the workspace: the first of them is as good as any other."""
        repository, candidate = context.repository, proof.candidate
        rng = random.Random(f"{context.request.seed}/{candidate.key}/kept")
        green = [test for test in repository.green if test not in context.unsteady]
        own = choose_kept(repository, candidate, green, rng)[:LEAST_KEPT]
        tree = TaskTree(repository, candidate.changes)
        for path, data in repository.files.items():
            if repository.is_test(path):
                tree.put(TESTS, path, data)
        tree.put(TESTS, _buildable(context).file, proof.tests)
        tree.put_solution(candidate.changes)
        tree.put_ids([*proof.failing, *proof.passing, *own])
        return assemble(
            context,
            candidate,
            instructions,
            prompt_style,
            tree,
            fail_to_pass=proof.failing[:1],
            pass_to_pass=[*proof.passing, *own],
            held_out=proof.failing[1:],
            allowed_paths=[path for path in (*FILES, "MANIFEST.in") if path in repository.files],
            deleted=[piece.id for piece in candidate.pieces],
        )

    def remove_copies(self, context: MakeContext, proof: PackagingProof, folder: Path) -> None:
        if place := copied(Task.load(folder), _buildable(context).facts, proof.candidate.areas):
            raise Refused("leak", place)

    def attacks(self, task: Task) -> Mapping[str, Mapping[str, bytes | None]]:
        return false_restorations(task)


def _buildable(context: MakeContext) -> BuildContext:
    assert isinstance(context, BuildContext)
    return context


def copied(task: Task, facts: Facts, areas: Collection[Area]) -> str:
    """A file of the workspace that still says what is missing, in another form than the removed lines."""
    words: list[str] = []
    if "scripts" in areas:
        known = "".join(_bare_text(task, path) for path in FILES if path in task.workspace)
        points = [f"{name}={target}" for named in facts["entry_points"].values() for name, target in named.items()]
        words += [point for point in points if point not in known]
    if "extras" in areas:
        words += [f"extra=={extra}" for extra in facts["requirements"] if extra]
    for path in task.workspace if words else ():
        if path not in FILES and task.workspace.kind(path) != "link" and task.workspace.size(path) < 1 << 20:
            text = _bare_text(task, path)
            if found := next((word for word in words if word in text), ""):
                return f"{path} says {found}"
    return ""


def _bare_text(task: Task, path: str) -> str:
    return re.sub(r"[\s\"'`]", "", task.workspace.text(path))


ORIGIN: Final = Packaging()
