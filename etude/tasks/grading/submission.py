"""What an agent changed, as far as it may reach the grader: plain files at allowed paths, small, by honest names.

Everything else stays behind and is named with the reason. A file that could steer the run of tests instead of being
tested (settings, hooks, bytecode) stays behind even where a glob covers it; only a pattern that spells its name
allows it, and of files that hold settings beside packaging (`packaged`) only the latter may have changed. Knows the
sandbox's list of changes, never the grader.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from etude.core.errors import EtudeError
from etude.sandbox.base import WORKSPACE, Change, Sandbox
from etude.tasks.format.files import check_path
from etude.tasks.format.task import Task, matches
from etude.tasks.grading.packaging_config import steering_change

STEERING = re.compile(
    r"(^|/)(conftest\.py|\.?pytest\.(ini|toml)|tox\.ini|setup\.cfg|setup\.py|pyproject\.toml|noxfile\.py"
    r"|sitecustomize\.py|usercustomize\.py|[^/]*\.(pyc|pyo|pth|so|pyd|egg-link)"
    r"|package(-lock)?\.json|npm-shrinkwrap\.json|\.npmrc|\.(mocha|nyc|tap|babel|swc)rc[^/]*|[^/]*\.(node|wasm))$"
    r"|(^|/)(__pycache__|node_modules|[^/]*\.(egg-info|dist-info))(/|$)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class CarryLimits:
    """How much one attempt may change."""

    files: int = 1000
    file_bytes: int = 4 << 20
    total_bytes: int = 32 << 20


@dataclass(frozen=True)
class Carried:
    """One file as the agent left it."""

    path: str  # in the workspace
    data: bytes | None  # None: deleted
    executable: bool = False


@dataclass(frozen=True)
class Refused:
    """One change that stays behind."""

    path: str
    why: str


@dataclass(frozen=True)
class Submission:
    carried: tuple[Carried, ...] = ()
    refused: tuple[Refused, ...] = ()


async def collect(task: Task, sandbox: Sandbox, limits: CarryLimits | None = None) -> Submission:
    """The agent's changes. A tree that cannot be listed or read is the agent's doing: nothing of it is carried."""
    limits = limits or CarryLimits()
    try:
        listed = await sandbox.diff(WORKSPACE)
    except OSError as error:
        return Submission(refused=(Refused("", f"the workspace cannot be listed: {error.strerror}"),))
    carried: list[Carried] = []
    refused: list[Refused] = []
    room = limits.total_bytes
    for change, path in _files(listed):
        why = _why_not(task, change, path, limits)
        if not why and len(carried) == limits.files:
            why = f"it is one of more than {limits.files} files"
        if not why and change.kind != "deleted" and change.size > room:
            why = f"the files together have more than {limits.total_bytes} bytes"
        if not why and change.kind == "deleted":
            if not (why := steering_change(path, task.workspace.get(path), None)):
                carried.append(Carried(path, None))
        elif not why:
            try:
                data = await sandbox.read(change.path, limit=limits.file_bytes)
            except OSError as error:
                why = f"it cannot be read: {error.strerror}"
            else:
                room -= len(data)
                if not (why := steering_change(path, task.workspace.get(path), data)):
                    carried.append(Carried(path, data, bool(change.mode & 0o100)))
        if why:
            refused.append(Refused(path, why))
    return Submission(tuple(carried), tuple(refused))


def carried_files(task: Task, files: dict[str, bytes | None], limits: CarryLimits | None = None) -> Submission:
    """The same for files that are given (a solution, a saved attempt): what `collect` would let through."""
    limits = limits or CarryLimits()
    carried: list[Carried] = []
    refused: list[Refused] = []
    for path, data in sorted(files.items()):
        change = Change(path, "deleted" if data is None else "modified", "file", len(data or b""), 0o644)
        why = _why_not(task, change, path, limits) or steering_change(path, task.workspace.get(path), data)
        if why:
            refused.append(Refused(path, why))
        else:
            carried.append(Carried(path, data))
    return Submission(tuple(carried), tuple(refused))


def _files(listed: list[Change]) -> Iterator[tuple[Change, str]]:
    """Changes to anything but folders, which come and go with their files; with their paths in the workspace."""
    for change in listed:
        if change.what != "folder":
            yield change, change.path.removeprefix(f"{WORKSPACE}/")


def _why_not(task: Task, change: Change, path: str, limits: CarryLimits) -> str:
    try:
        check_path(path)
    except EtudeError:
        return "its name is not plain"
    if not task.allows(path):
        return "the task does not allow it"
    if STEERING.search(path) and not any(matches(path, pattern) and _spelled(path, pattern) for pattern in _all(task)):
        return "it steers tests or hides its source, and the task does not allow it by name"
    if change.what != "file" and change.kind != "deleted":
        return "it is a link" if change.what == "link" else "it is no plain file"
    if change.size > limits.file_bytes:
        return f"it has {change.size} bytes, more than {limits.file_bytes}"
    return ""


def _all(task: Task) -> list[str]:
    return task.facts.allowed_paths


def _spelled(path: str, pattern: str) -> bool:
    return path.rpartition("/")[2] == pattern.rpartition("/")[2]
