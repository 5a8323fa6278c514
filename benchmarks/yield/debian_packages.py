"""How many packages that nobody has tried give tasks: thirty drawn by a seed from Debian's list of python3-* names.

    python benchmarks/yield/debian_packages.py --list                       (the draw, and why others were passed over)
    python benchmarks/yield/debian_packages.py --out yield.jsonl            (all thirty; about 5 to 20 minutes each)
    python benchmarks/yield/debian_packages.py --out yield.jsonl --only 3   (the first three of the draw)
    python benchmarks/yield/debian_packages.py --out yield.jsonl --again NAME    (one once more, after a mend)
    python benchmarks/yield/debian_packages.py --out yield.jsonl --steps 1  (the next step alone; 3 when none is left)
    python benchmarks/yield/debian_packages.py --out yield.jsonl --part 0 2 (every second; the rest: 1 2)
    python benchmarks/yield/debian_packages.py --out yield.jsonl --summary  (of what was written so far)

A name counts if no file of this repository mentions it (but for the log and this folder, which say what came of the
draw), a source distribution of that name can be had, it is pure Python and brings ten tests. What was decided about
each name stands in `drawn.json`, so that a second call draws the same without asking again. All are installed, then
each is asked for six tasks, which stay in the folder `--tasks`. A line is written after each step, a second call goes
on behind the last, and the last line of a package counts. Ten minutes are those of processor time, since other work on
a machine stretches the wall's; what a call took that was ended on the way counts, too.
Whether a suite passes outside of our sandboxes is not found out here: that would run strangers' code on this machine.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import resource
import signal
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
NAMES: Final = Path(__file__).with_name("debian_python3_names.txt")
DRAWN: Final = Path(__file__).with_name("drawn.json")  # name -> why it is passed over; nothing for one that is drawn
SEED: Final = "etude-yield-1"
OUTCOMES: Final = {Path("docs/log"), Path("benchmarks/yield")}  # they name packages that were drawn
WANTED: Final = 30
TASKS: Final = 6
NOTHING_LEFT: Final = 3  # exit status
SECONDS: Final = 600.0  # of processor time, for the tasks of one package
WALL: Final = 6.0  # times as many seconds of the wall's clock until a command is ended
INSTALL_SECONDS: Final = 600.0
FEWEST_TESTS: Final = 10
COMPILED: Final = re.compile(r".*\.(c|pyx|rs|cpp|cc|f90|go)")
APART: Final = re.compile(r"(^|/)(tests?|testing|docs?|examples?)/")
TEST_FILE: Final = re.compile(r"(.*/)?(test_[^/]*|[^/]*_tests?|tests?)\.py")
TEST: Final = re.compile(r"^\s*(?:async )?def test\w*\(", re.MULTILINE)


def order() -> list[str]:
    """The list in the drawn order, without names that this repository mentions."""
    names = [line for line in NAMES.read_text().splitlines() if line and not line.startswith("#")]
    random.Random(SEED).shuffle(names)
    known = mentioned()
    return [name for name in names if name.lower() not in known and name.lower().replace("-", "_") not in known]


def mentioned() -> set[str]:
    """Every word of this repository's files that could be a package's name."""
    found: set[str] = set()
    for folder in ("etude", "tests", "docs", "benchmarks", "examples", "redteam"):
        for path in (ROOT / folder).rglob("*"):
            if OUTCOMES & set(path.relative_to(ROOT).parents):
                continue
            if path.suffix in (".py", ".toml", ".md", ".txt", ".json"):
                text = path.read_text(errors="replace").lower()
                found.update(re.findall(r"[a-z0-9][a-z0-9_.-]*[a-z0-9]", text))
    return found


def passed_over(name: str, store: Path) -> str:
    """Why a package is not one of the thirty, from its files alone; nothing where it is."""
    from etude.core.errors import EtudeError
    from etude.forge.install.checkout import open_repo
    from etude.forge.install.install import repositories
    from etude.forge.install.pip_settings import read_index
    from etude.sandbox.store.layers import Store

    try:
        repo = open_repo(name, repositories(Store(store)), index=read_index())
    except EtudeError as error:
        return f"no source distribution: {str(error)[:200]}"
    paths = [str(path.relative_to(repo.tree)) for path in sorted(repo.tree.rglob("*")) if path.is_file()]
    if compiled := [path for path in paths if COMPILED.fullmatch(path) and not APART.search(path)]:
        return f"compiled: {compiled[0]}"
    files = [repo.tree / path for path in paths if TEST_FILE.fullmatch(path)]
    tests = sum(len(TEST.findall(file.read_text(errors="replace"))) for file in files)
    return f"{tests} tests in its source distribution" if tests < FEWEST_TESTS else ""


def draw(store: Path) -> Iterator[tuple[str, str]]:
    """Names, each with why it is passed over, until thirty were not."""
    left = WANTED
    known: dict[str, str] = json.loads(DRAWN.read_text())
    for name in order():
        if name not in known:
            known[name] = passed_over(name, store)
            DRAWN.write_text(json.dumps(known, indent=0) + "\n")
        why = known[name]
        yield name, why
        left -= not why
        if not left:
            return


class Ended(BaseException):
    """This script was told to end."""


def end(*_: object) -> None:
    raise Ended


class EndedBySignal(Exception):
    """Somebody or the machine ended a command: that says nothing about the package, so no line is written."""

    def __init__(self, message: str, took: dict[str, float]) -> None:
        super().__init__(message)
        self.took = took


def command(*words: str, seconds: float) -> tuple[dict[str, Any], dict[str, float]]:
    """What an `etude` command answers, empty where its time was up; and its time, by the wall and of processors."""
    started, before = time.monotonic(), processor_seconds()

    def took() -> dict[str, float]:
        return {
            "wall": round(time.monotonic() - started, 1),
            "processor": round(processor_seconds() - before, 1),
        }

    try:
        done = subprocess.run(
            [sys.executable, "-m", "etude", *words, "--json"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=WALL * seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {}, took()
    except Ended as ended:
        raise EndedBySignal(f"etude {' '.join(words)} was ended with this script", took()) from ended
    if done.returncode < 0:
        raise EndedBySignal(f"etude {' '.join(words)} was ended by signal {-done.returncode}", took())
    lines = done.stdout.splitlines()
    return (json.loads(lines[-1]) if lines else {"error": done.stderr[-300:]}), took()


@contextmanager
def told() -> Iterator[None]:
    """Says what was ended; the next call of this script tries it anew."""
    try:
        yield
    except EndedBySignal as ended:
        print(f"{ended}; the next call tries it anew", flush=True)
        if isinstance(ended.__cause__, Ended):
            sys.exit(128 + signal.SIGTERM)


def processor_seconds() -> float:
    """Of all children that ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def install(name: str, store: Path) -> dict[str, Any]:
    """Whether a package installs, or why not."""
    installed, took = command("env", "install", name, "--store", str(store), seconds=INSTALL_SECONDS)
    row: dict[str, Any] = {"package": name, "installed": bool(installed.get("ok")), "install_seconds": took}
    row |= {key: installed.get(key) for key in ("version", "tests", "reason", "notes") if installed.get(key)}
    if not row["installed"]:
        row |= {"reason": installed.get("reason") or installed.get("error") or "its time was up"}
    return row


def make(name: str, store: Path, tasks: Path, seconds: float) -> dict[str, Any]:
    """Of an installed package: how many tasks it gives in time, what became of the other candidates, and how many of
    the tasks' held-out tests have to be graded by decoys, since they record nothing."""
    out = tasks / name
    words = ("tasks", "make", name, "--count", str(TASKS), "--out", str(out), "--store", str(store))
    # A call that is made again goes on behind the candidates that one before it tried.
    ended = tasks / f"{name}.ended.json"
    earlier = json.loads(ended.read_text()) if ended.exists() else {"wall": 0.0, "processor": 0.0}
    try:
        made, took = command(*words, seconds=seconds)
    except EndedBySignal as error:
        # Children of a killed command may not be counted: one core gives no more than the wall's time.
        took = error.took | {"processor": max(error.took.values())}
        tasks.mkdir(parents=True, exist_ok=True)
        ended.write_text(json.dumps({key: round(value + took[key], 1) for key, value in earlier.items()}))
        raise
    took = {key: round(value + earlier[key], 1) for key, value in took.items()}
    row = {"make_seconds": took, "make_error": made.get("error", "" if made else "its time was up")}
    return row | read_journal(out / "make.jsonl")


def is_in_time(row: dict[str, Any]) -> bool:
    return bool(row.get("tasks", 0) >= TASKS and row["make_seconds"]["processor"] <= SECONDS)


def read_journal(path: Path) -> dict[str, Any]:
    """How many tasks there are, on which side, and why the others are none."""
    lines = [json.loads(line) for line in path.read_text().splitlines()[1:]] if path.exists() else []
    tried = [line for line in lines if not line.get("left_out")]
    made = [tomllib.loads((path.parent / line["task"] / "task.toml").read_text()) for line in tried if line["task"]]
    withheld = [each["metadata"]["etude"].get("withheld") or {} for each in made]
    return {
        "held_out": sum(each.get("tests", 0) for each in withheld),
        "unrecorded": sum(each.get("unrecorded", 0) for each in withheld),
        "bits": [each.get("bits", 0.0) for each in withheld],
        "tasks": sum(bool(line["task"]) for line in tried),
        "tried": len(tried),
        "split": dict(Counter(line["split"] for line in tried if line["task"])),
        "rejected": dict(Counter(line["reason"] for line in tried if not line["task"]).most_common()),
    }


def summary(rows: list[dict[str, Any]]) -> str:
    installed = [row for row in rows if row["installed"]]
    asked = [row for row in installed if "tasks" in row]
    enough = [row for row in asked if is_in_time(row)]
    rejected: Counter[str] = Counter()
    for row in installed:
        rejected.update(row.get("rejected", {}))
    lines = [
        f"{len(rows)} packages, {len(installed)} installed, {len(asked)} of these asked for tasks, {len(enough)} gave "
        f"{TASKS} in time, {sum(row['tasks'] for row in asked)} tasks in all",
        *(f"  not installed: {row['package']}: {row['reason'][:200]}" for row in rows if not row["installed"]),
        *(f"  {row['package']}: {row['tasks']} tasks of {row['tried']}, {row['make_seconds']}" for row in asked),
        *(f"  {number} times: {reason}" for reason, number in rejected.most_common()),
        f"held-out tests that record nothing: {sum(row.get('unrecorded', 0) for row in installed)} of "
        f"{sum(row.get('held_out', 0) for row in installed)}, over {len(installed)} packages",
    ]
    return "\n".join(lines)


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--out", type=Path, default=Path("yield.jsonl"))
    given.add_argument("--store", type=Path, default=Path.home() / ".cache/etude-yield")
    given.add_argument("--tasks", type=Path, default=Path("yield-tasks"))
    given.add_argument("--only", type=int, default=WANTED)
    given.add_argument("--seconds", type=float, default=SECONDS)
    given.add_argument("--again", default="", help="a package to install and ask once more")
    given.add_argument("--steps", type=int, default=2 * WANTED, help="at most so many: an installation, or six tasks")
    given.add_argument("--part", type=int, nargs=2, default=[0, 1], metavar=("K", "N"), help="every Nth from the Kth")
    given.add_argument("--do", choices=["install", "tasks"], default="", help="only install, or only ask for tasks")
    given.add_argument("--list", action="store_true")
    given.add_argument("--summary", action="store_true")
    options = given.parse_args()
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    rows: dict[str, dict[str, Any]] = {row["package"]: row for row in map(json.loads, lines)}
    if options.summary:
        print(summary(list(rows.values())))
        return
    store, tasks = options.store.resolve(), options.tasks.resolve()

    def write(row: dict[str, Any]) -> None:
        rows[row["package"]] = row
        with options.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)

    names: list[str] = [options.again] if options.again else []
    for name, why in draw(store) if not options.again else ():
        print(f"{name}: {why or 'drawn'}", flush=True)
        names += [name] if not why else []
        if len(names) == options.only:
            break
    if options.list:
        return
    first, each = options.part
    names = names[first::each]
    signal.signal(signal.SIGTERM, end)
    steps = 0
    for name in names:
        if options.do != "tasks" and (name not in rows or options.again) and steps < options.steps:
            steps += 1
            with told():
                write(install(name, store))
    for name in names:
        waits = options.do != "install" and rows.get(name, {}).get("installed") and "tasks" not in rows[name]
        if waits and steps < options.steps:
            steps += 1
            with told():
                write(rows[name] | make(name, store, tasks, options.seconds))
    print(summary(list(rows.values())))
    if not steps:
        sys.exit(NOTHING_LEFT)


if __name__ == "__main__":
    main()
