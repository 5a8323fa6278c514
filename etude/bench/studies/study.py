"""What a study is: `studies/NAME/study.py` has a `STUDY`, `studies/NAME/results/` what its arms came to.

An arm is a chain of `etude` commands that ends in a run; `measure` reads that run. The results of each arm and seed are
a file of their own, so a study is the union of what was run, on whatever day, and may grow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from etude.bench.report.charts import Line
from etude.core.component import load_file
from etude.core.durable import write_whole
from etude.core.errors import EtudeError

Size = Literal["cpu", "h200"]
Words = tuple[str, ...]  # behind `etude`, with {run}, {arm}, {seed}, {study} and the names of bases filled in


@dataclass(frozen=True)
class Base:
    """A model that arms start from: {NAME} is its folder, {NAME}/model the model. Studies that name it share it."""

    name: str
    commands: tuple[Words, ...]  # their {run} is thrown away once the model is taken out of it
    stage: str = "sft"  # whose last checkpoint is the model
    needs: tuple[Base, ...] = ()
    seeded: bool = True  # False: the same one for all seeds
    minutes: float = 2.5  # on two cores, about


@dataclass(frozen=True)
class Arm:
    """One way of doing it."""

    about: str
    commands: tuple[Words, ...]
    bases: tuple[Base, ...] = ()
    seeds: int = 0  # fewer than the study's, where an arm is only reported; 0: the study's
    minutes: float = 0.0  # of one seed on two cores, about; 0: the study's
    compared: bool = True  # False: the verdict needs no result of it


@dataclass(frozen=True)
class ArmResult:
    """What one arm came to under one seed: results/ARM-SEED.json."""

    arm: str
    seed: int
    seconds: float
    date: str
    machine: dict[str, Any]
    commands: list[list[str]]
    values: dict[str, Any]  # numbers, or lists of [x, y]


@dataclass(frozen=True)
class Verdict:
    """What the results say of the claim."""

    verdict: Literal["confirmed", "not confirmed", "not measurable", "open"]
    sentence: str


@dataclass(frozen=True)
class Figure:
    """A chart of the page."""

    title: str
    lines: Sequence[Line]
    x_label: str = "step"
    percent: bool = False
    note: str = ""


NAMED = re.compile(r"\{([\w-]+)\}")  # {run}, {seed}, {nano}; a recipe's tables have more than a name in them
FEWEST = 2  # seeds of a verdict
Results = Mapping[str, Sequence[ArmResult]]  # by arm, in the order of their seeds


@dataclass(frozen=True)
class Study:
    """A claim and how it is tried."""

    claim: str  # as it was published, in a sentence
    shown: str  # what would confirm it
    arms: Mapping[Size, Mapping[str, Arm]]
    measure: Callable[[Path], dict[str, Any]]
    conclude: Callable[[Results], Verdict]
    figures: Callable[[Results], Sequence[Figure]]
    columns: Mapping[str, str] = field(default_factory=dict)  # heading -> name of a value
    seeds: int = 3
    minutes: float = 12.0  # of one arm and seed on two cores, about


@dataclass(frozen=True)
class StudyFolder:
    """A study on disk."""

    path: Path
    study: Study
    results_in: Path | None = None  # where results lie; None: in the study's folder

    @property
    def name(self) -> str:
        return self.path.name

    def arms(self, size: Size) -> Mapping[str, Arm]:
        if size not in self.study.arms:
            raise EtudeError(f"{self.name} has no arms of size {size}; it has {', '.join(self.study.arms)}")
        return self.study.arms[size]

    def result_file(self, size: Size, arm: str, seed: int) -> Path:
        folder = "results" if size == "cpu" else f"results-{size}"
        return (self.results_in or self.path) / folder / f"{arm}-{seed}.json"

    def missing(self, size: Size) -> list[tuple[str, int]]:
        """Arms and seeds without a result, seed by seed: so that what there is can always be compared."""
        return [(arm, seed) for arm, seed in self.every(size) if not self.result_file(size, arm, seed).is_file()]

    def every(self, size: Size) -> list[tuple[str, int]]:
        """All arms and seeds, seed by seed."""
        arms = self.arms(size).items()
        return [(n, seed) for seed in range(self.study.seeds) for n, arm in arms if seed < (arm.seeds or seed + 1)]

    def minutes(self, size: Size, arm: str) -> float:
        """Of one seed of an arm, without the bases that it starts from."""
        return self.arms(size)[arm].minutes or self.study.minutes

    def results(self, size: Size) -> dict[str, list[ArmResult]]:
        found: dict[str, list[ArmResult]] = {}
        for arm in self.arms(size):
            files = [self.result_file(size, arm, seed) for seed in range(self.study.seeds)]
            found[arm] = [_read(file) for file in files if file.is_file()]
        return found

    def verdict(self, size: Size) -> Verdict:
        """By the seeds that every arm which is compared has; at least two, since one says nothing of the spread."""
        results, arms = self.results(size), self.arms(size)
        compared = [{each.seed for each in some} for arm, some in results.items() if arms[arm].compared]
        seeds = set.intersection(*compared) if compared else set()
        if not seeds:
            return Verdict("open", f"no seed of all arms has been run yet: etude study run {self.name}")
        if len(seeds) < FEWEST:
            return Verdict("open", f"one seed of {self.study.seeds} is here, and one says nothing about the spread")
        paired = {arm: [each for each in some if each.seed in seeds] for arm, some in results.items()}
        return self.study.conclude(paired)


def fill(words: Words, values: Mapping[str, object]) -> list[str]:
    """A command with its {names} filled in; other braces are the recipe's own."""
    return [NAMED.sub(lambda found: str(values.get(found[1], found[0])), word) for word in words]


def open_study(name: str, root: Path) -> StudyFolder:
    """The study called `name` below the folder of studies."""
    there = study_names(root)
    if name not in there:
        raise EtudeError(f"there is no study {name!r} in {root}; there are {', '.join(there) or 'none'}")
    found = getattr(load_file("study", root / name / "study.py"), "STUDY", None)
    if not isinstance(found, Study):
        raise EtudeError(f"{root / name / 'study.py'} has no STUDY")
    return StudyFolder(root / name, found)


def study_names(root: Path) -> list[str]:
    return sorted(path.parent.name for path in root.glob("*/study.py"))


def write_result(file: Path, result: ArmResult) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, json.dumps(asdict(result), indent=1) + "\n")


def _read(file: Path) -> ArmResult:
    try:
        return ArmResult(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise EtudeError(f"{file} is no result of a study: {error}; delete it and run that arm again") from None
