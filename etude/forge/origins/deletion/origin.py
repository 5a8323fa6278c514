"""Feature deletion as an origin of tasks."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

from etude.forge.origins.base import Origin
from etude.forge.origins.deletion.propose import deletions
from etude.forge.steps.candidate import Candidate
from etude.forge.steps.code_change import CodeChange, prove_code_change, write_code_change
from etude.forge.steps.code_change_instructions import missing_code
from etude.forge.steps.context import MakeContext
from etude.forge.steps.instructions import Instructions
from etude.tasks.format.config import PromptStyle
from etude.tasks.format.task import Task


class Deletion(Origin[Candidate, CodeChange]):
    name = "deletion"
    languages = ("python", "javascript")
    turns = (0, 2)  # most repositories have more functions to delete than anything else

    def propose(self, context: MakeContext, rng: random.Random) -> Iterator[Candidate]:
        return deletions(context.repository, rng, context.left_out.append)

    async def prove(self, context: MakeContext, candidate: Candidate, rng: random.Random) -> CodeChange:
        return await prove_code_change(context, candidate, rng)

    def instruct(self, context: MakeContext, proof: CodeChange, rng: random.Random) -> Instructions:
        return missing_code(context.repository, proof.candidate, proof.split, proof.output, rng)

    def write(
        self, context: MakeContext, proof: CodeChange, instructions: Instructions, prompt_style: PromptStyle
    ) -> Task:
        return write_code_change(context, proof, instructions, prompt_style)


ORIGIN: Final = Deletion()
