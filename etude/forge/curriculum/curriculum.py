"""A folder of tasks that keeps step with the policy: `use = "curriculum"`.

Each trained group tells how many of its rollouts passed, and at which step of training. A task that is solved nearly
always is asked again with less said about it, and retired when nothing is left to take away; one that is never solved
is asked with more said, and set aside when that does not help; what lies between is asked most. One that turns out to
be broken is put on the list beside it and not asked again. `bands` fixes which share of the asking goes to tasks that
are hard, in between and solved; from step `late` on those that took more turns and thinking are asked more often.
With `combine`, pairs of retired tasks become harder ones while the run goes on.
Which task a number got is kept in a small database, so a resumed run asks the same again, and so is every result, by
task and step.
"""

from __future__ import annotations

import math
import random
import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import pydantic
from pydantic import Field

from etude.audit.quarantine import quarantine
from etude.core.errors import EtudeError
from etude.forge.curriculum.composite_tasks import make_pair, pairs
from etude.forge.curriculum.sources import Folder
from etude.sandbox.hosts import StoringHost
from etude.tasks.format.config import PromptStyle, read
from etude.tasks.format.task import CONFIG, INSTRUCTION, Task, task_folders

HARDER = "harder"  # folder beside the database, of the tasks made while the run goes on
MOST_SAID: tuple[PromptStyle, ...] = tuple(reversed(get_args(PromptStyle)))  # detailed, plain, terse
State = Literal["open", "retired", "set aside", "quarantined"]
# As runs have them on disk: `register` is the prompt style, `heard` what groups came to.
_TABLES = """
CREATE TABLE IF NOT EXISTS asked (number INTEGER PRIMARY KEY, task TEXT NOT NULL, register TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS heard (
    number INTEGER PRIMARY KEY, step INTEGER NOT NULL, passed INTEGER NOT NULL, tried INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS effort (number INTEGER PRIMARY KEY, turns REAL NOT NULL, thinking REAL NOT NULL);
CREATE TABLE IF NOT EXISTS broken (task TEXT PRIMARY KEY, why TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS unfit (pair TEXT PRIMARY KEY, why TEXT NOT NULL);
"""


@dataclass(frozen=True)
class TaskResult:
    """What came of asking a task once."""

    number: int
    prompt_style: str
    step: int  # of the weights that were trained with it
    passed: int
    tried: int


@dataclass(frozen=True)
class Standing:
    """Where a task stands: whether it is asked at all, how, and what its rollouts in that style came to."""

    state: State
    prompt_style: str  # "" for a task that has only one instruction
    passed: int = 0
    tried: int = 0

    @property
    def share(self) -> float:
        """Of its rollouts that passed."""
        return self.passed / max(1, self.tried)

    @property
    def worth(self) -> float:
        """How much a group is likely to teach: most where half of it passes, nothing where all or none would."""
        # One pass and one failure are added, so that a fresh task counts as even.
        share = (self.passed + 1) / (self.tried + 2)
        return share * (1 - share)


class Curriculum:
    """Task directories, chosen by how hard they are now."""

    class Settings(pydantic.BaseModel, extra="forbid"):
        path: str = Field(description="folder whose folders are tasks, or have such folders")
        count: int = Field(0, ge=0, description="tasks; 0 is all")
        uses: int = Field(4, ge=1, description="how often one task may be asked")
        retire: float = Field(0.9, gt=0, le=1, description="share of passes above which a task is too easy")
        patience: int = Field(2, ge=1, description="groups without a single pass before more is said")
        begin: Literal["", "terse", "plain", "detailed"] = Field(
            "", description="prompt style that tasks are asked in first; empty is what each came with"
        )
        bands: list[float] = Field(
            [],
            description="shares of hard, trainable and solved tasks, such as [0.08, 0.9, 0.02]; empty: by worth alone",
        )
        band_edges: tuple[float, float] = Field(
            (0.1, 0.8), description="pass rates up to which a task is hard, and from which on it is solved"
        )
        late: int = Field(0, ge=0, description="step from which on long tasks are asked more often; 0: never")
        harder: float = Field(2.0, ge=0, description="then, how many times more often the longest than the shortest")
        combine: int = Field(
            0, ge=0, description="harder tasks made out of pairs of retired ones while the run goes on; 0 makes none"
        )
        longest: int = Field(0, ge=0, description="characters of an instruction that is asked at all; 0 is no limit")
        seed: int = Field(0, ge=0, description="another seed chooses in another order")
        split: Literal["", "train", "held_out"] = Field("", description="as for folder: in training it is train")

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        if settings.bands and (len(settings.bands) != 3 or min(settings.bands) < 0 or not sum(settings.bands)):
            raise EtudeError("bands are three shares: of hard, trainable and solved tasks, such as [0.08, 0.9, 0.02]")
        folder = Folder(Folder.Settings(path=settings.path, count=settings.count, split=settings.split))
        root = Path(settings.path).expanduser()
        self._paths = {path.relative_to(root).as_posix(): path for path in (*folder.found, *folder.aside)}
        ladders = {name: _ladder(path, settings) for name, path in self._paths.items()}
        self._ladders = {name: ladder for name, ladder in ladders.items() if ladder is not None}
        self._listed = {name for name, path in self._paths.items() if path in folder.aside}
        if not self._ladders.keys() - self._listed:
            raise EtudeError(f"every instruction in {root} is longer than longest = {settings.longest} characters")
        self._base = _open(":memory:")
        self._without_pair: list[str] = []  # retired tasks of which no pair is left to try
        self._made: Path | None = None  # folder of harder tasks; None: nothing is remembered, so none are made

    def remember(self, path: Path) -> None:
        """Keeps what is asked and heard in this file, and goes on from what it holds."""
        self._base.close()
        self._base = _open(str(path))
        self._made = path.parent / HARDER
        for made in task_folders(self._made) if self._made.is_dir() else ():
            self._add(made)

    async def make_harder(self, host: StoringHost) -> str:
        """Two retired tasks of one repository as one. A pair that makes none is not tried again."""
        names = [name for name in self._paths if name.startswith(f"{HARDER}/")]
        if self._made is None or len(names) >= self.settings.combine:
            return ""
        # A combined task is not combined again: three pieces in one prompt are past what a context holds.
        solved = [n for n, s in self.standings().items() if s.state == "retired" and n not in names]
        if solved == self._without_pair:
            return ""
        retired = [Task.load(self._paths[name]) for name in solved]
        unfit = {pair for (pair,) in self._base.execute("SELECT pair FROM unfit")}
        for first, second in pairs(retired):
            name = f"{first.name}--{second.name}"
            if name in unfit or f"{HARDER}/{name}" in self._paths:
                continue
            if why := await make_pair(first, second, self._made / name, host):
                self._base.execute("INSERT OR REPLACE INTO unfit VALUES (?, ?)", (name, why))
                return f"{first.name} and {second.name} make no harder task: {why}"
            self._add(self._made / name)
            return f"made the harder task {name} out of two that are solved"
        self._without_pair = solved
        return ""

    def _add(self, path: Path) -> None:
        name = f"{HARDER}/{path.name}"
        self._paths[name] = path
        if (ladder := _ladder(path, self.settings)) is not None:
            self._ladders[name] = ladder

    def tasks(self, start: int = 0) -> Iterator[Task]:
        number = start
        while (asked := self._asked(number) or self._choose(number)) is not None:
            yield self._worded(*asked)
            number += 1

    def heard(self, number: int, passed: int, tried: int, step: int) -> None:
        """A group was trained. Called twice, as after a resume, the later call counts."""
        self._base.execute("INSERT OR REPLACE INTO heard VALUES (?, ?, ?, ?)", (number, step, passed, tried))

    def rewind(self, step: int, number: int) -> None:
        """Forgets results after `step` and choices from `number` on, of which the run's checkpoint knows nothing."""
        self._base.execute("DELETE FROM heard WHERE step > ?", (step,))
        self._base.execute("DELETE FROM asked WHERE number >= ?", (number,))
        self._base.execute("DELETE FROM effort WHERE number NOT IN (SELECT number FROM heard)")

    def effort(self, number: int, turns: float, thinking: float) -> None:
        """What a rollout of that group took on average."""
        self._base.execute("INSERT OR REPLACE INTO effort VALUES (?, ?, ?)", (number, turns, thinking))

    def broken(self, number: int, why: str) -> bool:
        """Nobody could solve the task that this number got: it is not asked again. False where that was known."""
        (name, _) = self._asked(number) or ("", "")
        if not name or name in self._broken():
            return False
        self._base.execute("INSERT INTO broken VALUES (?, ?)", (name, why))
        with suppress(EtudeError):  # tasks that somebody else owns: this run knows it all the same
            quarantine(self._paths[name], why)
        return True

    def results(self) -> dict[str, list[TaskResult]]:
        """Everything heard, by task, in the order of asking."""
        found: dict[str, list[TaskResult]] = defaultdict(list)
        for name, *facts in self._base.execute(
            "SELECT task, number, register, step, passed, tried FROM asked JOIN heard USING (number) ORDER BY number"
        ):
            found[name].append(TaskResult(*facts))
        return dict(found)

    def standings(self) -> dict[str, Standing]:
        results, broken = self.results(), self._broken()
        return {
            name: Standing("quarantined", prompt_style)
            if name in broken
            else self._standing(name, results.get(name, ()))
            for name, (_, prompt_style) in self._ladders.items()
        }

    def _broken(self) -> set[str]:
        return self._listed.union(name for (name,) in self._base.execute("SELECT task FROM broken"))

    def _standing(self, name: str, results: Sequence[TaskResult]) -> Standing:
        """Where its results have brought a task: a walk along the prompt styles, each of them taken once."""
        ladder, prompt_style = self._ladders[name]
        seen = {prompt_style}
        passed = tried = groups = 0
        for result in results:
            passed, tried, groups = passed + result.passed, tried + result.tried, groups + 1
            easy = passed > self.settings.retire * tried
            if not easy and (passed or groups < self.settings.patience):
                continue
            step = 1 if easy else -1
            at = ladder.index(prompt_style) + step if prompt_style in ladder else -1
            if not 0 <= at < len(ladder) or ladder[at] in seen:
                return Standing("retired" if easy else "set aside", prompt_style, passed, tried)
            prompt_style = ladder[at]
            seen.add(prompt_style)
            passed = tried = groups = 0
        return Standing("open", prompt_style, passed, tried)

    def _choose(self, number: int) -> tuple[str, str] | None:
        asked: dict[str, int] = defaultdict(int)
        for (name,) in self._base.execute("SELECT task FROM asked"):
            asked[name] += 1
        heard = self.results()
        open_ones = {
            name: standing
            for name, standing in self.standings().items()
            if standing.state == "open" and asked[name] < self.settings.uses
        }
        # one that is being tried at this moment waits until its result is in, if there are others
        free = {n: s for n, s in open_ones.items() if asked[n] == len(heard.get(n, ()))} or open_ones
        if not free:
            return None
        # "supply" is what this source was called: another word would draw other tasks in runs that go on.
        rng = random.Random(f"supply/{self.settings.seed}/{number}")
        names = sorted(free)
        (name,) = rng.choices(names, self._weights({name: free[name] for name in names}))
        chosen = (name, free[name].prompt_style)
        self._base.execute("INSERT INTO asked VALUES (?, ?, ?)", (number, *chosen))
        return chosen

    def _weights(self, standings: dict[str, Standing]) -> list[float]:
        """How likely each of these is to be asked next, in their order."""
        weights = {name: standing.worth for name, standing in standings.items()}
        if self.settings.late:
            (step,) = self._base.execute("SELECT coalesce(max(step), 0) FROM heard").fetchone()
            if step >= self.settings.late:
                ranks = self._ranks(list(standings))
                weights = {name: weight * (1 + self.settings.harder * ranks[name]) for name, weight in weights.items()}
        if self.settings.bands:
            low, high = self.settings.band_edges
            band = {n: 1 if not s.tried else int(s.share > low) + int(s.share >= high) for n, s in standings.items()}
            totals = [sum(weights[name] for name in band if band[name] == each) for each in range(3)]
            # A band without a task leaves its share to the others.
            weights = {n: w * self.settings.bands[band[n]] / totals[band[n]] for n, w in weights.items()}
            if not any(weights.values()):
                return [1.0] * len(weights)
        return list(weights.values())

    def _ranks(self, names: Sequence[str]) -> dict[str, float]:
        """From 0 for the task that took least turns and thinking to 1 for the one that took most; unknown is 0.5."""
        took: dict[str, float] = dict(
            self._base.execute(
                # A turn counts as much as a hundred tokens of thinking: our choice, nothing about it is published.
                "SELECT task, avg(turns * 100 + thinking) FROM asked JOIN effort USING (number) GROUP BY task"
            )
        )
        known = sorted((name for name in names if name in took), key=lambda name: took[name])
        places = {name: place / max(1, len(known) - 1) for place, name in enumerate(known)}
        return {name: places.get(name, 0.5) for name in names}

    def _asked(self, number: int) -> tuple[str, str] | None:
        found = self._base.execute("SELECT task, register FROM asked WHERE number = ?", (number,)).fetchone()
        if found is not None and found[0] not in self._paths:
            raise EtudeError(f"the task {found[0]}, which this run was asking, is gone from {self.settings.path}")
        return found and (str(found[0]), str(found[1]))

    def _worded(self, name: str, prompt_style: str) -> Task:
        task = Task.load(self._paths[name])
        return task.worded(prompt_style) if prompt_style else task


def _ladder(path: Path, settings: Curriculum.Settings) -> tuple[list[str], str] | None:
    """The prompt styles that a task can be asked in, the one that says most first, and where it begins.

    None for a task that cannot be said in so few characters.
    """
    worded: dict[str, Path] = {each: path / "instructions" / f"{each}.md" for each in MOST_SAID}
    there = {each: file for each, file in worded.items() if file.is_file()} or {"": path / INSTRUCTION}
    longest = settings.longest or math.inf
    ladder: list[str] = [each for each, file in there.items() if len(file.read_text(errors="replace")) <= longest]
    if not ladder:
        return None
    _, facts = read((path / CONFIG).read_bytes(), str(path / CONFIG))
    first = settings.begin or facts.prompt_style or ""
    return ladder, first if first in ladder else ladder[0]


def _open(path: str) -> sqlite3.Connection:
    try:
        base = sqlite3.connect(path, isolation_level=None)
        base.executescript(_TABLES)
    except sqlite3.Error as error:
        raise EtudeError(f"the record of tasks {path} cannot be used ({error}); start over with --fresh") from error
    return base
