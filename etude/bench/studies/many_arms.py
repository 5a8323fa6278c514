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

from etude.bench.studies.bases import Places, is_made, missing_bases
from etude.bench.studies.study import ArmResult, Base, Size, StudyFolder, write_result
from etude.core.durable import write_whole
from etude.core.errors import EtudeError

ALL = "results.json"  # every result of the folder in one file
LOGS = "logs"
CORES = 2  # of one arm
PAUSE = 0.5  # seconds between looks at the processes
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

    def words(self, runs: Path, results: Path, bases_only: bool = False) -> list[str]:
        chosen = [self.study.name, "--arm", self.arm, "--seed", str(self.seed), "--size", self.size]
        place = ["--runs", str(runs), "--studies", str(self.study.path.parent)]
        end = ["--bases-only"] if bases_only else ["--results", str(results), "--json"]
        return ["study", "run", *chosen, *place, *end]


@dataclass
class _Running:
    process: subprocess.Popen[bytes]
    slot: int
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
    say: Callable[[str], None] = print,
) -> Summary:
    """Runs the jobs in their order, `slots` at a time, for so many `seconds`; `slower` multiplies their minutes."""
    deadline, summary = time.monotonic() + seconds, Summary()
    waiting = [job for job in jobs if not _result(results, job).is_file()]
    free, running = list(range(slots)), list[_Running]()
    broken: set[str] = set()  # bases that could not be made
    (results / LOGS).mkdir(parents=True, exist_ok=True)
    runs.mkdir(parents=True, exist_ok=True)
    try:
        while waiting or running:
            for each in [each for each in running if each.process.poll() is not None]:
                running.remove(each)
                free.append(each.slot)
                _ended(each, results, summary, broken, say)
            if time.monotonic() > deadline + grace:
                break
            _begin(waiting, running, free, broken, deadline, slower, runs, results, changes, summary, say)
            if not running:  # nothing fits any more
                break
            time.sleep(PAUSE)
    finally:  # Ctrl-C, too: sessions of their own hear of nothing
        _end(running, summary, say)
    summary.left = [job.name for job in waiting]
    say(f"{len(summary.done)} done, {len(summary.failed)} failed, {len(summary.late)} late, {len(summary.left)} left")
    return summary


def _begin(
    waiting: list[Job],
    running: list[_Running],
    free: list[int],
    broken: set[str],
    deadline: float,
    slower: float,
    runs: Path,
    results: Path,
    changes: Sequence[str],
    summary: Summary,
    say: Callable[[str], None],
) -> None:
    """Fills the free slots with what is ready: a job whose bases are there, or the base that one waits for."""
    for job in list(waiting):
        if not free:
            return
        places = Places(runs, job.seed, job.study.path)
        wanted = missing_bases(job.bases, places, changes)
        if bad := [base.name for base in wanted if str(places.base(base)) in broken]:
            waiting.remove(job)
            summary.failed.append(job.name)
            say(f"{job.name}: left out, its base {bad[0]} could not be made")
            continue
        takes = job.study.minutes(job.size, job.arm) + sum(base.minutes for base in wanted)
        if time.monotonic() + 60 * slower * takes > deadline:
            continue  # a shorter one may fit
        if not wanted:
            waiting.remove(job)
            _start(running, free, job.words(runs, results), results / LOGS / f"{job.name}.log", changes, job=job)
            say(f"{job.name}: begun")
            continue
        first = next(base for base in wanted if all(is_made(need, places, changes) for need in base.needs))
        target = str(places.base(first))
        if target not in {each.base for each in running}:
            log = results / LOGS / f"{places.base(first).name}.log"
            _start(running, free, job.words(runs, results, bases_only=True), log, changes, base=target)
            say(f"{places.base(first).name}: begun, for {job.name}")


def _start(
    running: list[_Running],
    free: list[int],
    words: Sequence[str],
    log: Path,
    changes: Sequence[str],
    job: Job | None = None,
    base: str = "",
) -> None:
    slot = free.pop(0)
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
    if cores := _cores(slot):
        os.sched_setaffinity(process.pid, cores)
    running.append(_Running(process, slot, time.monotonic(), job, base))


def _cores(slot: int) -> set[int]:
    """The cores of a slot; none where the machine has fewer than the slots want, or no way to say so."""
    if not hasattr(os, "sched_getaffinity"):
        return set()
    mine = sorted(os.sched_getaffinity(0))
    return set(mine[CORES * slot : CORES * (slot + 1)]) if len(mine) >= CORES * (slot + 1) else set()


def _ended(each: _Running, results: Path, summary: Summary, broken: set[str], say: Callable[[str], None]) -> None:
    minutes = (time.monotonic() - each.began) / 60
    if each.job is None:
        if each.process.returncode:
            broken.add(each.base)
        say(f"{Path(each.base).name}: {'failed' if each.process.returncode else 'made'} in {minutes:.1f} minutes")
        if each.process.returncode:
            say(_tail(results / LOGS / f"{Path(each.base).name}.log"))
        return
    good = each.process.returncode == 0 and _result(results, each.job).is_file()
    (summary.done if good else summary.failed).append(each.job.name)
    say(f"{each.job.name}: {'done' if good else 'failed'} in {minutes:.1f} minutes")
    if good:
        collect(results)
    else:
        say(_tail(results / LOGS / f"{each.job.name}.log"))


def _end(running: Sequence[_Running], summary: Summary, say: Callable[[str], None]) -> None:
    """Ends what is still under way, with everything that it started: its session is its own."""
    for each in running:
        os.killpg(each.process.pid, signal.SIGTERM)
    for each in running:
        try:
            each.process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(each.process.pid, signal.SIGKILL)
            each.process.wait(20)
        name = each.job.name if each.job else Path(each.base).name
        summary.late.append(name)
        say(f"{name}: ended at the deadline; its run stays and goes on with the next command")


def _tail(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").replace("\r", "\n").splitlines()
    except OSError as error:
        return f"  {log} cannot be read: {error.strerror}"
    return "\n".join(f"  {line}" for line in lines[-LINES:])


def _result(results: Path, job: Job) -> Path:
    return results / job.study.result_file(job.size, job.arm, job.seed).relative_to(job.study.path.parent)


def collect(results: Path) -> Path:
    """All results below the folder as one file of {path: result}, with the ends of the logs of those that failed."""
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
