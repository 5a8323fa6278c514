"""Reverted commits: what a commit did to the code is undone in today's tree, its tests stay.

Each file is merged three ways (today's, with the commit, before it). A commit whose lines have changed since is left
out. What is code and what is a test, the repository knows. Knows no tests' outcomes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from etude.forge.languages.base import LocatedTest, Repository, S, Source
from etude.forge.steps.candidate import Candidate, LeftOut, RemovedCode
from etude.forge.steps.git_history import list_commits, merged, read_blob, touched_files

MOST_FILES: Final = 8
MOST_LINES: Final = 400


def commits(
    repository: Repository[Any], history: Path, leave_out: Callable[[LeftOut], None] = lambda _: None
) -> Iterator[Candidate]:
    """The newest first: those are the least likely to have been changed since. Those that cannot be undone are told."""
    for commit, subject in list_commits(history):
        made = revert(repository, history, commit, subject)
        if isinstance(made, Candidate):
            yield made
        else:
            leave_out(LeftOut(f"commit-{commit[:12]}", "commit", commit[:12], made, subject))


def revert(repository: Repository[Any], history: Path, commit: str, subject: str) -> Candidate | str:
    """The candidate without this commit's changes to the code, or why they cannot be undone."""
    touched = touched_files(history, commit)
    code = [path for path in touched if path in repository.sources]
    tests = [path for path in touched if path in repository.test_files]
    gone = [path for path, how in touched.items() if how == "D" and path.endswith(repository.task_files.endings)]
    if not code:
        return "the commit changes no code"
    if not tests:
        return "the commit changes no tests"
    if gone:
        return "the commit removes a file"
    if len(code) > MOST_FILES:
        return f"the commit changes more than {MOST_FILES} files of code"
    changes: dict[str, bytes | None] = {}
    pieces: list[RemovedCode] = []
    lines = 0
    for path in code:
        now, then = repository.files[path], read_blob(history, commit, path)
        before = None if touched[path] == "A" else read_blob(history, f"{commit}^", path)
        if then is None or (before is None and then != now):
            return "a file that the commit added has changed since"
        undone = merged(now, then, before) if before is not None else None
        if undone is None and before is not None:
            return "lines of the commit have changed since"
        if undone == now:
            continue
        file = repository.sources[path]
        after = repository.read(path, undone) if undone is not None else None
        if undone is not None and after is None:
            return "without the commit a file cannot be read"
        changes[path] = undone
        kept = after.definitions if after is not None else {}
        pieces += [RemovedCode.of(repository, each, gone=each.name not in kept) for each in _changed(file, after)]
        lines += len(_lines(file) - (_lines(after) if after is not None else set()))
    if not changes:
        return "nothing of the commit is left today"
    if not pieces:
        return "the commit changes no function"
    if lines > MOST_LINES:
        return f"the commit has more than {MOST_LINES} lines of code"
    ids = {each.id for each in pieces}
    expected = {
        test
        for test in repository.green
        if repository.collected(test).path in tests or repository.traces.get(test, set()) & ids
    }
    about = re.sub(r"\s*\(?#\d+\)?", "", subject).strip()
    # Most fixes come with one regression test; a commit says itself what it is for, so one is enough.
    made = Candidate("commit", commit[:12], changes, tuple(pieces), frozenset(expected), about, lines)
    return replace(made, least_tests=1, least_places=1) if about else made


def own_tests(repository: Repository[Any], history: Path, commit: str) -> set[LocatedTest]:
    """The tests that a commit added or changed."""
    found = set()
    for path in repository.test_files:
        then, before = read_blob(history, commit, path), read_blob(history, f"{commit}^", path)
        if then is None or then == before:
            continue
        now, old = repository.written(path, repository.files[path]), repository.written(path, before or b"")
        changed = {name for name, text in repository.written(path, then).items() if old.get(name) != text}
        found |= {LocatedTest(path, name) for name in changed & now.keys()}
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
