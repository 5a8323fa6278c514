"""The protocol of an origin: how tasks of one kind are proposed, proven, worded and written.

`pipeline/make_task` calls the four in this order and does everything that all tasks have in common: the folder, the
scrub, the search for leaks, the gates. What an origin raises as `Refused` is journalled and the next candidate is
taken.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from etude.forge.steps.candidate import Candidate
from etude.forge.steps.context import MakeContext, Opening
from etude.forge.steps.instructions import Instructions
from etude.forge.steps.proof import Proof
from etude.tasks.format.config import PromptStyle
from etude.tasks.format.task import Task

C = TypeVar("C", bound=Candidate)
P = TypeVar("P", bound=Proof[Any])


class Origin(ABC, Generic[C, P]):
    """One origin of tasks. Its folder has a module `origin` with an object `ORIGIN` of a class like this."""

    name: ClassVar[str]  # of its folder
    # How candidates, task families and journals name it: as the folder, but for origins that are older than their
    # folder's name, since the keys of their tasks and their random numbers are made from it.
    label: ClassVar[str]
    languages: ClassVar[tuple[str, ...]] = ("python",)
    needs_history: ClassVar[bool] = False  # commits of the repository
    needs_build: ClassVar[bool] = False  # an environment in which the repository can be built
    turns: ClassVar[tuple[int, ...]] = (100,)  # its places in a round of proposals

    def __init_subclass__(cls) -> None:
        cls.label = vars(cls).get("label", cls.name)

    async def open(self, opening: Opening) -> MakeContext:
        """What its candidates are made in: the repository as it is, unless it needs another."""
        return await opening.plain()

    @abstractmethod
    def propose(self, context: MakeContext, rng: random.Random) -> Iterator[C]:
        """Candidates in the order in which they should be tried. Runs nothing."""

    @abstractmethod
    async def prove(self, context: MakeContext, candidate: C, rng: random.Random) -> P:
        """What execution shows about a candidate, or `Refused`."""

    @abstractmethod
    def instruct(self, context: MakeContext, proof: P, rng: random.Random) -> Instructions:
        """What the agent is asked, in three prompt styles."""

    @abstractmethod
    def write(self, context: MakeContext, proof: P, instructions: Instructions, prompt_style: PromptStyle) -> Task:
        """The task, in memory."""

    def remove_copies(self, context: MakeContext, proof: P, folder: Path) -> None:
        """Removes copies of the answer that no scrub knows from a written task's workspace, or refuses the task."""

    def attacks(self, task: Task) -> Mapping[str, Mapping[str, bytes | None]]:
        """Answers of its own that must not be accepted, by name: files that somebody might leave."""
        return {}
