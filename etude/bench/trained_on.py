"""Which of a benchmark's tasks the model was trained on, and how a benchmark is called accordingly.

"Held-out" is said of tasks of which none is in the list that the run kept while it trained (and the runs that its
models came from). Of a model that comes from elsewhere nobody here knows, and then nothing is claimed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from etude.bench.result import TaskRow
from etude.core.errors import EtudeError
from etude.core.run_files import read_facts, read_recipe, run_of
from etude.rollout.trained_tasks import read_trained_tasks

DEEPEST = 20  # runs whose models were started from one another
TRAINS_ON_TASKS = ("demos", "rl")  # stages that keep the list


def tasks_trained_on(model: Path) -> dict[str, str] | None:
    """Identity -> name of every task that a run, or the model in one, was trained on; None where nobody knows.

    Follows a run to the runs that its models started from. A model from outside of any run adds nothing.
    """
    run = run_of(model)
    return _of_run(run, DEEPEST) if run is not None else None


def _of_run(run: Path, depth: int) -> dict[str, str] | None:
    recipe, stages = read_recipe(run), read_facts(run)["stages"]
    found = read_trained_tasks(run)
    if found is None:
        # A run of an earlier version kept no list; one that has come to no such stage yet needs none.
        if any(name in stages for name in TRAINS_ON_TASKS):
            return None
        found = {}
    for start in _started_from(recipe):
        earlier = run_of(start)
        if earlier is not None and earlier.resolve() != run.resolve() and depth:
            before = _of_run(earlier, depth - 1)
            if before is None:
                return None
            found |= before
    return found


def _started_from(recipe: dict[str, Any]) -> Iterable[Path]:
    for section in ("sft", "rl"):
        name = recipe.get(section, {}).get("model")
        if name and Path(name).exists():
            yield Path(name)


def known_trained(model: Path) -> dict[str, str] | None:
    """The same for a report, in which a file that cannot be read must not hide the rest."""
    try:
        return tasks_trained_on(model)
    except (EtudeError, KeyError, TypeError):
        return None


def count_trained(rows: Sequence[TaskRow], trained: Iterable[str] | None) -> int | None:
    """How many of these tasks are in the list; None where there is none, or the rows are of unknown tasks."""
    if trained is None or any(not row.identity for row in rows):
        return None
    known = set(trained)
    return sum(row.identity in known for row in rows)


def called(tasks: int, trained: int | None) -> str:
    """What to call the tasks of a benchmark: held-out ones only where that is known."""
    if trained is None:
        return "benchmark tasks"
    if not trained:
        return "held-out tasks"
    return "training tasks" if trained >= tasks else f"tasks, {trained} of them trained on"


def warning(tasks: int, trained: int | None) -> str:
    """One sentence for people where the figure is not of held-out tasks; empty where it is."""
    if trained is None:
        return "It is not known which of these tasks the model was trained on."
    if not trained:
        return ""
    part = "all" if trained >= tasks else f"{trained}"
    return f"The model was trained on {part} of these {tasks} tasks: this figure is not a held-out one."
