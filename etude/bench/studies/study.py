"""What a study is: `studies/NAME/study.py` has a `STUDY`, `studies/NAME/results/` what its arms came to.

An arm is a chain of `etude` commands that ends in a run; `measure` reads that run. The results of each arm and seed are
a file of their own, so a study is the union of what was run, on whatever day, and may grow.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from etude.bench.report.charts import Line
from etude.core.component import load_file
from etude.core.durable import write_whole
from etude.core.errors import EtudeError

Size = Literal["cpu", "h200"]
Command = tuple[str, ...]  # words behind `etude`, with {run}, {base}, {seed} filled in


@dataclass(frozen=True)
class Arm:
    """One way of doing it."""

    about: str
    commands: tuple[Command, ...]


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


Results = Mapping[str, Sequence[ArmResult]]  # by arm, in the order of their seeds


@dataclass(frozen=True)
class Study:
    """A claim and how it is tried. `prepare` makes the run that all arms of a seed start from, {base}."""

    claim: str  # as it was published, in a sentence
    shown: str  # what would confirm it
    arms: Mapping[Size, Mapping[str, Arm]]
    measure: Callable[[Path], dict[str, Any]]
    conclude: Callable[[Results], Verdict]
    figures: Callable[[Results], Sequence[Figure]]
    columns: Mapping[str, str] = field(default_factory=dict)  # heading -> name of a value
    prepare: tuple[Command, ...] = ()
    seeds: int = 3
    minutes: float = 12.0  # of one arm and seed on two cores, about


@dataclass(frozen=True)
class StudyFolder:
    """A study on disk."""

    path: Path
    study: Study

    @property
    def name(self) -> str:
        return self.path.name

    def arms(self, size: Size) -> Mapping[str, Arm]:
        if size not in self.study.arms:
            raise EtudeError(f"{self.name} has no arms of size {size}; it has {', '.join(self.study.arms)}")
        return self.study.arms[size]

    def result_file(self, size: Size, arm: str, seed: int) -> Path:
        folder = "results" if size == "cpu" else f"results-{size}"
        return self.path / folder / f"{arm}-{seed}.json"

    def missing(self, size: Size) -> list[tuple[str, int]]:
        """Arms and seeds without a result, seed by seed: so that what there is can always be compared."""
        every = [(arm, seed) for seed in range(self.study.seeds) for arm in self.arms(size)]
        return [(arm, seed) for arm, seed in every if not self.result_file(size, arm, seed).is_file()]

    def results(self, size: Size) -> dict[str, list[ArmResult]]:
        found: dict[str, list[ArmResult]] = {}
        for arm in self.arms(size):
            files = [self.result_file(size, arm, seed) for seed in range(self.study.seeds)]
            found[arm] = [_read(file) for file in files if file.is_file()]
        return found

    def verdict(self, size: Size) -> Verdict:
        """By the seeds that every arm has."""
        results = self.results(size)
        seeds = set.intersection(*({each.seed for each in some} for some in results.values())) if results else set()
        if not seeds:
            return Verdict("open", f"no seed of all arms has been run yet: etude study run {self.name}")
        paired = {arm: [each for each in some if each.seed in seeds] for arm, some in results.items()}
        return self.study.conclude(paired)


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
