"""Models that arms start from: each made once for a seed, in a folder small enough to carry, and shared by studies.

The folder `base-NAME-SEED` has `model/` (without the optimiser's state), the run's `demos.jsonl` where it made some,
and `base.json`, which says how, and what its stages logged last. Two commands that need the same one wait for each
other.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from etude.bench.run_results import is_number
from etude.bench.studies.study import Base, Words, fill
from etude.core.durable import write_whole
from etude.core.errors import EtudeError
from etude.core.run_files import checkpoints_in, read_metrics

FACTS = "base.json"  # written last: a folder with it is whole
NOT_CARRIED = ("optimiser.safetensors", "learner.json", "checkpoint.json")  # the last lists the others
DEMOS = "demos.jsonl"
WAIT = 3600.0  # seconds for another command that makes the same base
PAUSE = 1.0
OF_MACHINE = ("run.device=", "run.threads=", "run.compute.")  # where a base was computed, and nothing of what it is


@dataclass(frozen=True)
class Places:
    """Where a command's words point to."""

    runs: Path
    seed: int
    study: Path = Path()  # {study}: the folder of the study, for components of its own

    def base(self, base: Base) -> Path:
        return self.runs / (f"base-{base.name}-{self.seed}" if base.seeded else f"base-{base.name}")

    def words(self, run: Path, bases: Sequence[Base]) -> dict[str, object]:
        fixed = {"run": run, "arm": run.parent, "seed": self.seed, "study": self.study.resolve()}
        return fixed | {base.name: self.base(base) for base in bases}


def is_made(base: Base, places: Places, changes: Sequence[str] = ()) -> bool:
    """Whether the base is there, made by the commands that it has now, as they are or with these changes.

    One that was made smaller to try a study is none that a result may start from; one that another device made is.
    """
    try:
        facts = json.loads((places.base(base) / FACTS).read_text())
    except (OSError, ValueError):
        return False
    if not isinstance(facts, dict) or facts.get("commands") != _plain(base, places):
        return False
    made = [change for change in facts.get("changes", []) if not str(change).startswith(OF_MACHINE)]
    return made in ([], [change for change in changes if not change.startswith(OF_MACHINE)])


def missing_bases(bases: Sequence[Base], places: Places, changes: Sequence[str] = ()) -> list[Base]:
    """Those that have to be made, what they start from first."""
    found: list[Base] = []
    for base in bases:
        if not is_made(base, places, changes):
            found += [each for each in (*missing_bases(base.needs, places, changes), base) if each not in found]
    return found


def with_needs(bases: Sequence[Base]) -> list[Base]:
    """They and all that they start from, each once."""
    found: list[Base] = []
    for base in bases:
        found += [each for each in (*with_needs(base.needs), base) if each not in found]
    return found


def make_base(base: Base, places: Places, execute: Callable[[Sequence[str]], int], changes: Sequence[str] = ()) -> Path:
    """Makes the base unless it is there, with settings changed to try it smaller; its folder."""
    target = places.base(base)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _only_one(target.with_name(f"{target.name}.lock")):
        if is_made(base, places, changes):
            return target
        for need in base.needs:
            make_base(need, places, execute, changes)
        run, began = target.with_name(f"{target.name}.run"), time.monotonic()
        seed = places if base.seeded else replace(places, seed=0)
        run_commands(base.commands, run, seed, base.needs, execute, changes)
        saved = [folder for stage, _, folder in checkpoints_in(run) if stage == base.stage]
        if not saved:
            raise EtudeError(f"{run} has no checkpoint of {base.stage}, which the base {base.name} is to be")
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(saved[-1], target / "model", ignore=shutil.ignore_patterns(*NOT_CARRIED))
        if (run / DEMOS).is_file():
            shutil.copy2(run / DEMOS, target / DEMOS)
        facts: dict[str, Any] = {"seconds": round(time.monotonic() - began, 1), "date": time.strftime("%Y-%m-%d")}
        facts["ends"] = _ends(run)
        made = {"commands": _plain(base, places), "changes": list(changes)}
        write_whole(target / FACTS, json.dumps(facts | made, indent=1) + "\n")
        shutil.rmtree(run, ignore_errors=True)
    return target


def _ends(run: Path) -> dict[str, dict[str, float]]:
    """What each stage of the run logged last, by name: the run is thrown away, and its losses with it."""
    found: dict[str, dict[str, float]] = {}
    for row in read_metrics(run):
        numbers = {name: value for name, value in row.items() if is_number(value)}
        found.setdefault(row["stage"], {}).update(numbers)
    return found


def run_commands(
    commands: Sequence[Words],
    run: Path,
    places: Places,
    bases: Sequence[Base],
    execute: Callable[[Sequence[str]], int],
    changes: Sequence[str] = (),
) -> list[list[str]]:
    """Each command in its turn, as it was run; the first that fails ends it."""
    done = []
    for command in commands:
        words = fill(command, places.words(run, bases))
        words = _changed(words, changes)
        if status := execute(words):
            raise EtudeError(f"`etude {' '.join(words)}` ended with status {status}; run the study again")
        done.append(words)
    return done


def _changed(words: list[str], changes: Sequence[str]) -> list[str]:
    """The command with settings added where its own end: before its options."""
    end = next((place for place, word in enumerate(words) if word.startswith("--")), len(words))
    return words if words[0] == "tasks" else [*words[:end], *changes, *words[end:]]


def _plain(base: Base, places: Places) -> list[list[str]]:
    """Its commands without folders of this machine."""
    seed = places.seed if base.seeded else 0
    names = {"run": "RUN", "seed": seed} | {need.name: need.name for need in base.needs}
    return [fill(command, names) for command in base.commands]


@contextmanager
def _only_one(lock: Path) -> Iterator[None]:
    deadline = time.monotonic() + WAIT
    with lock.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise EtudeError(f"another command has held {lock} for {WAIT / 60:.0f} minutes; end it") from None
                time.sleep(PAUSE)
        yield
