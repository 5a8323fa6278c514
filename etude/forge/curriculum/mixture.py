"""Several sources of tasks mixed by weights: `use = "mixture"`.

Which source a number's task comes from is drawn from the seed and the number alone, so a resumed run asks the same
again, and a source that listens hears only of its own tasks. A folder, or a file of questions, that has no task left
gives its share to the others; any other source that ends, ends the mixture.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pydantic
from pydantic import Field

from etude.core.errors import EtudeError
from etude.forge.curriculum.questions import Questions
from etude.forge.curriculum.sources import (
    Folder,
    HearsEffort,
    Listens,
    MakesTasks,
    Quarantines,
    Rewinds,
    TaskSource,
    open_source,
)
from etude.forge.ladder.source import Ladder
from etude.sandbox.hosts import StoringHost
from etude.tasks.format.task import Task


class Mixture:
    class Settings(pydantic.BaseModel, extra="forbid"):
        sources: list[dict[str, Any]] = Field(
            min_length=1, description="task sources, each with `weight` (1) and `name` (what its metrics are called)"
        )
        seed: int = Field(0, ge=0, description="another seed mixes in another order")

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.names: list[str] = []
        self.weights: list[float] = []
        self.sources: list[TaskSource] = []
        for number, entry in enumerate(settings.sources):
            where = f"sources[{number}]"
            spec = {key: value for key, value in entry.items() if key not in ("weight", "name")}
            weight, name = entry.get("weight", 1.0), str(entry.get("name", spec.get("use", "")))
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
                raise EtudeError(f"{where}.weight is {weight!r}; it must be a number above 0")
            if name in self.names:
                raise EtudeError(f"{where}: two sources are called {name!r}; give one of them another `name`")
            self.sources.append(open_source(spec, where))
            self.names.append(name)
            self.weights.append(float(weight))
        self._lengths = [_length(source) for source in self.sources]
        self._choices: list[tuple[int, int]] = []  # by number: which source, and which of its tasks
        self._used = [0] * len(self.sources)

    def tasks(self, start: int = 0) -> Iterator[Task]:
        number = start
        while (choice := self._choice(number)) is not None:
            source, local = choice
            task = next(self.sources[source].tasks(local), None)
            if task is None:
                return
            yield task
            number += 1

    def source_of(self, number: int) -> str:
        """What the source of this task is called."""
        choice = self._choice(number)
        return self.names[choice[0]] if choice is not None else ""

    def remember(self, path: Path) -> None:
        for source, name in zip(self.sources, self.names, strict=True):
            if isinstance(source, Listens):
                source.remember(path.with_name(f"{path.stem}-{name}{path.suffix}"))

    def heard(self, number: int, passed: int, tried: int, step: int) -> None:
        source, local = self._known(number)
        if isinstance(source, Listens):
            source.heard(local, passed, tried, step)

    def effort(self, number: int, turns: float, thinking: float) -> None:
        source, local = self._known(number)
        if isinstance(source, HearsEffort):
            source.effort(local, turns, thinking)

    def rewind(self, step: int, number: int) -> None:
        before = [self._choice(each) for each in range(number)]
        for place, source in enumerate(self.sources):
            if isinstance(source, Rewinds):
                source.rewind(step, sum(choice is not None and choice[0] == place for choice in before))

    def broken(self, number: int, why: str) -> bool:
        source, local = self._known(number)
        return isinstance(source, Quarantines) and source.broken(local, why)

    async def make_harder(self, host: StoringHost) -> str:
        for source in self.sources:
            if isinstance(source, MakesTasks) and (said := await source.make_harder(host)):
                return said
        return ""

    def _known(self, number: int) -> tuple[TaskSource, int]:
        choice = self._choice(number)
        assert choice is not None  # the number was given
        return self.sources[choice[0]], choice[1]

    def _choice(self, number: int) -> tuple[int, int] | None:
        while len(self._choices) <= number:
            left = [place for place, used in enumerate(self._used) if used < self._lengths[place]]
            if not left:
                return None
            chance = random.Random(f"mixture/{self.settings.seed}/{len(self._choices)}")
            (place,) = chance.choices(left, [self.weights[place] for place in left])
            self._choices.append((place, self._used[place]))
            self._used[place] += 1
        return self._choices[number]


def _length(source: TaskSource) -> float:
    """How many tasks a source has: behind the last of one, the others go on."""
    if isinstance(source, Ladder | Questions) and source.settings.again:
        return math.inf
    return len(source.found) if isinstance(source, Folder | Ladder | Questions) else math.inf


def check_first(source: TaskSource, first: int, where: str) -> None:
    """Refuses to begin behind the last task of a source that ends, also where it is one of several."""
    left_out = [_length(source)] if _length(source) <= first else []
    of = where
    if isinstance(source, Mixture):
        asked = [source.source_of(number) for number in range(first)]
        counts = {n: _length(s) for n, s in zip(source.names, source.sources, strict=True)}
        gone = [name for name, length in counts.items() if length <= asked.count(name)]
        left_out, of = [counts[name] for name in gone], f"the source {gone[0]!r} of {where}" if gone else where
    if first and left_out:
        raise EtudeError(
            f"rl.first_task = {first} leaves out all {left_out[0]:g} tasks of {of}, and none would be asked: set "
            "rl.first_task=0, or as many as were demonstrated of them"
        )
