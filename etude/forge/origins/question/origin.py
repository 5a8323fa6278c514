"""Questions about a repository as an origin of tasks.

The workspace is the repository, with the patch where there is one; the answer stands in task.toml alone.
"""

from __future__ import annotations

import random
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from etude.forge.origins.base import Origin
from etude.forge.origins.question.candidate import Question
from etude.forge.origins.question.instruct import instruct
from etude.forge.origins.question.propose import questions
from etude.forge.origins.question.prove import prove
from etude.forge.steps.context import MakeContext
from etude.forge.steps.instructions import Instructions
from etude.forge.steps.proof import Proof
from etude.forge.steps.write import TaskTree, assemble
from etude.tasks.format.config import Answer, PromptStyle
from etude.tasks.format.task import TESTS, Task
from etude.tasks.kinds.answer import reference_answer

# For Harbor's own verifier, which sees files only: whoever runs the agent there has to write down its last words.
TEST_SH: Final = Path(__file__).with_name("test.sh").read_bytes()


class Questions(Origin[Question, Proof[Question]]):
    name = "question"
    turns = (4,)

    def propose(self, context: MakeContext, rng: random.Random) -> Iterator[Question]:
        return questions(context.python, rng)

    async def prove(self, context: MakeContext, candidate: Question, rng: random.Random) -> Proof[Question]:
        found = await prove(context, candidate)
        # Of a plan the functions as they were are the answer; the others change nothing, or show their patch.
        return Proof(found, removed=found.pieces if found.how == "plan" else ())

    def instruct(self, context: MakeContext, proof: Proof[Question], rng: random.Random) -> Instructions:
        return instruct(proof.candidate, rng)

    def write(
        self, context: MakeContext, proof: Proof[Question], instructions: Instructions, prompt_style: PromptStyle
    ) -> Task:
        question = proof.candidate
        answer = Answer(kind=question.kind, accepted=list(question.accepted))
        tree = TaskTree(context.repository, question.changes)
        solve = f"#!/bin/sh\necho {shlex.quote(reference_answer(answer))} > /app/answer.txt\n"
        tree.files |= {
            f"{TESTS}/test.sh": TEST_SH,
            f"{TESTS}/accepted.txt": "\n".join([*question.accepted, ""]).encode(),
            "solution/solve.sh": solve.encode(),
        }
        about = [question.how, *([question.test] if question.test else [])]
        parameters = {"asked": about, "choices": list(question.choices)}
        parameters |= {"guesses": list(question.guesses)} if question.guesses else {}
        return assemble(context, question, instructions, prompt_style, tree, answer=answer, parameters=parameters)


ORIGIN: Final = Questions()
