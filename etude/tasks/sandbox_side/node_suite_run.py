"""One run of a JavaScript repository's suite, for those who make tasks from it: not a grade, nothing here is a secret.

    descriptor 0   the job: files to lay over the workspace, which test files, in which order, whether to trace
    descriptor 1   a line for each outcome, what each test took or reached; then "done"

Runs in a sandbox of its own, over the repository's environment. Says the same lines as
`pytest_suite_run` does for Python.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from etude.tasks.sandbox_side import node_tests as node
from etude.tasks.sandbox_side import test_process
from etude.tasks.sandbox_side.grade_process import lay_out
from etude.tasks.sandbox_side.pytest_suite_run import laid_over

_FIRST_FREE = 100
TOGETHER = ("node",)  # frameworks that run files at the same time themselves


def main() -> None:
    job: dict[str, Any] = json.loads(test_process.read_part(0))
    output = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE)
    os.dup2(2, 1)
    lay_out(job["files"])

    def say(*line: Any) -> None:
        test_process.write_line(output, line)

    if job["variants"] is None:
        _run(job, say, float("inf"))
    for files in job["variants"] or ():
        say("", "variant", "")
        with laid_over(files):
            _run(job, say, time.monotonic() + job["variant_seconds"])


def _run(job: dict[str, Any], say: Callable[..., None], deadline: float) -> None:
    framework, *options = job["options"]
    files = list(job["places"])
    if job["order"] is not None:
        random.Random(job["order"]).shuffle(files)
    chosen = None if job["tests"] is None else frozenset(job["tests"])
    numbers: dict[str, int] = {}
    failures = 0

    def run(path: str) -> tuple[node.NodeReport, float]:
        began = time.monotonic()
        found = node.run_file(framework, path, options, trace=job["trace"] is not None, output=2, deadline=deadline)
        return found, time.monotonic() - began

    pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)) if framework in TOGETHER else 1)
    try:
        for path, running in [(path, pool.submit(run, path)) for path in files]:
            found, seconds = running.result()
            if time.monotonic() > deadline:
                return
            failures += _tell(path, found, seconds, chosen, numbers, say)
            if failures >= job["most_failures"]:
                break
    finally:
        pool.shutdown(cancel_futures=True)
    say("", "done", "1" if failures else "0")


def _tell(
    path: str,
    found: node.NodeReport,
    seconds: float,
    chosen: frozenset[str] | None,
    numbers: dict[str, int],
    say: Callable[..., None],
) -> int:
    """Says what became of a file, and gives the number of its failures."""
    failures = 0
    for test, status, text, took in found.tests:
        if chosen is None or test in chosen:
            say(test, status, text)
            say(test, "took", f"{took:.4f}")
            failures += status in ("failed", "error")
    # Starting a process and loading the file: what every run of any of its tests costs.
    say(path, "took", f"{max(0.0, seconds - sum(took for *_, took in found.tests)):.4f}")
    for test, functions in found.reached:
        for name in functions:
            if name not in numbers:
                numbers[name] = len(numbers)
                say("", "function", name)
        say(test, "reached", json.dumps([numbers[name] for name in functions]))
    # A file without a test is an error: an import that failed quietly would look like success.
    if not found.tests or found.ended:
        say(path, "error", found.ended or "it holds no test that was run")
        failures += 1
    return failures
