"""A run directory: everything that a command made, readable by a person, and enough to resume it.

    recipe.toml     the resolved recipe
    run.json        lineages (one for each start or resume), stages, machine facts, versions
    metrics.jsonl   one row for each logged step, stamped with its lineage
    checkpoints/    <stage>-<step>, each committed by one atomic rename
    log             what happened, one line each

A command on an unfinished run continues it and opens a new lineage; with a changed recipe it is refused and
the keys are named. What a checkpoint holds and what a metric means is the business of whoever writes it; this
file knows neither torch nor any stage by name.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import os
import platform
import shlex
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Protocol

import tomli_w

from etude.core import durable
from etude.core.errors import EtudeError
from etude.core.run_files import (
    KIND,
    LOCK,
    as_toml,
    changed_keys,
    check_recipe,
    checkpoints_in,
    read_facts,
    read_recipe,
    stage_of_row,
)

PATIENCE = 0.5  # seconds: `in_use` holds the lock for an instant, and a killed process may take one to be gone
TYPED = "ETUDE_TYPED_COMMAND"  # environment variable of the processes that `etude run` starts
# A directory with no more than these never became a run. What may change while one goes on may be written before it.
EMPTY = {LOCK, "recipe.toml", "live.toml"}


class Listener(Protocol):
    """Somebody who hears of every row of metrics.jsonl after it is there, such as a sink."""

    problem: str  # a sentence about what went wrong, or nothing

    def put(self, row: dict[str, Any]) -> None: ...

    def close(self) -> None: ...


class Run:
    """An open run. One process at a time holds it; leave the `with` block to let it go."""

    def __init__(self, path: Path, recipe: dict[str, Any], facts: dict[str, Any], lock: int) -> None:
        self.path = path
        self.recipe = recipe  # plain data, as TOML gives it back
        self.lineage = len(facts["lineages"])
        self.stopping = False
        self._facts = facts
        self._lock = lock
        self._opened = False  # our lineage is written when we first make something
        self._begun: set[str] = set()  # stages that this command began or continued
        self._at_once = False
        self._signals: dict[signal.Signals, Any] = {}
        self._listen: Callable[[Run], Sequence[Listener]] | None = None
        self._listeners: Sequence[Listener] | None = None  # opened with the first row

    # Opening and closing

    @classmethod
    def open(
        cls,
        path: Path,
        recipe: dict[str, Any],
        *,
        fresh: bool = False,
        defaults: dict[str, Any] | None = None,
        may_change: Mapping[str, Sequence[str]] | None = None,
        listen: Callable[[Run], Sequence[Listener]] | None = None,
    ) -> Run:
        """The run at `path`, new or continued. `fresh` deletes what an earlier run left there.

        `defaults` are what settings were worth before there were any: a run may be older than one. `may_change` has the
        keys that a stage takes up anew when it is continued. `listen` opens those who hear of every row of metrics.
        """
        path = path.resolve()
        recipe = as_toml(recipe)
        try:
            path.mkdir(parents=True, exist_ok=True)
            if not _never_used(path):
                read_facts(path)  # a folder of somebody else's is refused before we leave as much as a lock in it
            lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except EtudeError as error:
            raise EtudeError(f"{error}; choose another folder with --run") from None
        except OSError as error:
            raise EtudeError(f"cannot use {path} as a run: {error.strerror}; choose another with --run") from error
        try:
            _take(lock, path)
            facts = _prepare(path, recipe, fresh, defaults, may_change)
            run = cls(path, recipe, facts, lock)
            run._listen = listen
            return run
        except BaseException:
            os.close(lock)
            raise

    def __enter__(self) -> Run:
        # Python lets the main thread alone set signal handlers.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._signals[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._signals.items():
            signal.signal(number, handler)
        self._signals.clear()
        if self._opened and error is not None:
            with contextlib.suppress(EtudeError):  # the disk may be full: the error on its way out matters more
                self.say(f"stopped by {kind.__name__ if kind else 'an error'}: {error}".rstrip(": "))
        for listener in self._listeners or ():
            listener.close()
            if listener.problem:
                print(f"{listener.problem}; metrics.jsonl has every row", file=sys.stderr)
        os.close(self._lock)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # The first Ctrl-C lets the step finish and save; the second means it.
        if self._at_once or (self.stopping and number == signal.SIGINT):
            raise KeyboardInterrupt
        self.stopping = True
        # os.write and not print: the signal may have interrupted a print that holds the stream's lock.
        os.write(2, b"\nstopping after this step; press Ctrl-C again to stop at once\n")

    @contextmanager
    def stop_at_once(self) -> Iterator[None]:
        """Inside, the first Ctrl-C already raises: for work that has nothing to save."""
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False

    # Stages

    def begin(self, stage: str, reads: Sequence[str] | None = None) -> None:
        """`stage` starts or continues. `reads` are the recipe keys its result depends on (None: all of them).

        A later command may change every key that no begun stage has read. What this command has begun stays begun.
        """
        if reads is None and stage in self._begun:
            return
        self._begun.add(stage)
        self._open_lineage()
        entry = self._facts["stages"].setdefault(stage, {"began": _now()})
        if reads is not None:
            entry["reads"] = list(reads)
        self._save_facts()
        self.say(f"{stage}: began" if self.latest(stage) is None else f"{stage}: continues")

    def go_back(self, stage: str) -> None:
        """This command goes on from the stage's newest checkpoint, as another command would: a new lineage."""
        self.lineage = len(self._facts["lineages"])
        self._opened = False
        self._open_lineage()
        self.say(f"{stage}: goes back to its newest checkpoint")

    def finish(self, stage: str, **facts: Any) -> None:
        """`stage` is complete; `facts` are what a person wants to know about it."""
        self._touch(stage)
        self._facts["stages"][stage].update(finished=_now(), facts=facts)
        self._save_facts()
        self.say(f"{stage}: finished")

    def finished(self, stage: str) -> bool:
        return "finished" in self._facts["stages"].get(stage, {})

    def facts(self, stage: str) -> dict[str, Any]:
        """What `finish` recorded."""
        found: dict[str, Any] = self._facts["stages"].get(stage, {}).get("facts", {})
        return found

    # Metrics and the log

    def log(self, stage: str, step: int, **values: float | int | str) -> None:
        """Append one row to metrics.jsonl. A number that is not finite becomes null.

        A stage may have several kinds of rows: those of `rl.eval` belong to `rl` and survive what its others survive.
        """
        self._touch(stage_of_row(stage))
        row: dict[str, Any] = {"lineage": self.lineage, "stage": stage, "step": step, "time": round(time.time(), 3)}
        row |= {name: _plain(value) for name, value in values.items()}
        durable.append_line(self.path / "metrics.jsonl", json.dumps(row))
        for listener in self._hearing():
            listener.put(row)

    def _hearing(self) -> Sequence[Listener]:
        if self._listeners is None:
            self._listeners = self._listen(self) if self._listen is not None else ()
        return self._listeners

    @property
    def id(self) -> str:
        """The same for every command on this run: from its name and the moment when it began."""
        began = f"{self.path} {self._facts['lineages'][0]['started']}"
        return f"{self.path.name}-{hashlib.sha256(began.encode()).hexdigest()[:8]}"

    def say(self, text: str) -> None:
        """Append one line to the log of the run."""
        durable.append_line(self.path / "log", f"{_now()} [{self.lineage}] {text}")

    # Checkpoints

    @contextmanager
    def checkpoint(self, stage: str, step: int) -> Iterator[Path]:
        """A temporary folder that becomes checkpoints/<stage>-<step> when the block succeeds, or vanishes.

        The rename is the commit: files and folders are on the disk before it, and older checkpoints are
        removed only after it.
        """
        self._touch(stage)
        final = self.path / "checkpoints" / f"{stage}-{step:07d}"
        try:
            with durable.commit_folder(final, stage=stage, step=step, lineage=self.lineage) as folder:
                yield folder
                # Rows up to this step are on the disk before the checkpoint that continues them.
                if (self.path / "metrics.jsonl").exists():
                    durable.sync(self.path / "metrics.jsonl")
        except durable.CannotSave as error:
            saved = self.checkpoints(stage)
            kept = f"{saved[-1].name} is intact" if saved else "there was none before it"
            raise EtudeError(
                f"could not save checkpoint {final.name} in {final.parent}: {error}; {kept}; "
                f"{'make room' if 'full' in str(error) else 'mend that'} and run the same command again"
            ) from error
        self.say(f"{stage}: checkpoint at step {step}")
        keep = max(1, int(self.recipe.get("run", {}).get("keep_checkpoints", 2)))
        # Only now that the new one is committed: a kill in between leaves one too many, never one too few.
        for old in self.checkpoints(stage)[:-keep]:
            durable.remove_folder(old)

    def checkpoints(self, stage: str) -> list[Path]:
        """Committed checkpoints of `stage`, oldest first."""
        return [path for name, _, path in checkpoints_in(self.path) if name == stage]

    def latest(self, stage: str) -> Path | None:
        """The newest committed checkpoint of `stage`, its files checked against the sizes they were written with."""
        found = self.checkpoints(stage)
        if found:
            durable.check_folder(found[-1])
        return found[-1] if found else None

    def step_of(self, path: Path) -> int:
        """The step in a checkpoint's name."""
        return int(path.name.rpartition("-")[2])

    # Inside

    def _touch(self, stage: str) -> None:
        if not self._opened or stage not in self._facts["stages"]:
            self.begin(stage)

    def _open_lineage(self) -> None:
        if self._opened:
            return
        # Rows past these steps are no part of this lineage's history; -1 keeps none of a stage's rows.
        resumed = {}
        for stage in self._facts["stages"]:
            if not self.finished(stage):
                saved = self.checkpoints(stage)
                resumed[stage] = self.step_of(saved[-1]) if saved else -1
        entry = {"lineage": self.lineage, "started": _now(), "resumed": resumed, "machine": machine_facts()}
        if self._facts["stages"]:
            entry["changed"] = changed_keys(read_recipe(self.path), self.recipe)
        self._facts["lineages"].append(entry)
        # A killed process may have left half a row.
        durable.cut_torn_line(self.path / "metrics.jsonl")
        durable.write_whole(self.path / "recipe.toml", tomli_w.dumps(self.recipe))
        self._opened = True
        self._save_facts()

    def _save_facts(self) -> None:
        durable.write_whole(self.path / "run.json", json.dumps(self._facts, indent=1))


# The directory


def typed_command() -> list[str]:
    """What the person typed; in a process of a stage it is handed down, since that one's own command is internal."""
    given = os.environ.get(TYPED)
    return shlex.split(given) if given else ["etude", *sys.argv[1:]]


def machine_facts() -> dict[str, Any]:
    """What the numbers of a run depend on, without importing any of it."""
    versions = {}
    for package in ("etude", "torch", "numpy", "safetensors", "tokenizers"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return {
        "system": platform.platform(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "versions": versions,
        "command": typed_command(),
    }


def _take(lock: int, path: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError:
            if time.monotonic() > deadline:
                holder = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
                raise EtudeError(
                    f"{path} is in use by another command (process {holder}); wait for it, or choose another --run"
                ) from None
            time.sleep(0.02)
    # For the sentence that another command shows while we hold the run.
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)


def _prepare(
    path: Path,
    recipe: dict[str, Any],
    fresh: bool,
    defaults: dict[str, Any] | None,
    may_change: Mapping[str, Sequence[str]] | None,
) -> dict[str, Any]:
    """run.json of the run to continue, or of a new one."""
    if _never_used(path):
        return _new_facts(path)
    facts = read_facts(path)
    if fresh or facts.get("clearing"):
        _clear(path)
        return _new_facts(path)
    check_recipe(path, facts, recipe, defaults, may_change)
    durable.sweep(path / "checkpoints")
    return facts


def _never_used(path: Path) -> bool:
    return all(entry.name in EMPTY or entry.name.endswith(".saving") for entry in path.iterdir())


def _new_facts(path: Path) -> dict[str, Any]:
    facts = {"kind": KIND, "lineages": [], "stages": {}}
    durable.write_whole(path / "run.json", json.dumps(facts, indent=1))
    return facts


def _clear(path: Path) -> None:
    """Delete what a run made. run.json says so first, so that a kill half-way is continued by the next command."""
    durable.write_whole(path / "run.json", json.dumps({"kind": KIND, "clearing": True, "lineages": [], "stages": {}}))
    for entry in path.iterdir():
        if entry.name in (LOCK, "run.json"):
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _plain(value: Any) -> float | int | str | None:
    if isinstance(value, str | bool | int):
        return value
    number = float(value)
    return number if math.isfinite(number) else None


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
