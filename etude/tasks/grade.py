"""Whether a rollout solved its task, whatever kind of outcome the task asks for. Knows no policy."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Mapping, Sequence

from etude.core.settings import GraderSettings
from etude.sandbox.base import Layer
from etude.sandbox.hosts import StoringHost
from etude.tasks.format.task import Task
from etude.tasks.grading.grader import GradeJob
from etude.tasks.grading.submission import Submission, SubmittedFile
from etude.tasks.grading.verdict import Grade
from etude.tasks.kinds.table import kind_of


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

    `GradeJob` says what the other options mean. What the machinery does wrong is raised, and is nobody's score.
    """
    started = time.monotonic()
    submission = submission if isinstance(submission, Submission) else Submission(tuple(submission))
    job = GradeJob(
        task, host, submission, settings or GraderSettings(), answer, rng, hash_seed, order, env or {}, over, quick
    )
    found = await kind_of(task).grade(job)
    return dataclasses.replace(
        found,
        refused=(*((each.path, each.why) for each in submission.refused), *found.refused),
        backend=host.capabilities.backend,
        seconds=time.monotonic() - started,
    )
