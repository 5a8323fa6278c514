"""What the agent did in training: how often each task passed, what the audit said, and its newest rollouts.

From the rows that reinforcement learning logs for each group, and from the rollouts that the run keeps on disk.
"""

from __future__ import annotations

from collections import Counter

from etude.bench.report.charts import percent
from etude.bench.report.html import Html, join, tag
from etude.bench.report.tables import row, table
from etude.bench.report.trajectories import whole_rollout
from etude.bench.result import Shown
from etude.bench.run_data import RunData
from etude.bench.run_results import is_number
from etude.bench.runner import turn_of
from etude.core.errors import EtudeError
from etude.harness.trajectory_files import FACTS, load_trajectory
from etude.rollout.listing import RolloutLine, TaskRate, list_rollouts, rates_by_task
from etude.rollout.view import printable

MOST_TASKS = 40
NEWEST = 12  # rollouts in the list
VERDICT = "verdict_"


def section(data: RunData) -> Html | None:
    parts = [_tasks(data), _verdicts(data), _newest(data)]
    return join(part for part in parts if part) if any(parts) else None


def task_rates(data: RunData) -> list[TaskRate]:
    """How often each training task passed, those that fail most first."""
    rows = [
        (str(each["task"]), int(each["passed"]), int(each["rollouts"]))
        for each in data.rows("rl.task")
        if is_number(each.get("passed")) and is_number(each.get("rollouts")) and "task" in each
    ]
    return rates_by_task(rows)


def verdicts(data: RunData) -> Counter[str]:
    """How often the audit came to each verdict in training."""
    found: Counter[str] = Counter()
    for each in data.rows("rl"):
        for key, value in each.items():
            if key.startswith(VERDICT) and is_number(value):
                found[key.removeprefix(VERDICT).replace("_", " ")] += int(value)
    return found


def _tasks(data: RunData) -> Html | None:
    rates = task_rates(data)
    if not rates:
        return None
    passed = [rate.passed / max(1, rate.rollouts) for rate in rates]
    never, always = sum(share == 0 for share in passed), sum(share == 1 for share in passed)
    caption = f"{len(rates)} tasks: {never} never passed, {always} always did."
    if len(rates) > MOST_TASKS:
        caption += f" The {MOST_TASKS} that failed most are shown."
    body = [
        row(printable(rate.task), f"{rate.passed} of {rate.rollouts}", percent(share))
        for rate, share in list(zip(rates, passed, strict=True))[:MOST_TASKS]
    ]
    shown = table(["task", "passed", "share"], body, caption)
    return join(tag("h3", "Training tasks"), tag("details", tag("summary", caption), shown))


def _verdicts(data: RunData) -> Html | None:
    found = verdicts(data)
    if not found:
        return None
    whole = sum(found.values())
    body = [row(name, str(number), percent(number / max(1, whole))) for name, number in found.items()]
    return join(tag("h3", "Audit of training rollouts"), table(["verdict", "rollouts", "share"], body))


def _newest(data: RunData) -> Html | None:
    try:
        lines = list_rollouts(data.path)[-NEWEST:]
    except (EtudeError, OSError):
        return None
    if not lines:
        return None
    head = ["rollout", "task", "", "reward", "stopped by", "turns", "tokens"]
    body = [
        row(
            printable(line.name),
            printable(line.task),
            tag("span", line.outcome, class_="chip " + ("good" if line.passed else "bad")),
            "-" if line.reward is None else f"{line.reward:.3g}",
            printable(line.stop),
            str(line.turns),
            str(line.tokens),
        )
        for line in reversed(lines)
    ]
    # The newest that passed and the newest that did not, to be read.
    read = [next((line for line in reversed(lines) if line.passed == passed), None) for passed in (True, False)]
    note = "`etude rollouts` lists all that the run has kept, and shows each in the terminal."
    return join(
        tag("h3", "Newest training rollouts"),
        table(head, body, note),
        [_open(line) for line in read if line is not None],
    )


def _open(line: RolloutLine) -> Html | None:
    if not (line.path / FACTS).exists():
        return None
    try:
        trajectory = load_trajectory(line.path)
    except (EtudeError, OSError):
        return None
    turns = [turn_of(entry) for entry in trajectory.entries]
    shown = Shown(turns, line.passed, trajectory.stop, printable(line.reason), line.tokens)
    return whole_rollout(f"{line.outcome}: {printable(line.task)}", printable(line.name), shown)
