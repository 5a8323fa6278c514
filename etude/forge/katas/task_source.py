"""Katas: endless small tasks, each a repository of two to four modules with a feature deleted.

A task follows from (split, seed, index, what was asked for) alone, so it can be made again anywhere, in memory or on
disk. Families take turns. Training and held-out tasks share families and nothing else that was drawn: see `vocabulary`.
Knows no policy and no grader.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pydantic
from pydantic import Field

from etude.core import progress
from etude.core.errors import EtudeError
from etude.forge.katas.draft import Draft, Family, Level, Pick
from etude.forge.katas.families import arithmetic, branches, loops, mappings, scanning, sequences, strings
from etude.forge.katas.families import two_file_data_structures as systems
from etude.forge.katas.families import two_file_text as pairs
from etude.forge.katas.instructions import instruct
from etude.forge.katas.kata_repository import PoorDraw, Repository, build
from etude.forge.katas.vocabulary import PACKAGES
from etude.tasks.format.config import SCHEMA, Config, Environment, Facts, PromptStyle, Split, Suite, Verifier
from etude.tasks.format.file_tree import Files
from etude.tasks.format.task import SOLUTION, TESTS, WORKSPACE, Task, solve_script

VERSION = 1  # goes into each task's provenance: a change to a family makes other tasks of the same seed
TRIES = 50  # draws before a family is given up; a good one needs one or two
NEIGHBOUR = 0.25  # share of the smaller katas whose deleted function has another one beside it in its file
LEVELS: tuple[Level, ...] = (1, 2, 3)
PROMPT_STYLES: tuple[PromptStyle, ...] = ("terse", "plain", "detailed")

# The order of the families decides which task a seed gives: new ones stand at the end of their file, new files last.
_SUBJECTS = (arithmetic, strings, sequences, mappings, loops, branches, scanning, pairs, systems)
FAMILIES = {each.name: each for room in _SUBJECTS for each in vars(room).values() if isinstance(each, Family)}

EASY = [family for family in FAMILIES.values() if family.level == 1 and not family.unseen]  # for what stays intact

IMAGE = "python:3.12.8-slim-bookworm"
DOCKERFILE = f"FROM {IMAGE}\nWORKDIR /app\nCOPY workspace/ /app/\n".encode()
TESTS_DOCKERFILE = f"FROM {IMAGE}\nCOPY . /tests/\n".encode()
# For Harbor's own verifier. Ours reads the ids in task.toml and never runs this.
TEST_SH = b"""#!/bin/sh
cd /
if python3 -I -B -S -c "
import sys, unittest
sys.path[:0] = ['/tests', '/app']
unittest.main(None, argv=['tests', 'discover', '-s', '/tests'])
"; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""

CONFIG = Config(
    schema_version=SCHEMA,
    artifacts=["/app"],
    verifier=Verifier(environment_mode="separate", timeout_sec=60.0),
    environment=Environment(workdir="/app", network_mode="no-network"),
)


def katas(
    split: Split = "train",
    count: int | None = None,
    seed: int = 0,
    levels: Sequence[Level] = LEVELS,
    prompt_styles: Sequence[PromptStyle] = PROMPT_STYLES,
    families: Sequence[str] = (),
    suite: Suite = "unittest",
    start: int = 0,
    invented: float = 0.0,
) -> Iterator[Task]:
    """Tasks number `start`, `start + 1`, ... of a stream; without `count` it never ends. `families` names a few.

    `invented` is the share of words, numbers and marks that come from beyond the lists.
    """
    chosen = choose_families(split, levels, families)
    if not prompt_styles:
        raise EtudeError("katas need at least one prompt style: terse, plain or detailed")
    stream = _Stream(split, seed, prompt_styles, suite, invented)
    order: list[Family] = []
    for index in itertools.count(start) if count is None else range(start, start + count):
        turn, place = divmod(index, len(chosen))
        if place == 0 or not order:
            # A new order in each turn: every family comes up once before any comes up twice.
            order = random.Random(f"{split}/{seed}/{turn}").sample(chosen, len(chosen))
        yield stream.kata(index, order[place])


def choose_families(split: Split, levels: Sequence[int] = LEVELS, names: Sequence[str] = ()) -> list[Family]:
    """The families that a split has at these levels."""
    for name in names:
        if name not in FAMILIES:
            raise EtudeError(f"no family of katas is called {name!r}; known: {', '.join(FAMILIES)}")
    of_split = [family for family in FAMILIES.values() if family.unseen == (split == "unseen")]
    chosen = [family for family in of_split if family.level in levels and (not names or family.name in names)]
    if not chosen:
        asked = ", ".join(names) if names else f"level {', '.join(map(str, levels))}"
        raise EtudeError(f"the split {split} has no family of katas for {asked}")
    return chosen


def write_katas(
    out: Path | str,
    split: Split = "train",
    count: int = 100,
    seed: int = 0,
    levels: Sequence[Level] = LEVELS,
    prompt_styles: Sequence[PromptStyle] = PROMPT_STYLES,
    families: Sequence[str] = (),
    suite: Suite = "unittest",
) -> list[Path]:
    """Writes tasks as directories below `out`, each under its own name, and returns where."""
    written: list[Path] = []
    with progress.track("writing katas", total=count, unit="tasks") as bar:
        for task in katas(split, count, seed, levels, prompt_styles, families, suite):
            target = Path(out) / task.name
            task.save(target)
            written.append(target)
            bar.advance(1)
    return written


def task_numbers(count: int, start: int) -> Iterable[int]:
    """From `start` on, up to a source's `count`; without end where that is 0."""
    return range(start, count) if count else itertools.count(start)


class Katas:
    """A task source: `use = "katas"`."""

    class Settings(pydantic.BaseModel, extra="forbid"):
        split: Split = Field(
            "train", description="train, held_out (same families, other values) or unseen (other families)"
        )
        count: int = Field(0, ge=0, description="tasks; 0 never ends")
        seed: int = Field(0, ge=0, description="other seeds give other tasks")
        levels: list[Level] = Field(
            [1], description="1 one expression, 2 a loop or branch, 3 two functions in two files"
        )
        prompt_styles: list[PromptStyle] = Field(
            list(PROMPT_STYLES), description="how instructions speak: terse, plain, detailed"
        )
        families: list[str] = Field([], description="only these families; empty is all")
        invented: float = Field(0.0, ge=0, le=1, description="share of words, numbers and marks from beyond the lists")

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        choose_families(settings.split, settings.levels, settings.families)  # a wrong name is said at once

    def tasks(self, start: int = 0) -> Iterator[Task]:
        """From task number `start` on, so that a resumed run goes on where it was."""
        settings = self.settings.model_dump() | {"count": self.settings.count - start if self.settings.count else None}
        return katas(**settings, start=start)


@dataclass(frozen=True)
class _Stream:
    """What all tasks of a stream have in common."""

    split: Split
    seed: int
    prompt_styles: Sequence[PromptStyle]
    suite: Suite
    invented: float

    def kata(self, index: int, family: Family) -> Task:
        for attempt in range(TRIES):
            rng = random.Random(f"{self.split}/{self.seed}/{index}/{attempt}/{family.name}")
            pick = Pick(rng, held_out=self.split != "train", invented=self.invented)
            try:
                repository = _repository(family, pick)
            except PoorDraw:
                continue
            prompt_style = self.prompt_styles[rng.randrange(len(self.prompt_styles))]
            facts = self.facts(repository, family, pick, prompt_style)
            name = f"{family.name}-{self.split}-{self.seed}-{index:06d}"
            return Task(name, instruct(repository, prompt_style, rng), CONFIG, facts, _files(repository))
        raise EtudeError(f"the family {family.name} gave no usable kata in {TRIES} draws; this is a bug of the family")

    def facts(self, repository: Repository, family: Family, pick: Pick, prompt_style: PromptStyle) -> Facts:
        return Facts(
            category="feature deletion",
            provenance=f"katas {VERSION}",
            family=family.name,
            level=family.level,
            seed=self.seed,
            split=self.split,
            prompt_style=prompt_style,
            suite=self.suite,
            fail_to_pass=_spelled(repository.fail_to_pass, self.suite),
            pass_to_pass=_spelled(repository.pass_to_pass, self.suite),
            held_out=_spelled(repository.held_out, self.suite),
            allowed_paths=[f"{repository.package}/*.py"],
            deleted=[f"{repository.package}/{hole.module}.py:{hole.function.name}" for hole in repository.holes],
            parameters={"names": pick.names, "values": pick.values, "choices": pick.choices},
        )


def _repository(family: Family, pick: Pick) -> Repository:
    """The target, and one or two other functions: mostly in modules of their own, sometimes in the target's."""
    rng = pick.rng
    target = family.make(pick)
    package = pick.word(PACKAGES)
    drawn = (pick.names[:], pick.values[:], pick.choices[:])
    companions = [other for other in rng.sample(EASY, 3) if other is not family]
    neighbour = family.level < 3 and rng.random() < NEIGHBOUR
    count = 2 if neighbour else 1 if family.level == 3 else rng.choice([1, 1, 2])
    others = [other.make(pick) for other in companions[:count]]
    if neighbour:
        others[0] = Draft(((target.modules[0][0], others[0].modules[0][1]),))
    # Companions draw names and values too, which say nothing about the target.
    pick.names, pick.values, pick.choices = drawn
    return build(package, target, others, rng)


def _files(repository: Repository) -> Files:
    """Everything in the task's directory but what says what it is."""
    found = repository.files.items()
    visible = {path.removeprefix("tests/"): data for path, data in found if path.startswith("tests/t")}
    files = {
        "environment/Dockerfile": DOCKERFILE,
        **{f"{WORKSPACE}/{path}": data for path, data in found},
        **{f"{TESTS}/{path}": data for path, data in {**visible, **repository.hidden}.items()},
        f"{TESTS}/Dockerfile": TESTS_DOCKERFILE,
        f"{TESTS}/test.sh": TEST_SH,
        **{f"{SOLUTION}/{path}": data for path, data in repository.whole.items()},
        "solution/solve.sh": solve_script("/app"),
    }
    return Files(files, {f"{TESTS}/test.sh": "executable", "solution/solve.sh": "executable"})


def _spelled(ids: Sequence[str], suite: Suite) -> list[str]:
    """Test ids as the suite spells them."""
    if suite == "unittest":
        return list(ids)
    return ["{}.py::{}::{}".format(*name.split(".")) for name in ids]
