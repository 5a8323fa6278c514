"""The habit `hint` of demonstrations: a hint stands above a turn, and the turn heeds it.

Made from rollouts in which the reference slips: the call that failed and its answer are taken out, and what feedback
would say about it stands above the call that was right. So the texts of hints are those of feedback, every answer is
what a tool really said, and a model learns that what a hint speaks of does not happen below it.
"""

from __future__ import annotations

import random
from dataclasses import replace

from etude.behaviours.base import steps_of
from etude.behaviours.tool_errors import ToolErrors
from etude.core.policy import Assistant, Message
from etude.harness.hinted import hint_message
from etude.harness.trajectory import Trajectory
from etude.policies.scripted import Habits
from etude.tasks.format.task import Task


def habits_for(task: Task, seed: int, habits: Habits) -> Habits:
    """Those of one demonstration: with a hint in it, the reference first slips wherever it can."""
    hinted = random.Random(f"hint/{task.name}/{seed}").random() < habits.hint
    return replace(habits, slip=1.0, again=float(habits.again > 0)) if hinted else replace(habits, hint=0.0)


def with_hints(trajectory: Trajectory) -> tuple[Message, ...]:
    """The conversation with a hint in place of each turn of which nothing worked."""
    steps = steps_of(trajectory)
    worked = {step.turn for step in steps if step.result is None or step.result.error is None}
    sites = [site for site in ToolErrors(ToolErrors.Settings(classes=[])).sites(trajectory) if site.hint]
    told: dict[int, list[str]] = {}
    for site in sites:
        if site.message not in worked:
            told.setdefault(site.message, []).append(site.hint)
    found: list[Message] = []
    hints: list[str] = []
    thinking, skipping = "", False
    for entry, message in enumerate(trajectory.messages):
        if isinstance(message, Assistant):
            skipping = entry in told
            if skipping:
                thinking = thinking if hints else message.thinking
                hints += told[entry]
                continue
            if hints:
                found.append(hint_message(" ".join(hints)))
                # What it thought of the error that is no longer there would make no sense.
                message, hints = replace(message, thinking=thinking), []
        if not skipping:
            found.append(message)
    return tuple(found)
