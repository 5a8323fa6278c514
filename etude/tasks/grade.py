"""Whether a rollout solved its task, whatever kind of outcome the task asks for. Knows no policy.

A grade that failed is made again from the same submission, in fresh sandboxes. One that fails every time while the
task's own solution can be graded is the submission's doing, and a score.
"""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Mapping, Sequence
from typing import Final

from etude.core.settings import GraderSettings
from etude.sandbox.base import Layer, SandboxFailure
from etude.sandbox.hosts import StoringHost
from etude.sandbox.sentinel import CAUSED_INSIDE, host_works
from etude.tasks.environment.layers import task_layers
from etude.tasks.format.task import Task
from etude.tasks.grading.grader import GradeJob, GraderFailure
from etude.tasks.grading.submission import Submission, SubmittedFile
from etude.tasks.grading.verdict import Grade
from etude.tasks.kinds.table import kind_of

TRIES: Final = 3
CAUSED_BY_CODE: Final = (*CAUSED_INSIDE, "report", "killed")  # "deadline" is in both vocabularies
LASTING: Final = ("launcher", "store", "closed", "busy")  # another try on this host would meet the same


async def grade(
    task: Task,
    host: StoringHost,
    submission: Submission | Sequence[SubmittedFile],
    settings: GraderSettings | None = None,
    *,
    rng: random.Random | None = None,
    hash_seed: int | None = None,
    order: int | None = None,
    env: Mapping[str, str] | None = None,
    over: Sequence[Layer] = (),
    quick: bool = False,
    answer: str = "",
) -> Grade:
    """Grades these files, or the agent's last message (`answer`) where the task asks a question.

    `GradeJob` says what the other options mean. What the machinery does wrong is raised, and is nobody's score: what
    no submission can bring about, or what happens to the task's own solution as well.
    """
    started = time.monotonic()
    submission = submission if isinstance(submission, Submission) else Submission(tuple(submission))
    job = GradeJob(
        task, host, submission, settings or GraderSettings(), answer, rng, hash_seed, order, env or {}, over, quick
    )
    found = await _grade_again(job)
    return dataclasses.replace(
        found,
        refused=(*((each.path, each.why) for each in submission.refused), *found.refused),
        backend=host.capabilities.backend,
        seconds=time.monotonic() - started,
    )


async def _grade_again(job: GradeJob) -> Grade:
    for left in reversed(range(TRIES)):
        try:
            return await kind_of(job.task).grade(job)
        except (GraderFailure, SandboxFailure) as failure:
            if failure.cause in LASTING:
                raise
            if left:
                continue
            if failure.cause not in CAUSED_BY_CODE or not await _machinery_works(job):
                raise
            why = f"it could not be graded in {TRIES} tries, while the task's own solution can: {failure}"
            return Grade(False, "crash", why)
    raise AssertionError("unreachable")


async def _machinery_works(job: GradeJob) -> bool:
    """Whether this host can grade the task's own solution or, where it has none, run any program."""
    reference = kind_of(job.task).reference(job.task)
    if reference is None:
        return await host_works(job.host, task_layers(job.task, job.host))
    try:
        await kind_of(job.task).grade(
            dataclasses.replace(job, submission=reference.submission, answer=reference.answer)
        )
    except (GraderFailure, SandboxFailure):
        return False
    return True
