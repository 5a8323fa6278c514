"""Visible tests over a submission once more, in a spare sandbox, with what its code does recorded.

Nothing is graded here, and no held-out test runs: `audit/watched.py` decides what an act means. What the code under
watch reports of itself can only add to what is held against it.
"""

from __future__ import annotations

import dataclasses
import json
import secrets
from dataclasses import dataclass
from typing import Any, Final

from etude.tasks.format.task import Task
from etude.tasks.grading.grader import GradeJob, TestRun
from etude.tasks.grading.test_plan import GradingPlan, ProcessPlan, pytest_folder, repository_sources

MOST_TESTS: Final = 60  # visible ones that are run once more


@dataclass(frozen=True)
class Act:
    """One thing that the submitted code did."""

    kind: str
    what: str
    path: str = ""
    line: int = 0


def can_watch(task: Task) -> bool:
    """Whether there is Python code under visible tests."""
    return task.facts.suite in ("unittest", "pytest") and bool(task.facts.fail_to_pass or task.facts.pass_to_pass)


async def watched_run(job: GradeJob) -> list[Act]:
    """What the submitted files did while visible tests ran."""
    plan = _plan(job)
    reports, _, _ = await TestRun(dataclasses.replace(job, quick=False), plan).reports(job.submission)
    acts: list[Act] = []
    over = False
    for line in reports[0]["lines"].splitlines() if reports else ():
        try:
            mark, name, status, text = json.loads(line)
            if mark == plan.parts[0].mark and status == "watched":
                acts.append(_act(*json.loads(text)))
            # A test that has to turn from failing to passing is none that the project skips.
            elif mark == plan.parts[0].mark and status == "skipped" and name in job.task.facts.fail_to_pass:
                acts.append(Act("skipped", str(name)[:300]))
            over |= mark == plan.parts[0].mark and status in ("done", "broken")
        except (ValueError, TypeError, RecursionError):
            continue  # hostile text
    if reports and not over and reports[0]["ended"] == "exit 0":
        acts.append(Act("ends", "exit 0"))  # crashes and limits end it otherwise
    return acts


def _act(kind: Any, what: Any, where: Any) -> Act:
    path, _, line = str(where).rpartition(":")
    return Act(str(kind)[:60], str(what)[:300], path[:300], int(line) if line.isdigit() else 0)


def _plan(job: GradeJob) -> GradingPlan:
    task = job.task
    facts = task.facts
    assert facts.suite is not None
    run = (*facts.fail_to_pass, *facts.pass_to_pass)[:MOST_TESTS]
    files = repository_sources(task)
    sources = {path: (task.workspace if path in task.workspace else task.tests).text(path) for path in files}
    deleted: dict[str, list[str]] = {}
    for name in facts.deleted:
        path, _, function = name.partition(":")
        deleted.setdefault(path, []).append(function)
    # Tests of the agent's own are not the tested code.
    own = [each.path for each in job.submission.files if each.path.endswith(".py") and "test" not in each.path]
    watch = {"files": own, "functions": deleted, "tests": "tests"}
    installed = facts.environment
    packages = (pytest_folder(task.name),) if facts.suite == "pytest" and installed is None else ()
    part = ProcessPlan(mark=secrets.token_hex(8), tests=sources, run=tuple(run), real=frozenset(run))
    return GradingPlan(
        *(tuple(run), (part,), secrets.token_hex(16), facts.suite, False, False, packages, installed), watch=watch
    )
