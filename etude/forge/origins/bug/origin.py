"""Bugs as an origin of tasks."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

from etude.forge.origins.base import Origin
from etude.forge.origins.bug.instruct import instruct
from etude.forge.origins.bug.propose import BuggyCode, bugs
from etude.forge.steps.code_change import CodeChange, prove_code_change, write_code_change
from etude.forge.steps.context import MakeContext
from etude.forge.steps.instructions import Instructions
from etude.forge.steps.issue_tracker import report_in_tracker
from etude.tasks.format.config import PromptStyle
from etude.tasks.format.task import Task


class Bug(Origin[BuggyCode, CodeChange]):
    name = "bug"
    languages = ("python", "javascript")
    turns = (1,)

    def propose(self, context: MakeContext, rng: random.Random) -> Iterator[BuggyCode]:
        return bugs(context.repository, rng)

    async def prove(self, context: MakeContext, candidate: BuggyCode, rng: random.Random) -> CodeChange:
        # Code that is missing fails at once; code that is wrong may never end.
        timeout = 3 * context.base.seconds + 10
        return await prove_code_change(context, candidate, rng, timeout=timeout)

    def instruct(self, context: MakeContext, proof: CodeChange, rng: random.Random) -> Instructions:
        return instruct(context.repository, proof, rng)

    def write(
        self, context: MakeContext, proof: CodeChange, instructions: Instructions, prompt_style: PromptStyle
    ) -> Task:
        task = write_code_change(context, proof, instructions, prompt_style)
        rng = random.Random(f"{context.request.seed}/{proof.candidate.key}/tracker")
        return report_in_tracker(task, rng) if context.request.tracker else task


ORIGIN: Final = Bug()
