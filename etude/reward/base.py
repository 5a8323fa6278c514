"""What a part of the reward is: a name in a recipe, settings, and one number for a graded rollout.

A part is asked only about rollouts that were graded; a failure of the machinery never reaches it. Knows no part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pydantic

from etude.audit.base import Ruling
from etude.behaviours.base import Behaviour, Site
from etude.harness.trajectory import Trajectory
from etude.tasks.format.task import Task
from etude.tasks.grading.submission import Submission
from etude.tasks.grading.verdict import Grade


@dataclass(frozen=True)
class GradedRollout:
    """Everything about one rollout: the task, what was done, what of it reached the grader, its grade, its audit."""

    task: Task
    trajectory: Trajectory
    changes: Submission
    grade: Grade
    ruling: Ruling | None = None  # of the audit, which has not seen the grade; None: rollouts of this task have none
    sites: Mapping[Behaviour, Sequence[Site]] = field(
        default_factory=dict
    )  # of behaviours, those that a part counts among them


class Part:
    """Base of all parts. One instance serves many rollouts."""

    class Settings(pydantic.BaseModel, extra="forbid", frozen=True):
        """What a recipe may set beside `use` and `weight`."""

    name = ""  # in logs, where it is not the one that the recipe uses
    behaviour: Behaviour | None = None  # whose sites it counts

    def __init__(self, settings: Any) -> None:
        self.settings = settings

    def concerns(self, task: Task) -> bool:
        """Whether it counts for rollouts of this task; where not, it is not asked and not logged."""
        return True

    def score(self, rollout: GradedRollout) -> float:
        """A finite number, more is better; its weight is the recipe's business."""
        raise NotImplementedError
