"""How many valid tasks a repository gives, and what each costs: the bars of `etude tasks make`.

    python benchmarks/make_tasks.py OUT REPO... [--count 20] [--from deletion] [--workers 2] [--store DIR]

For each repository (a folder, a checkout or a package) makes tasks into OUT/NAME and prints a row: lines of code, the
suite's seconds, candidates, valid tasks, seconds of work for each, the bar (16 suites and 5 s), and tasks an hour. Run
again it resumes; delete OUT to measure anew. Measure on a quiet machine. The first repository also pays for the index
of the host's files that the leak audit needs; make one task of anything first to leave that out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from etude.core.errors import EtudeError
from etude.forge.install.checkout import open_repo
from etude.forge.install.install import install, repositories
from etude.forge.install.pip_settings import read_index
from etude.forge.languages.python.repository import PythonRepository
from etude.forge.pipeline.journal import Journal
from etude.forge.pipeline.make import make_tasks
from etude.forge.steps.baseline import baseline
from etude.forge.steps.context import MakeRequest
from etude.sandbox.hosts import open_host
from etude.sandbox.store.layers import Store, default_store
from etude.tasks.format.file_tree import Files
from etude.tasks.grading.grader import RUNNER

SUITES, EXTRA = 16, 5.0  # what a valid task may cost
MEDIUM, LEAST = 2000, 20  # lines from which on a package has to give so many deletion tasks


@dataclass(frozen=True)
class Row:
    repo: str
    lines: int
    tests: int
    suite: float  # seconds
    tried: int
    valid: int
    seconds: float  # of this process, wall clock
    spent: float  # of work, all candidates
    rejected: dict[str, int]

    @property
    def each(self) -> float:
        return self.spent / self.valid if self.valid else float("inf")

    @property
    def bar(self) -> float:
        return SUITES * self.suite + EXTRA

    @property
    def an_hour(self) -> float:
        return 3600 * self.valid / self.seconds if self.seconds else 0.0


async def measure(spec: str, layers: Store, wanted: MakeRequest) -> Row:
    index = read_index(None)
    repo = await asyncio.to_thread(open_repo, spec, repositories(layers), index=index)
    async with await open_host("local", layers, [RUNNER]) as host:
        installed = await install(repo, host, index)
        if installed.environment is None:
            raise EtudeError(f"{spec} cannot be installed: {installed.reason}")
        base = await baseline(host, installed.environment, host.store.add(repo.tree))
        world = PythonRepository(
            repo.name, repo.version, Files.scan(repo.tree), installed.environment, base.green, base.traces
        )
        started = time.monotonic()
        journal: Journal = await make_tasks(repo, installed.environment, host, wanted)
    spent = sum(entry.seconds for entry in journal.entries)
    lines = sum(len(module.lines) for module in world.modules.values())
    return Row(
        repo.name,
        lines,
        len(base.green),
        base.seconds,
        journal.tried,
        len(journal.tasks),
        time.monotonic() - started,
        spent,
        journal.rejected,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("repos", nargs="+")
    parser.add_argument("--count", type=int, default=LEAST)
    parser.add_argument("--from", dest="origins", default="deletion")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--store", type=Path)
    asked = parser.parse_args()
    layers = Store(asked.store or default_store())
    rows: list[Row] = []
    for spec in asked.repos:
        out = asked.out / spec.replace("/", "_").strip("._")
        wanted = MakeRequest(asked.count, out, asked.seed, tuple(asked.origins.split(",")), workers=asked.workers)
        try:
            row = asyncio.run(measure(spec, layers, wanted))
        except EtudeError as error:
            print(f"{spec}: {error}", flush=True)
            continue
        rows.append(row)
        print(
            f"{row.repo:20} {row.lines:6} lines {row.tests:5} tests {row.suite:6.2f} s  {row.valid:3} of {row.tried:4}"
            f"  {row.each:6.1f} s each (bar {row.bar:5.1f})  {row.an_hour:6.0f} an hour  {row.rejected}",
            flush=True,
        )
        (asked.out / "make_tasks.json").write_text(json.dumps([asdict(each) for each in rows], indent=1))
    medium = [row for row in rows if row.lines >= MEDIUM]
    enough = sum(row.valid >= LEAST for row in medium)
    quick = [row for row in rows if row.suite <= 1]
    print(f"{enough} of {len(medium)} medium repositories gave {LEAST} tasks")
    print(f"{sum(row.each <= row.bar for row in rows)} of {len(rows)} within {SUITES} suites and {EXTRA:g} s a task")
    for name, some in (("suites of at most 1 s", quick), ("all", rows)):
        seconds = sum(row.seconds for row in some)
        if seconds:
            print(f"{name}: {3600 * sum(row.valid for row in some) / seconds:.0f} tasks an hour")


if __name__ == "__main__":
    main()
