"""Whether an environment does what was set as its target: in fresh sandboxes, without network, twice.

The suite runs as it will for every task (`suite_run`), the other commands in a shell of the same sandbox kind,
all as the ordinary user that every program of a sandbox is. No agent has a say here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from etude.forge.environments.environment import MOST_LEFT_OUT, Environment, without_test
from etude.forge.environments.suite_run import SuiteRun, run_suite
from etude.forge.install.result import InstallFailed
from etude.forge.install.target_commands import Proposal
from etude.forge.leaks.minimal_host import missing_by_design
from etude.sandbox.base import WORKSPACE, Layer, SandboxLimits
from etude.sandbox.hosts import StoringHost
from etude.tasks.environment.layers import environment_variables
from etude.tasks.environment.services import ServiceFailure, serve

FEWEST: Final = 10  # tests that pass
SHARE: Final = 0.9  # of those that passed or failed
TIMES: Final = 2
LONGEST_TEST: Final = 30.0  # seconds for one test, or a tenth of the suite's time where that is more
_LIMITS: Final = SandboxLimits(memory=2 << 30, disk=1 << 30)
_TARGET_SECONDS: Final = 120.0
_MOST_NAMED: Final = 3
# What no sandbox has: a network, and the repository's history. Tests that want it are no sign of a wrong environment.
_WANTING: Final = re.compile(
    r"InvalidGitRepositoryError|not a git repository|NameResolutionError|Temporary failure in name resolution"
    r"|Name or service not known|Network is unreachable|getaddrinfo failed"
)
LEAST_OF_ALL: Final = 0.5  # of the tests, those that want it included, pass all the same
_TEST: Final = re.compile(rb"^\s*(?:async )?def test", re.MULTILINE)


@dataclass(frozen=True)
class Verified:
    """An environment with what its tests gave, and the commands that did what they should."""

    environment: Environment
    commands: tuple[str, ...]
    passed: int
    failed: int
    notes: tuple[str, ...] = ()


async def verify(
    environment: Environment,
    workspace: Layer,
    targets: Sequence[Proposal],
    host: StoringHost,
    *,
    suite_seconds: float,
    note: Callable[[str], None] = lambda text: None,
) -> Verified:
    """Raises `InstallFailed` with the first thing that is not as it should be."""
    runs: list[SuiteRun] = []
    left_out: dict[str, str] = {}
    while len(runs) < TIMES:
        count = f", {len(runs[-1].outcomes)} tests in {runs[-1].seconds:.0f} s" if runs else ""
        note(f"tests, run {len(runs) + 1} of {TIMES}{count}")
        run = await run_suite(
            host, environment, workspace, timeout=suite_seconds, test_seconds=max(LONGEST_TEST, suite_seconds / 10)
        )
        # One test that waits for what a sandbox does not have, or aborts, must not cost the whole repository.
        if not run.complete and run.culprit and len(left_out) < MOST_LEFT_OUT:
            left_out[run.culprit] = run.reason
            note(f"{run.reason}: {run.culprit} is left out")
            environment = without_test(environment, run.culprit)
            runs.clear()
            continue
        # A whole file counts as one that cannot be collected does.
        files = {name: why for name, why in left_out.items() if "::" not in name}
        run = replace(run, outcomes=run.outcomes | dict.fromkeys(files, "error"), texts=run.texts | files)
        check_run(run, workspace, suite_seconds)
        runs.append(run)
    commands: list[str] = []
    for target in targets:
        if target.kind != "tests":
            note(target.command)
            await _check_target(target, environment, workspace, host)
        commands.append(target.command)
    outcomes = _agreed(runs)
    verified = replace(environment, outcomes=outcomes, seconds=round(min(run.seconds for run in runs), 3))
    failed = _weight([name for name, outcome in outcomes.items() if outcome == "failed"], workspace)
    notes = (f"left out, as the suite does not come to its end with them: {', '.join(left_out)}",) if left_out else ()
    return Verified(verified, tuple(commands), list(outcomes.values()).count("passed"), failed, notes)


def check_run(run: SuiteRun, workspace: Layer, seconds: float) -> None:
    """Raises `InstallFailed` where too few tests pass, tests that want what no sandbox has left aside."""
    if not run.complete and run.seconds >= seconds:  # it would take as long again
        ended = f"{len(run.outcomes)} tests had ended by then"
        raise InstallFailed(f"{run.reason}: {ended}; {_more_time(seconds)}", final=True)
    if not run.complete:
        others = f" ({MOST_LEFT_OUT} others are left out already)" if run.culprit else ""
        advice = f"; {_more_time(seconds)}" if run.endless else ""
        raise InstallFailed(run.reason + others + advice, final=bool(run.endless))
    passed = len(run.passed)
    wrong = [name for name, outcome in run.outcomes.items() if outcome in ("failed", "error")]
    wanting = {name for name in wrong if _WANTING.search(run.texts.get(name, ""))}
    said = f" ({len(wanting)} want a network or a git repository, which no sandbox has)" if wanting else ""
    said += _named(run, wrong) + _removed(run)
    if passed < FEWEST:
        raise InstallFailed(f"only {passed} tests pass, and {FEWEST} are needed{said}")
    failed = _weight([name for name in wrong if name not in wanting], workspace)
    total = passed + failed + len(wanting)
    if passed < SHARE * (passed + failed) or passed < LEAST_OF_ALL * total:
        raise InstallFailed(f"{failed + len(wanting)} of {total} tests fail{said}")


def _more_time(seconds: float) -> str:
    return f"if the machine was busy or the suite is slow, give more time: --suite-seconds {4 * seconds:g}"


def _removed(run: SuiteRun) -> str:
    """Whether what failing tests miss was left out of the sandbox on purpose."""
    said = next((found for text in run.texts.values() if (found := missing_by_design(text))), "")
    return f" ({said})" if said else ""


def _weight(wrong: Sequence[str], workspace: Layer) -> int:
    """How many tests these are: a file that cannot be collected hides as many as it defines."""
    total = 0
    for name in wrong:
        file = workspace.path / WORKSPACE.strip("/") / name
        hidden = len(_TEST.findall(file.read_bytes())) if "::" not in name and _is_plain(file, workspace.path) else 1
        total += max(1, hidden)
    return total


def _is_plain(file: Path, root: Path) -> bool:
    """A file of the layer itself; the name came out of a sandbox."""
    return file.is_file() and file.resolve().is_relative_to(root.resolve())


def _named(run: SuiteRun, wrong: Sequence[str]) -> str:
    """The first few that failed, each with its last line."""
    shown = []
    for name in wrong[:_MOST_NAMED]:
        lines = [line.strip() for line in run.texts.get(name, "").splitlines() if line.strip()]
        errors = [line.removeprefix("E").strip() for line in lines if line.startswith("E ")]
        shown.append(f"{name}: {(errors or lines or ['no word'])[-1][:160]}")
    files = {name.partition("::")[0] for name in wrong}
    # One file with all of them mostly means one thing that is missing: a service, a program, a file.
    where = f" (all in {next(iter(files))})" if len(files) == 1 and len(wrong) > _MOST_NAMED else ""
    return f"{where}: " + "; ".join(shown) if shown else ""


async def _check_target(target: Proposal, environment: Environment, workspace: Layer, host: StoringHost) -> None:
    env = environment_variables(environment.python, environment.env)
    for _ in range(TIMES):
        async with await host.start([environment.layer, workspace], limits=_LIMITS, env=env) as sandbox:
            try:
                await serve(sandbox, environment.services, environment.python)
            except ServiceFailure as failure:
                raise InstallFailed(str(failure)) from None
            result = await sandbox.run(["sh", "-c", target.command], timeout=_TARGET_SECONDS)
        if trouble := target.mismatch(result):
            raise InstallFailed(trouble)


def _agreed(runs: Sequence[SuiteRun]) -> dict[str, str]:
    """What each test gave; one that gave different things has failed.

    A test that is not in every run has a name that changes (a parameter's address, the order of a set): nobody could
    ask for it again, so it is left out.
    """
    words = {"passed": "passed", "skipped": "skipped"}
    outcomes: dict[str, str] = {}
    for name in runs[0].outcomes:
        if all(name in run.outcomes for run in runs):
            seen = {run.outcomes[name] for run in runs}
            outcomes[name] = words.get(seen.pop(), "failed") if len(seen) == 1 else "failed"
    return outcomes
