"""The text of katas as a source of training text: solved modules, and what was asked beside what was changed.

A team would pretrain on its own repositories; the small recipes have katas in their place. Only the train split, whose
words and numbers no evaluation uses. Knows nothing of corpora beyond the documents that it yields.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from pydantic import Field

from etude.corpus.document import Document, Rejected, SourceSettings
from etude.forge.katas.draft import Level
from etude.forge.katas.task_source import PROMPT_STYLES, katas
from etude.tasks.format.config import PromptStyle
from etude.tasks.format.task import Task


class KataCode:
    """A corpus source: `use = "katas"`."""

    class Settings(SourceSettings):
        count: int = Field(5000, ge=1, description="katas whose text is taken")
        seed: int = Field(1000, ge=0, description="of the katas: another one than that of the tasks to learn on")
        levels: list[Level] = Field([1], description="1 one expression, 2 a loop or branch, 3 two functions")
        prompt_styles: list[PromptStyle] = Field(
            list(PROMPT_STYLES), description="how instructions speak: terse, plain, detailed"
        )
        invented: float = Field(0.0, ge=0, le=1, description="share of words, numbers and marks from beyond the lists")
        asked: float = Field(0.5, ge=0, le=1, description="share of katas whose instruction stands beside the change")

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.name = settings.name or "katas"

    def documents(self) -> Iterator[Document | Rejected]:
        settings = self.settings
        stream = katas(
            "train", settings.count, settings.seed, settings.levels, settings.prompt_styles, invented=settings.invented
        )
        for task in stream:
            yield from self._of(task)

    def _of(self, task: Task) -> Iterator[Document]:
        chance = random.Random(task.name).random()
        for path in task.workspace:
            if not path.endswith(".py") or path.startswith("tests/") or path.endswith("__init__.py"):
                continue
            text = (task.solution if path in task.solution else task.workspace).text(path)
            if path in task.solution and chance < self.settings.asked:
                text = f"{task.instruction.strip()}\n\n`{path}`:\n\n{text}"
                path = path.removesuffix(".py") + ".md"
            yield Document(task.name, path, text, "permissive", self.name)
