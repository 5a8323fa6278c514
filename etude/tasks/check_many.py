"""Many task directories checked one after another, each with the answers of the others as guesses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from etude.core.errors import EtudeError
from etude.core.settings import GraderSettings
from etude.sandbox.hosts import StoringHost
from etude.tasks.check import CheckReport, check_directory
from etude.tasks.format.task import Task


async def check_directories(
    folders: Sequence[Path], host: StoringHost, grader: GraderSettings, on_done: Callable[[], None]
) -> dict[Path, CheckReport]:
    """Lints and tries each task without a model."""
    for directory in folders:
        if not directory.is_dir():
            raise EtudeError(f"there is no task directory {directory}")
    answers = _answers(folders)
    reports = {}
    for directory in folders:
        others = (answers - _answers([directory])).most_common(1)
        reports[directory] = await check_directory(directory, host, grader, [answer for answer, _ in others])
        on_done()
    return reports


def _answers(folders: Sequence[Path]) -> Counter[str]:
    """What is right for the tasks that ask something: the best guess of somebody who knows the others."""
    found: Counter[str] = Counter()
    for folder in folders:
        try:
            expected = Task.load(folder).facts.answer
        except EtudeError:  # it is said when the task is checked
            continue
        if expected is not None:
            found[", ".join(expected.accepted)] += 1
    return found
