"""What an agent changed, as far as it may reach the grader: plain files at allowed paths, small, by plain names.

Everything else is refused and named with the reason. A file that could steer the run of tests instead of being
tested (settings, hooks, bytecode) is refused even where a glob covers it; only a pattern that spells its name
allows it, and of files that hold settings beside packaging (`packaging_config`) only the latter may have changed.
Knows the sandbox's list of changes, never the grader.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from etude.core.errors import EtudeError
from etude.sandbox.base import WORKSPACE, Change, Sandbox
from etude.tasks.format.file_tree import check_path
from etude.tasks.format.task import Task, matches
from etude.tasks.grading.packaging_config import steering_change

STEERING = re.compile(
    r"(^|/)(conftest\.py|\.?pytest\.(ini|toml)|tox\.ini|setup\.cfg|setup\.py|pyproject\.toml|noxfile\.py"
    r"|sitecustomize\.py|usercustomize\.py|[^/]*\.(pyc|pyo|pth|so|pyd|egg-link)"
    r"|package(-lock)?\.json|npm-shrinkwrap\.json|\.npmrc|\.(mocha|nyc|tap|babel|swc)rc[^/]*|[^/]*\.(node|wasm))$"
    r"|(^|/)(__pycache__|node_modules|[^/]*\.(egg-info|dist-info))(/|$)",
    re.IGNORECASE,
)


MOST_HELD = 64 << 20  # bytes of submissions that a process remembers, for whoever hands in the same once more


@dataclass(frozen=True)
class SubmissionLimits:
    """How much one rollout may change."""

    files: int = 1000
    file_bytes: int = 4 << 20
    total_bytes: int = 32 << 20


@dataclass(frozen=True)
class SubmittedFile:
    """One file as the agent left it."""

    path: str  # in the workspace; of a foreign task from the root of its container
    data: bytes | None  # None: deleted
    executable: bool = False


@dataclass(frozen=True)
class Refused:
    """One change that does not reach the grader."""

    path: str
    why: str


@dataclass(frozen=True)
class Submission:
    files: tuple[SubmittedFile, ...] = ()
    refused: tuple[Refused, ...] = ()

    @property
    def size(self) -> int:
        """Bytes that it keeps in memory, nearly: files can be 32 MB together, and what is refused has no end."""
        kept = sum(len(each.path) + len(each.data or b"") for each in self.files)
        return kept + sum(len(each.path) for each in self.refused) + 200 * (len(self.files) + len(self.refused))

    @property
    def digest(self) -> str:
        """The same for equal ones."""
        found = hashlib.sha256()
        for each in self.files:
            found.update(repr((each.path, each.executable, None if each.data is None else len(each.data))).encode())
            found.update(each.data or b"")
        found.update(repr(self.refused).encode())
        return found.hexdigest()[:16]


async def collect(task: Task, sandbox: Sandbox, limits: SubmissionLimits | None = None) -> Submission:
    """The agent's changes to the workspace, as far as the task allows them."""

    def steers(path: str, data: bytes | None) -> str:
        return steering_change(path, task.workspace.get(path), data)

    return await collect_below(
        sandbox, [WORKSPACE], f"{WORKSPACE}/", lambda path: why_not_allowed(task, path), steers, limits
    )


async def collect_below(
    sandbox: Sandbox,
    roots: Sequence[str],
    above: str,
    refuse: Callable[[str], str],
    refuse_content: Callable[[str, bytes | None], str] = lambda path, data: "",
    limits: SubmissionLimits | None = None,
) -> Submission:
    """Changes below these folders, by their paths without `above`. A tree that cannot be listed or read is the agent's
    doing: nothing of it is submitted. Folders are left out: they come and go with their files."""
    limits = limits or SubmissionLimits()
    files: dict[str, SubmittedFile] = {}
    refused: dict[str, Refused] = {}
    left = limits.total_bytes
    # Folders are looked at in order, and the first one to hold a path decides.
    for root in roots:
        try:
            listed = await sandbox.diff(root)
        except OSError as error:
            path = root.removeprefix(above.rstrip("/")).lstrip("/")
            refused[path] = Refused(path, f"{root} cannot be listed: {error.strerror}")
            continue
        for change in listed:
            path = change.path.removeprefix(above)
            if change.what == "folder" or path in files or path in refused:
                continue
            data = None
            # Before anything is read: a refused file may be of any size.
            why = _why_not_plain(path) or refuse(path) or _why_not_taken(change, limits, len(files), left)
            if not why and change.kind != "deleted":
                try:
                    # The file may have grown since it was listed.
                    data = await sandbox.read(change.path, limit=limits.file_bytes)
                    left -= len(data)
                except OSError as error:
                    why = f"it cannot be read: {error.strerror}"
            if why := why or refuse_content(path, data):
                refused[path] = Refused(path, why)
            else:
                files[path] = SubmittedFile(path, data, data is not None and bool(change.mode & 0o100))
    return Submission(tuple(files.values()), tuple(refused.values()))


def submission_of(task: Task, files: Mapping[str, bytes | None]) -> Submission:
    """The same for files that are given (a solution, a saved rollout): what `collect` would let through."""
    limits = SubmissionLimits()
    submitted: list[SubmittedFile] = []
    refused: list[Refused] = []
    for path, data in sorted(files.items()):
        change = Change(path, "deleted" if data is None else "modified", "file", len(data or b""), 0o644)
        why = _why_not_plain(path) or why_not_allowed(task, path) or _why_not_taken(change, limits, 0, len(data or b""))
        if why := why or steering_change(path, task.workspace.get(path), data):
            refused.append(Refused(path, why))
        else:
            submitted.append(SubmittedFile(path, data))
    return Submission(tuple(submitted), tuple(refused))


def why_not_allowed(task: Task, path: str) -> str:
    """Why a change to this file of the workspace is not graded; nothing where it is."""
    if not task.allows(path):
        return "the task does not allow it"
    name = path.rpartition("/")[2]
    # `src/**` must not let a conftest.py through. Only a pattern that ends in its very name does.
    spelled = (pattern for pattern in task.facts.allowed_paths if pattern.rpartition("/")[2] == name)
    if STEERING.search(path) and not any(matches(path, pattern) for pattern in spelled):
        return "it steers tests or hides its source, and the task does not allow it by name"
    return ""


def _why_not_plain(path: str) -> str:
    try:
        check_path(path)
    except EtudeError:
        return "its name is not plain"
    return ""


def _why_not_taken(change: Change, limits: SubmissionLimits, count: int, left: int) -> str:
    deleted = change.kind == "deleted"
    if change.what != "file" and not deleted:
        return "it is a link" if change.what == "link" else "it is no plain file"
    if change.size > limits.file_bytes and not deleted:
        return f"it has {change.size} bytes, more than {limits.file_bytes}"
    if count == limits.files:
        return f"it is one of more than {limits.files} files"
    if change.size > left and not deleted:
        return f"the files together have more than {limits.total_bytes} bytes"
    return ""
