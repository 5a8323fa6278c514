"""Katas whose instruction is short, as a task source."""

from collections.abc import Iterator
from itertools import islice

import pydantic
from pydantic import Field

from etude.forge.katas.task_source import katas
from etude.tasks.format.task import Task


class Brief:
    """Katas whose instruction is short."""

    class Settings(pydantic.BaseModel, extra="forbid"):
        words: int = Field(12, ge=1, description="longest instruction, words")
        seed: int = Field(0, ge=0, description="other seeds give other tasks")

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def tasks(self, start: int = 0) -> Iterator[Task]:
        stream = katas("train", None, self.settings.seed, (1,))
        short = (task for task in stream if len(task.instruction.split()) <= self.settings.words)
        return islice(short, start, None)
