"""Grades a folder: what somebody made of a task's workspace, by hand or with any tool, without a rollout."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from etude.core.errors import EtudeError
from etude.core.settings import GraderSettings
from etude.sandbox.hosts import StoringHost
from etude.tasks.format.file_tree import Files
from etude.tasks.format.task import Task
from etude.tasks.grade import grade
from etude.tasks.grading.submission import submission_of
from etude.tasks.grading.verdict import Grade

# What tools leave behind, in nobody's way and no part of the work.
LEFT_OUT: Final = frozenset(
    (".git", "__pycache__", ".venv", "venv", "node_modules", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".tox")
)


def changes_in(task: Task, folder: Path, *, only_changes: bool = False) -> dict[str, bytes | None]:
    """How a folder differs from the task's workspace: None for files that are gone. With `only_changes` the folder has
    nothing but new and changed files, and none counts as gone."""
    if not folder.is_dir():
        raise EtudeError(f"there is no folder {folder}: give a copy of the task's environment/workspace, changed")
    found = Files.scan(folder, skip=LEFT_OUT)
    before = [path for path in task.workspace if not LEFT_OUT.intersection(path.split("/"))]
    gone = [path for path in before if path not in found]
    if not only_changes and 2 * len(gone) > len(before):
        raise EtudeError(
            f"{folder} lacks {len(gone)} of the {len(before)} files of the workspace: give a whole copy of it, or say "
            "--only-changes where it has nothing but new and changed files"
        )
    changes: dict[str, bytes | None] = {} if only_changes else dict.fromkeys(gone)
    for path in found:
        if path not in task.workspace or found[path] != task.workspace[path]:
            changes[path] = found[path]
    return changes


async def grade_folder(
    task: Task,
    folder: Path,
    host: StoringHost,
    settings: GraderSettings | None = None,
    *,
    only_changes: bool = False,
    answer: str = "",
) -> Grade:
    """The grade that a rollout would get that left the workspace like this, and said `answer` last."""
    changes = changes_in(task, folder, only_changes=only_changes)
    return await grade(task, host, submission_of(task, changes), settings, answer=answer)
