"""Many arms side by side on a machine with more cores than one arm needs: by priority, until a deadline.

Each arm and seed, and each base, is a process of its own on cores of its own (two, as on a laptop), with its own run
folder and log. Nothing is begun that would not end before the deadline; what is then under way has a grace to end in.
Every result is written when it is there, and all of them again as one file, so that little has to be brought back.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from etude.bench.studies.bases import OF_MACHINE, Places, missing_bases
from etude.bench.studies.study import ArmResult, Base, Size, StudyFolder, write_result
from etude.core.durable import write_whole
from etude.core.errors import EtudeError

ALL = "results.json"  # every result of the folder in one file
LOGS = "logs"
CORES = 2  # of one arm
PAUSE = 0.5  # seconds between looks at the processes
LAST_SECONDS = 20.0  # for a process that was told to end
LINES = 15  # of a failed arm's log that are said


@dataclass(frozen=True)
class Job:
    """One arm under one seed."""

    study: StudyFolder
    arm: str
    seed: int
    size: Size = "cpu"

    @property
    def name(self) -> str:
        return f"{self.study.name}-{self.arm}-{self.seed}"

    @property
    def bases(self) -> tuple[Base, ...]:
        return self.study.arms(self.size)[self.arm].bases

    def words(self, runs: Path, results: Path, base: str = "") -> list[str]:
        chosen = [self.study.name, "--arm", self.arm, "--seed", str(self.seed), "--size", self.size]
        place = ["--runs", str(runs), "--studies", str(self.study.path.parent)]
        end = ["--base", base] if base else ["--results", str(results), "--json"]
        return ["study", "run", *chosen, *place, *end]


@dataclass
class _Running:
    process: subprocess.Popen[bytes]
    slot: int  # -1: a base that has no slot of an arm
    began: float
    job: Job | None = None  # None: a base
    base: str = ""


@dataclass
class Summary:
    """What became of the jobs."""

    done: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)  # ended at the deadline
    left: list[str] = field(default_factory=list)  # never begun


@dataclass(frozen=True)
class Bases:
    """How models that arms start from are made."""

    at_once: int = 0  # beside the arms, on all cores; 0: in the place of an arm, on its cores
    changes: Sequence[str] = ()  # settings of the machine, such as run.device=cuda
    slower: float = 1.0  # as of run_many; a GPU makes them several times as fast

    def __post_init__(self) -> None:
        for change in self.changes:
            if not change.startswith(OF_MACHINE):
                raise EtudeError(f"{change} would make another base; set only {', '.join(OF_MACHINE)}")


def run_many(
    jobs: Sequence[Job],
    runs: Path,
    results: Path,
    *,
    slots: int,
    seconds: float,
    grace: float = 60.0,
    slower: float = 1.0,
    changes: Sequence[str] = (),
    bases: Bases | None = None,
    say: Callable[[str], None] = print,
) -> Summary:
    """Runs the jobs in their order, `slots` at a time, for so many `seconds`; `slower` multiplies their minutes."""
    waiting = [job for job in jobs if not _result(results, job).is_file()]
    (results / LOGS).mkdir(parents=True, exist_ok=True)
    runs.mkdir(parents=True, exist_ok=True)
    deadline, bases = time.monotonic() + seconds, bases or Bases(slower=slower)
    many = _Many(waiting, runs, results, list(range(slots)), deadline, slower, tuple(changes), bases, say)
    try:
        while many.waiting or many.running:
            many.hear()
            if time.monotonic() > deadline + grace:
                break
            many.begin()
            if not many.running:  # nothing fits any more
                break
            time.sleep(PAUSE)
    finally:  # Ctrl-C, too: sessions of their own hear of nothing
        many.end()
    found = many.summary
    found.left = [job.name for job in many.waiting]
    say(f"{len(found.done)} done, {len(found.failed)} failed, {len(found.late)} late, {len(found.left)} left")
    return found


@dataclass
class _Many:
    """What waits and what runs."""

    waiting: list[Job]
    runs: Path
    results: Path
    free: list[int]  # slots
    deadline: float
    slower: float
    changes: tuple[str, ...]
    bases: Bases
    say: Callable[[str], None]
    running: list[_Running] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)  # bases that could not be made
    summary: Summary = field(default_factory=Summary)

    def begin(self) -> None:
        """Begins what is ready: a job whose bases are there, or the base that one waits for."""
        for job in list(self.waiting):
            if not self.free and not self._base_slot():
                return
            places = Places(self.runs, job.seed, job.study.path)
            wanted = missing_bases(job.bases, places, self.changes)
            if bad := [base.name for base in wanted if str(places.base(base)) in self.broken]:
                self.waiting.remove(job)
                self.summary.failed.append(job.name)
                self.say(f"{job.name}: left out, its base {bad[0]} could not be made")
                continue
            takes = self.slower * job.study.minutes(job.size, job.arm)
            takes += self.bases.slower * sum(base.minutes for base in wanted)
            if time.monotonic() + 60 * takes > self.deadline:
                continue  # a shorter one may fit
            if wanted:
                self._begin_base(wanted, places, job)
            elif self.free:
                self.waiting.remove(job)
                log = self.results / LOGS / f"{job.name}.log"
                self._start(self.free.pop(0), job.words(self.runs, self.results), log, self.changes, job=job)
                self.say(f"{job.name}: begun")

    def _base_slot(self) -> bool:
        """Whether a base may begin now."""
        under_way = sum(each.job is None for each in self.running)
        return under_way < self.bases.at_once if self.bases.at_once else bool(self.free)

    def _begin_base(self, wanted: Sequence[Base], places: Places, job: Job) -> None:
        first = wanted[0]  # what the others start from comes first
        target = places.base(first)
        if not self._base_slot() or str(target) in {each.base for each in self.running}:
            return
        slot = -1 if self.bases.at_once else self.free.pop(0)
        words = job.words(self.runs, self.results, base=first.name)
        log = self.results / LOGS / f"{target.name}.log"
        self._start(slot, words, log, (*self.changes, *self.bases.changes), base=str(target))
        self.say(f"{target.name}: begun, for {job.name}")

    def _start(
        self, slot: int, words: Sequence[str], log: Path, changes: Sequence[str], job: Job | None = None, base: str = ""
    ) -> None:
        given = [word for change in changes for word in ("--set", change)]
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "etude", *words, *given],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
        # Before the process has started a thread: what it starts later has the same cores, sandboxes too.
        if slot >= 0 and (cores := _cores(slot)):
            os.sched_setaffinity(process.pid, cores)
        self.running.append(_Running(process, slot, time.monotonic(), job, base))

    def hear(self) -> None:
        """Takes what has ended out of what runs, and books it."""
        for each in [each for each in self.running if each.process.poll() is not None]:
            self.running.remove(each)
            if each.slot >= 0:
                self.free.append(each.slot)
            self._ended(each)

    def _ended(self, each: _Running) -> None:
        minutes = (time.monotonic() - each.began) / 60
        if each.job is None:
            if each.process.returncode:
                self.broken.add(each.base)
            self.say(
                f"{Path(each.base).name}: {'failed' if each.process.returncode else 'made'} in {minutes:.1f} minutes"
            )
            if each.process.returncode:
                self.say(_tail(self.results / LOGS / f"{Path(each.base).name}.log"))
            return
        good = each.process.returncode == 0 and _result(self.results, each.job).is_file()
        (self.summary.done if good else self.summary.failed).append(each.job.name)
        self.say(f"{each.job.name}: {'done' if good else 'failed'} in {minutes:.1f} minutes")
        if good:
            collect(self.results)
        else:
            self.say(_tail(self.results / LOGS / f"{each.job.name}.log"))

    def end(self) -> None:
        """Ends what is still under way, with everything that it started: its session is its own."""
        for each in self.running:
            end_session(each.process)
        for each in self.running:
            wait_or_kill(each.process)
            name = each.job.name if each.job else Path(each.base).name
            if each.job and _result(self.results, each.job).is_file():
                self.summary.done.append(name)  # just before it was told to end
                continue
            self.summary.late.append(name)
            self.say(f"{name}: ended at the deadline; its run stays and goes on with the next command")
        collect(self.results)


def end_session(process: subprocess.Popen[bytes]) -> None:
    """Tells a process and all that it started to end, unless it has been heard of: its number may be another's then."""
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGTERM)


def wait_or_kill(process: subprocess.Popen[bytes]) -> None:
    """Until it has ended, or by force."""
    try:
        process.wait(LAST_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(LAST_SECONDS)


def _cores(slot: int) -> set[int]:
    """The cores of a slot; none where the machine has fewer than the slots want, or no way to say so."""
    if not hasattr(os, "sched_getaffinity"):
        return set()
    mine = sorted(os.sched_getaffinity(0))
    return set(mine[CORES * slot : CORES * (slot + 1)]) if len(mine) >= CORES * (slot + 1) else set()


def _tail(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").replace("\r", "\n").splitlines()
    except OSError as error:
        return f"  {log} cannot be read: {error.strerror}"
    return "\n".join(f"  {line}" for line in lines[-LINES:])


def _result(results: Path, job: Job) -> Path:
    return results / job.study.result_file(job.size, job.arm, job.seed).relative_to(job.study.path.parent)


def collect(results: Path) -> Path:
    """All results below the folder as one file of {path: result}."""
    files = sorted(path for path in results.glob("*/results*/*.json"))
    found = {str(path.relative_to(results)): json.loads(path.read_text()) for path in files}
    write_whole(results / ALL, json.dumps(found) + "\n")
    return results / ALL


def spread(file: Path, root: Path) -> list[Path]:
    """Writes the results of such a file into the studies' folders; which."""
    try:
        found = json.loads(file.read_text())
        results = {str(path): ArmResult(**values) for path, values in found.items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise EtudeError(f"{file} is no file of results that `etude study run --results` wrote: {error}") from None
    written = []
    for name, result in results.items():
        parts = Path(name).parts
        known = len(parts) == 3 and (root / parts[0] / "study.py").is_file() and parts[1] in ("results", "results-h200")
        if not known or parts[2] != f"{result.arm}-{result.seed}.json":
            raise EtudeError(f"{file} has a result {name!r}, which belongs to no study of {root}")
        write_result(root / name, result)
        written.append(root / name)
    return written
