"""What a teacher may know of a whole rollout that the student did not: what went wrong in it, or the reference.

Self-distillation (SDPO, SDFT, OPSD) puts such a text above the first turn, and the teacher reads the rest of the
rollout below it. Knows tasks and trajectories; no tokens.
"""

from __future__ import annotations

from etude.core.policy import Assistant, ToolResult
from etude.harness.trajectory import Trajectory
from etude.harness.truncate import shorten
from etude.tasks.format.task import Task

LONGEST = 1200  # characters; more would crowd the rollout out of the teacher's context
EACH = 240  # of one error


def own_errors(task: Task, trajectory: Trajectory) -> str:
    """What tools answered to calls that failed, each once; empty where none did."""
    records = [r for r in trajectory.entries if r.segment >= 0 and r.error not in (None, "HarnessBug")]
    texts = [r.message.text if isinstance(r.message, ToolResult) else r.note for r in records]
    told = [shorten(text.removeprefix("error: "), EACH) for text in dict.fromkeys(texts) if text]
    return shorten("Earlier this went wrong: " + "; ".join(told), LONGEST) if told else ""


def solution(task: Task, trajectory: Trajectory) -> str:
    """The files of the reference that differ from the workspace; empty where the task has none."""
    changed = [path for path in task.solution if task.workspace.get(path) != task.solution[path]]
    texts = [f"{path}:\n{task.solution.text(path).strip()}" for path in changed]
    return shorten("A right result is\n" + "\n".join(texts), LONGEST) if texts else ""


TEXTS = {"errors": own_errors, "solution": solution}


def first_turn(trajectory: Trajectory) -> int | None:
    """The entry of the first turn of this rollout."""
    entries = enumerate(trajectory.entries)
    return next((i for i, r in entries if r.segment >= 0 and isinstance(r.message, Assistant)), None)
