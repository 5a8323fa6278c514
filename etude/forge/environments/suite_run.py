"""One run of a repository's suite: which tests passed, how long each took, and which functions it reached.

In a sandbox of its own, network off, over the environment's layer and a workspace. The reporter is ours and comes
from outside of the workspace. Every suite of Python, unittest ones too, is run by the environment's pytest, so ids are
always pytest's, relative to the workspace; one of JavaScript file by file, each in a process of its own. Knows nothing
of tasks; what is no outcome of a test is `reason`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

from etude.forge.environments.environment import Environment
from etude.forge.environments.fake_clock import clock_layer, clock_variables
from etude.sandbox.base import CommandResult, Layer, SandboxLimits
from etude.sandbox.hosts import StoringHost
from etude.tasks.environment.layers import environment_variables
from etude.tasks.environment.services import as_job
from etude.tasks.environment.suite_run import encoded, start_suite
from etude.tasks.sandbox_side.start_services import NOT_UP

Outcome = Literal["passed", "failed", "error", "skipped"]
# An expected failure tells nothing about the code, whichever way it ends.
_OUTCOMES: Final[dict[str, Outcome]] = {
    **{each: each for each in get_args(Outcome)},
    "xfailed": "skipped",
    "xpassed": "skipped",
}
_FINISHED: Final = (0, 1, 2, 5)  # pytest's codes of a run that came to its end: all passed, some failed, none collected
_NEXT: Final = json.dumps(["", "variant", ""]).encode()
_ALL_FAILURES: Final = 1_000_000
_ROOM: Final = 128 << 20  # bytes of lines, traces included
LIMITS: Final = SandboxLimits(memory=2 << 30, disk=1 << 30, processes=512, cpu_seconds=3600)


@dataclass(frozen=True)
class SuiteRun:
    """What came of one run."""

    outcomes: dict[str, Outcome]  # by test; a file that cannot be collected stands here as an error by its path
    seconds: float
    complete: bool  # the run came to its end; failing tests and files that cannot be imported are part of that
    reason: str  # why not, in a sentence
    traces: dict[str, set[str]] = field(default_factory=dict)  # test -> "path:qualname"; "" is what collecting ran
    texts: dict[str, str] = field(default_factory=dict)  # what failing tests said
    # Seconds by test, and of reading a file, but for traced runs; "" is what processors spent on all,
    # and what a busy machine kept it waiting for one.
    took: dict[str, float] = field(default_factory=dict)
    endless: str = ""  # the test that was running when the time was up
    crashed: str = ""  # the test that was running, or the file that was read, when the suite's process ended
    records: dict[str, str] = field(default_factory=dict)  # test -> what it recorded, as JSON; only where asked for

    @property
    def passed(self) -> set[str]:
        return {name for name, outcome in self.outcomes.items() if outcome == "passed"}

    @property
    def culprit(self) -> str:
        """The test, or the file, that kept the run from its end, where it is known."""
        return self.endless or self.crashed


async def run_suite(
    host: StoringHost,
    environment: Environment,
    workspace: Layer,
    *,
    changes: Mapping[str, bytes | None] | None = None,
    tests: Sequence[str] | None = None,
    hash_seed: int = 0,
    order: int | None = None,
    zone: str = "UTC",
    date: str | None = None,
    trace: Sequence[str] | None = None,
    until_failure: bool = False,
    timeout: float = 600.0,
    test_seconds: float | None = None,
    record: bool = False,
    limits: SandboxLimits = LIMITS,
) -> SuiteRun:
    """Runs the suite, or some `tests` of it, over the workspace with `changes` made (None deletes a file).

    `order` is a seed to shuffle by, `date` (2031-02-28) the day that it is to be; `trace` names the folders (or files)
    whose functions are to be watched, "" all; `until_failure` stops at the first test that does not pass. A test that
    takes more than `test_seconds` ends the run, and is named. With `record` tests may record values
    (`sandbox_side/recorder.py`).
    """
    asked: dict[str, Any] = {"order": order, "trace": trace, "test_seconds": test_seconds, "record": record}
    asked["most_failures"] = 1 if until_failure else _ALL_FAILURES
    job = _job(environment, changes or {}, tests) | asked
    env = {"PYTHONHASHSEED": str(hash_seed), "TZ": zone} | (clock_variables(date) if date else {})
    over = [workspace, clock_layer(host.store)] if date else [workspace]
    result = await _start(host, environment, over, job, env, timeout, limits)
    return _read(result.stdout.splitlines(), result, timeout)


async def run_variants(
    host: StoringHost,
    environment: Environment,
    workspace: Layer,
    variants: Sequence[Mapping[str, bytes | None]],
    *,
    tests: Sequence[str],
    changes: Mapping[str, bytes | None] | None = None,
    trace: Sequence[str] | None = None,
    until_failure: bool = True,
    each: float = 120.0,
    timeout: float = 600.0,
    limits: SandboxLimits = LIMITS,
    own_tests: Sequence[Sequence[str]] | None = None,
) -> list[SuiteRun]:
    """The same tests over several variants of the workspace, each until its first failure or all: one start for them.

    With `own_tests` each variant has tests of its own.

    Each variant has a process and services of its own but they share a sandbox, so that one may find what another left
    behind. One that takes more than `each` seconds is stopped, and not complete.
    """
    job = _job(environment, changes or {}, tests) | {
        "variants": [encoded(variant) for variant in variants],
        "variant_seconds": each,
        "most_failures": 1 if until_failure else _ALL_FAILURES,
        "trace": trace,
    }
    if own_tests is not None:
        job["variant_tests"] = [{"places": _files_of(some), "tests": list(some)} for some in own_tests]
    result = await _start(host, environment, [workspace], job, {"PYTHONHASHSEED": "0"}, timeout, limits)
    parts: list[list[bytes]] = []
    for line in result.stdout.splitlines():
        if line == _NEXT:
            parts.append([])
        elif parts:
            parts[-1].append(line)
    # Variants that did not get their turn have no lines, and so did not complete.
    parts += [[] for _ in range(len(variants) - len(parts))]
    return [_read(lines, result, timeout) for lines in parts[: len(variants)]]


def _job(environment: Environment, changes: Mapping[str, bytes | None], tests: Sequence[str] | None) -> dict[str, Any]:
    files = environment.suite.folders or (".",)
    return {
        "files": encoded(changes),
        "variants": None,
        # Only the files of the tests that are asked for: collecting the others costs time and can fail.
        "places": files if tests is None else _files_of(tests),
        "tests": None if tests is None else list(tests),
        "options": environment.suite.options,
        "paths": environment.paths,
        "order": None,
        "trace": None,
        "services": as_job(environment.services),
    }


def _files_of(tests: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(name.partition("::")[0] for name in tests))


async def _start(
    host: StoringHost,
    environment: Environment,
    over: Sequence[Layer],
    job: Mapping[str, Any],
    env: Mapping[str, str],
    timeout: float,
    limits: SandboxLimits,
) -> CommandResult:
    variables = environment_variables(environment.python, environment.env) | dict(env)
    layers, kind = [environment.layer, *over], environment.suite.kind
    times: dict[str, Any] = {"timeout": timeout, "limits": limits, "max_output": _ROOM}
    return await start_suite(host, layers, environment.python, job, env=variables, suite=kind, **times)


def _read(lines: Sequence[bytes], result: CommandResult, timeout: float) -> SuiteRun:
    outcomes: dict[str, Outcome] = {}
    texts: dict[str, str] = {}
    functions: list[str] = []
    traces: dict[str, set[str]] = {}
    took: dict[str, float] = {}
    records: dict[str, str] = {}
    ended: int | None = None
    running, endless = "", ""
    for line in lines:
        try:
            name, status, text = json.loads(line)
            if status == "function":
                functions.append(text)
            elif status == "reached":
                traces[name] = {functions[number] for number in json.loads(text)}
            elif status == "took":
                took[name] = float(text)
            elif status == "done":
                ended = int(text)
            elif status == "began":
                running = name
            elif status == "endless":
                endless = name
            elif status == "recorded":
                records[name] = text if text != "[]" else records.get(name, text)
            elif status in _OUTCOMES:
                outcomes[name] = _OUTCOMES[status]
                running = "" if name == running else running
                if text:
                    texts[name] = text
        except (ValueError, TypeError, IndexError):  # cut by the end of its time, or none of our reporter's
            continue
    endless = endless or (running if result.timed_out else "")
    reason = "" if ended in _FINISHED else _reason(result, ended, timeout)
    if endless and reason:
        late = f"{reason}: " if result.timed_out else ""
        reason = f"{late}the test {endless} does not come to its end"
    # Memory is used up by all tests together.
    crashed = running if ended is None and not (endless or result.timed_out or result.oom) else ""
    if crashed:
        reason += f", while {crashed} ran"
    return SuiteRun(outcomes, result.seconds, not reason, reason, traces, texts, took, endless, crashed, records)


def _reason(result: CommandResult, ended: int | None, timeout: float) -> str:
    if result.timed_out:
        return f"the suite ran for more than {timeout:g} s"
    if result.oom:
        return "the suite ran out of memory"
    said = [line for line in result.stderr.decode(errors="replace").splitlines() if line.strip()]
    if result.code == NOT_UP and said:
        return said[-1][:500]
    how = f"ended with {result.code}" if ended is None else f"could not be run (pytest's code {ended})"
    # A crash says what it was first, and which compiled modules were there last. So does an error inside pytest: its
    # exception, and then as many lines of advice as the exception has.
    fatal = re.findall(
        r"Fatal Python error: .*|^INTERNALERROR> [\w.]+(?:Error|Warning|Exception): .*", "\n".join(said), re.M
    )
    return f"the suite {how}" + (f": {'; '.join([*fatal[:1], said[-1][:300]])}" if said else "")
