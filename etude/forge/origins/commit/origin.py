"""Reverted commits as an origin of tasks."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from typing import Final

from etude.forge.origins.base import Origin
from etude.forge.origins.commit.instruct import instruct
from etude.forge.origins.commit.propose import commits, own_tests
from etude.forge.steps.candidate import Candidate
from etude.forge.steps.code_change import CodeChange, prove_code_change, write_code_change
from etude.forge.steps.context import MakeContext
from etude.forge.steps.instructions import Instructions
from etude.tasks.format.config import PromptStyle
from etude.tasks.format.task import Task


class Commit(Origin[Candidate, CodeChange]):
    name = "commit"
    languages = ("python", "javascript")
    needs_history = True
    turns = (3,)

    def propose(self, context: MakeContext, rng: random.Random) -> Iterator[Candidate]:
        assert context.history is not None
        return commits(context.repository, context.history, context.left_out.append)

    async def prove(self, context: MakeContext, candidate: Candidate, rng: random.Random) -> CodeChange:
        """The commit's own tests are the first to be held out."""
        assert context.history is not None
        preferred = partial(own_tests, context.repository, context.history, candidate.how)
        return await prove_code_change(context, candidate, rng, preferred=preferred)

    def instruct(self, context: MakeContext, proof: CodeChange, rng: random.Random) -> Instructions:
        return instruct(context.repository, proof, rng)

    def write(
        self, context: MakeContext, proof: CodeChange, instructions: Instructions, prompt_style: PromptStyle
    ) -> Task:
        return write_code_change(context, proof, instructions, prompt_style)


ORIGIN: Final = Commit()
