"""Reverted commits: what a commit did to the code is undone in today's tree, its tests stay and judge.

Reads a bare history of ours with git, never a checkout and never somebody's configuration, and merges each file
three ways (today's, with the commit, before it). A commit whose lines have changed since is left out. What is code and
what is a test, the world tells, of whatever language it is. Knows no tests' outcomes.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from etude.core.errors import EtudeError
from etude.forge.languages.base import Repository, S, Source
from etude.forge.steps.candidate import Candidate, RemovedCode

LATEST: Final = 2000  # commits that are looked at
MOST_FILES: Final = 8
MOST_LINES: Final = 400
SECONDS: Final = 60.0
_ENV: Final = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "LC_ALL": "C",
    "HOME": os.devnull,
}


def commits(world: Repository[Any], history: Path) -> Iterator[Candidate]:
    """The newest first: those are the least likely to have been changed since."""
    listed = _git(history, "log", "--no-merges", f"--max-count={LATEST}", "--format=%H%x00%s", "HEAD")
    for line in listed.decode("utf-8", "replace").splitlines():
        commit, _, subject = line.partition("\0")
        made = revert(world, history, commit, subject)
        if made is not None:
            yield made


def revert(world: Repository[Any], history: Path, commit: str, subject: str) -> Candidate | None:
    """The candidate without this commit's changes to the code, where they can be undone."""
    listed = _git(history, "diff-tree", "-r", "--no-commit-id", "--no-renames", "--name-status", "-z", commit)
    parts = listed.decode("utf-8", "surrogateescape").split("\0")[:-1]
    touched = dict(zip(parts[1::2], parts[::2], strict=True))
    code = [path for path in touched if path in world.sources]
    tests = [path for path in touched if path in world.test_files]
    gone = [path for path, how in touched.items() if how == "D" and path.endswith(world.manner.endings)]
    if not code or not tests or gone or len(code) > MOST_FILES:
        return None
    changes: dict[str, bytes | None] = {}
    pieces: list[RemovedCode] = []
    lines = 0
    for path in code:
        now, then = world.files[path], _show(history, commit, path)
        before = None if touched[path] == "A" else _show(history, f"{commit}^", path)
        if then is None or (before is None and then != now):
            return None
        undone = merged(now, then, before) if before is not None else None
        if undone is None and before is not None:
            return None
        if undone == now:
            continue
        file = world.sources[path]
        after = world.read(path, undone) if undone is not None else None
        if undone is not None and after is None:
            return None
        changes[path] = undone
        pieces += [_piece(file, each, after) for each in _changed(file, after)]
        lines += len(_lines(file) - (_lines(after) if after is not None else set()))
    if not changes or not pieces or lines > MOST_LINES:
        return None
    ids = {each.id for each in pieces}
    expected = {
        test for test in world.green if world.collected(test).path in tests or world.traces.get(test, set()) & ids
    }
    about = re.sub(r"\s*\(?#\d+\)?", "", subject).strip()
    return Candidate("commit", commit[:12], changes, tuple(pieces), frozenset(expected), about, lines)


def own_tests(world: Repository[Any], history: Path, commit: str) -> set[tuple[str, str]]:
    """The tests that a commit added or changed, as (path, name)."""
    found = set()
    for path in world.test_files:
        then, before = _show(history, commit, path), _show(history, f"{commit}^", path)
        if then is None or then == before:
            continue
        now, old = world.written(path, world.files[path]), world.written(path, before or b"")
        changed = {name for name, text in world.written(path, then).items() if old.get(name) != text}
        found |= {(path, name) for name in changed & now.keys()}
    return found


def _changed(file: Source[S], after: Source[S] | None) -> Iterator[S]:
    """Functions that differ, and classes that are not there without the commit."""
    for name, each in file.definitions.items():
        before = after.definitions.get(name) if after is not None else None
        same = after is not None and before is not None and after.source(before) == file.source(each)
        if before is None or not (same or _has_parts(file, each)):
            yield each


def _has_parts(file: Source[S], each: S) -> bool:
    """Whether it is a class: others stand in it, which differ by themselves."""
    source = file.source(each)
    parts = [other for name, other in file.definitions.items() if name.startswith(f"{each.name}.")]
    return any(file.source(part) in source for part in parts)


def _lines(file: Source[Any]) -> set[bytes]:
    return set(file.data.splitlines(keepends=True))


def _piece(file: Source[S], each: S, after: Source[S] | None) -> RemovedCode:
    gone = after is None or each.name not in after.definitions
    return RemovedCode(each.path, each.name, file.source(each), each.signature, each.doc, each.size, gone)


def merged(now: bytes, then: bytes, other: bytes) -> bytes | None:
    """`now` with the step from `then` to `other` made as well; None where the two meet in the same lines."""
    if now == then:
        return other
    with tempfile.TemporaryDirectory(prefix="etude-merge-") as folder:
        names = ("now", "then", "other")
        for name, data in zip(names, (now, then, other), strict=True):
            (Path(folder) / name).write_bytes(data)
        done = subprocess.run(
            ["git", "merge-file", "--stdout", *names],
            cwd=folder,
            env={"PATH": os.environ.get("PATH", os.defpath), **_ENV},
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
    return done.stdout if done.returncode == 0 else None


def _show(history: Path, commit: str, path: str) -> bytes | None:
    done = _run(history, "cat-file", "blob", f"{commit}:{path}")
    return done.stdout if done.returncode == 0 else None


def _git(history: Path, *arguments: str) -> bytes:
    done = _run(history, *arguments)
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()[:300]
        raise EtudeError(f"git cannot read the history at {history}: {said}")
    return done.stdout


def _run(history: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    safe = ("-c", "core.fsmonitor=", "-c", f"core.hooksPath={os.devnull}", "-c", "protocol.allow=never")
    try:
        return subprocess.run(
            ["git", f"--git-dir={history}", *safe, *arguments],
            env={"PATH": os.environ.get("PATH", os.defpath), **_ENV},
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
    except FileNotFoundError:
        raise EtudeError("reverted commits need git, which is not installed; leave them out with --from") from None
    except subprocess.TimeoutExpired:
        raise EtudeError(f"git took more than {SECONDS:g} s over the history at {history}") from None
