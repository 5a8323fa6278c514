"""Whether an attempt solved its task: tests run in a fresh sandbox that the agent never touched.

Over the task's own workspace lie only the agent's changes to allowed paths. The tests come from the task, through a
pipe, and are never on a disk there. `inside/` runs them; `plan` draws what is run and `verdict` reads what came of
it. What the agent's code does (fail, hang, crash, lie) is a grade. What the machinery does is a `GraderFailure` or a
`SandboxFailure`, and nobody's score.
"""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import random
import sys
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

from etude.errors import EtudeError
from etude.sandbox.base import Layer, Limits, Result, RunsApart, Sandbox
from etude.sandbox.hosts import StoringHost
from etude.settings import GraderSettings
from etude.tasks.carried import Carried, Changes
from etude.tasks.format import Task
from etude.tasks.inside.judge import LENGTH
from etude.tasks.inside.memory import FOLDER
from etude.tasks.place import workspace_layer
from etude.tasks.plan import Plan, draw, header
from etude.tasks.verdict import Broken, Grade, verdict

RUNNER: Final = "etude.tasks.inside.runner"  # what a host should load before it starts (`preload`)
GRACE: Final = 20.0  # seconds for the runner to report after its own deadline
MAX_REPORT: Final = 32 << 20  # bytes
NO_DATA: Final = (".py", "test.sh", "test.bat", "Dockerfile")  # of tests/: never on the sandbox's disk
_ARCHIVE: Final = "/opt/etude/grader.pyz"

FailureCause = Literal["report", "killed", "deadline"]


class GraderFailure(EtudeError):
    """The grader failed, not the attempt: a rollout becomes Void, never a reward."""

    def __init__(self, cause: FailureCause, message: str) -> None:
        super().__init__(message)
        self.cause: FailureCause = cause


async def grade(
    task: Task,
    host: StoringHost,
    changes: Changes | Sequence[Carried],
    settings: GraderSettings | None = None,
    *,
    rng: random.Random | None = None,
    hash_seed: int | None = None,
) -> Grade:
    """Grades the task with these changes made. A `hash_seed` starts a new interpreter, which is slower."""
    started = time.monotonic()
    settings = settings or GraderSettings()
    changes = changes if isinstance(changes, Changes) else Changes(tuple(changes))
    plan = draw(task, rng)
    files = {
        each.path: None if each.data is None else [base64.b64encode(each.data).decode(), each.executable]
        for each in changes.carried
    }
    seconds = min(settings.seconds, task.config.verifier.timeout_sec)
    told = header(plan, task, files, seconds=seconds, cpu_seconds=settings.cpu_seconds)
    job = _frame(told) + b"".join(_frame({"mark": p.mark, "tests": p.tests, "run": p.run}) for p in plan.parts)
    limits = Limits(memory=settings.memory_mb << 20, disk=settings.disk_mb << 20, processes=settings.processes)
    warm = hash_seed is None and not settings.python and RUNNER in host.preload
    layers = [workspace_layer(task, host), *_data_layers(task, host), *([] if warm else [_archive_layer(host)])]
    async with await host.start(layers, limits=limits) as sandbox:
        result = await _run(sandbox, job + plan.nonce.encode(), seconds, warm, settings.python, hash_seed)
    report = _report(plan, result)
    try:
        grade = verdict(plan, report["judges"], out_of_memory=result.oom)
    except Broken as error:
        raise GraderFailure("report", f"the tests of {task.name} could not be run: {error}") from error
    refused = [*((each.path, each.why) for each in changes.refused), *map(tuple, report["refused"])]
    return dataclasses.replace(
        grade,
        refused=tuple(refused),
        apart=plan.apart,
        backend=host.capabilities.backend,
        seconds=time.monotonic() - started,
    )


async def _run(sandbox: Sandbox, job: bytes, seconds: float, warm: bool, python: str, hash_seed: int | None) -> Result:
    """The runner, forked from a process that has it loaded, or started from its archive."""
    env = {} if hash_seed is None else {"PYTHONHASHSEED": str(hash_seed)}
    # As -I does, but for the environment, which is ours and holds at most the hash seed.
    cold = [python or sys.executable, "-P", "-s", "-S", "-B", f"..{_ARCHIVE}"]
    timeout = seconds + GRACE
    if not isinstance(sandbox, RunsApart):
        return await sandbox.run(cold, env=env, stdin=job, timeout=timeout, max_output=MAX_REPORT)
    program = RUNNER if warm else cold
    return await sandbox.run_apart(program, env=env, stdin=job, timeout=timeout, max_output=MAX_REPORT)


def _report(plan: Plan, result: Result) -> dict[str, Any]:
    """What the runner reported; only what starts with the nonce is a report."""
    nonce = plan.nonce.encode()
    if result.stdout.startswith(nonce):
        try:
            report: dict[str, Any] = json.loads(result.stdout[len(nonce) :])
            return report
        except ValueError:
            raise GraderFailure("report", "the grader's report is cut short") from None
    if result.oom:
        return {"refused": [], "judges": []}
    if result.timed_out:
        raise GraderFailure("deadline", f"the grader gave no report within {GRACE:g} s of its deadline")
    said = result.stderr.decode(errors="replace").strip().splitlines()
    why = f"it was ended by signal {-result.code}" if result.code < 0 else f"it ended with {result.code}"
    raise GraderFailure(
        "killed" if result.code < 0 else "report",
        f"the grader gave no report: {why}{': ' + said[-1][:300] if said else ''}",
    )


def _frame(value: Any) -> bytes:
    body = json.dumps(value).encode()
    return LENGTH.pack(len(body)) + body


def _data_layers(task: Task, host: StoringHost) -> list[Layer]:
    """Files beside the tests that are no tests, where the tests look for them. The tested code can read them too."""
    data = {path: task.tests[path] for path in task.tests if not path.endswith(NO_DATA)}
    return [host.store.add_files(data, at=FOLDER)] if data else []


def _archive_layer(host: StoringHost) -> Layer:
    """The code that runs inside, for an interpreter that has not loaded it."""
    root = Path(__file__).parents[1]
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        inside = sorted((root / "tasks" / "inside").glob("*.py"))
        for path in [root / "__init__.py", root / "tasks" / "__init__.py", *inside]:
            archive.writestr(zipfile.ZipInfo(f"etude/{path.relative_to(root)}"), path.read_bytes())
        archive.writestr(zipfile.ZipInfo("__main__.py"), f"from {RUNNER} import main\n\nmain()\n")
    folder, _, name = _ARCHIVE.rpartition("/")
    return host.store.add_files({name: data.getvalue()}, at=folder)
