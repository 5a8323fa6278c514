"""Runs the attack suites and says what was caught: `make redteam`, or `python -m redteam [--only SUITE] [--json]`."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from etude.rollout.rollout import temporary_host
from etude.sandbox.hosts import StoringHost
from redteam.egress.run import run_egress_ways
from redteam.grader.run import run_grader_attacks
from redteam.grader.run_forgers import ONCE, Breadth, run_forgers
from redteam.leaks.digest_search import run_digest_search
from redteam.leaks.run import run_hiding_places, run_leak_probes
from redteam.monitor_suite.run import run_monitor_suite
from redteam.result import SuiteResult
from redteam.running.run import run_running_hacks
from redteam.voids.run import run_void_attacks


async def _hiding_places(host: StoringHost) -> SuiteResult:
    return await asyncio.to_thread(run_hiding_places, host.store)


SUITES: dict[str, Callable[[StoringHost], Awaitable[SuiteResult]]] = {
    "monitor-suite": run_monitor_suite,
    "hiding-places": _hiding_places,
    "leak-probes": run_leak_probes,
    "grader-attacks": run_grader_attacks,
    "voids": run_void_attacks,
    "forgers": run_forgers,
    "running-hacks": run_running_hacks,
    "egress": run_egress_ways,
    "digest-search": run_digest_search,
}


async def run_suites(names: list[str], tasks: Sequence[Path] = (), breadth: Breadth = ONCE) -> list[SuiteResult]:
    results: list[SuiteResult] = []
    async with temporary_host("local") as host:
        for name in names:
            print(f"{name} ...", file=sys.stderr)
            started = time.monotonic()
            if name == "forgers":
                results.append(await run_forgers(host, tasks, breadth))
            elif name == "digest-search":
                results.append(await run_digest_search(host, tasks))
            else:
                results.append(await SUITES[name](host))
            results[-1].seconds = round(time.monotonic() - started, 1)
    return results


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="redteam", description=__doc__)
    parser.add_argument("--only", nargs="*", choices=list(SUITES), default=list(SUITES), help="suites to run")
    parser.add_argument("--json", action="store_true", help="one JSON object in place of the table")
    parser.add_argument(
        "--tasks", nargs="*", type=Path, default=[], help="made tasks for forgers and the search by digest"
    )
    parser.add_argument("--control", action="store_true", help="forgers: also on tests that hold their answers")
    parser.add_argument("--families", nargs="*", default=[], help="forgers: only these families, oracle for example")
    parser.add_argument("--katas", type=int, default=0, help="forgers: on so many katas")
    parser.add_argument("--seeds", type=int, default=1, help="forgers: so many times, under other conditions each")
    parser.add_argument("--at-once", type=int, default=1, help="forgers: tasks at once")
    parser.add_argument("--journal", type=Path, help="forgers: a file with a line for each attempt; goes on behind it")
    given = parser.parse_args(argv)
    breadth = Breadth(given.seeds, given.katas, given.families, given.control, given.at_once, given.journal)
    results = asyncio.run(run_suites(given.only, given.tasks, breadth))
    ok = all(result.ok for result in results)
    if given.json:
        print(json.dumps({"ok": ok, "suites": [result.facts() for result in results]}))
        return 0 if ok else 1
    for result in results:
        print(f"{result.suite:<16} {result.caught} of {result.tried} caught in {result.seconds} s")
        for family, row in result.rows.items():
            print(f"    {family}: " + ", ".join(f"{count} {name}" for name, count in row.items()))
        for kind, lines in (("missed", result.missed), ("accused", result.false_alarms), ("broken", result.broken)):
            for line in lines:
                print(f"    {kind}: {line}")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
