"""A repository's history: its commits, what each touched, files as they were, and three-way merges of files.

Reads a bare history of ours with git, never a checkout and never somebody's configuration. Knows no language.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from etude.core.errors import EtudeError

LATEST: Final = 2000  # commits that are looked at
SECONDS: Final = 60.0
_ENV: Final = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    # A prompt for a password would wait for ever.
    "GIT_TERMINAL_PROMPT": "0",
    # A replace object can stand for any other one.
    "GIT_NO_REPLACE_OBJECTS": "1",
    "LC_ALL": "C",
    "HOME": os.devnull,
}


def list_commits(history: Path) -> Iterator[tuple[str, str]]:
    """Hash and subject, the newest first."""
    # A merge has no change of its own.
    listed = _git(history, "log", "--no-merges", f"--max-count={LATEST}", "--format=%H%x00%s", "HEAD")
    for line in listed.decode("utf-8", "replace").splitlines():
        commit, _, subject = line.partition("\0")
        yield commit, subject


def touched_files(history: Path, commit: str) -> dict[str, str]:
    """What a commit did to each file, by path: A, M, D."""
    listed = _git(history, "diff-tree", "-r", "--no-commit-id", "--no-renames", "--name-status", "-z", commit)
    parts = listed.decode("utf-8", "surrogateescape").split("\0")[:-1]
    return dict(zip(parts[1::2], parts[::2], strict=True))


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


def read_blob(history: Path, commit: str, path: str) -> bytes | None:
    """A file as a commit left it; None where it had none."""
    done = _run(history, "cat-file", "blob", f"{commit}:{path}")
    return done.stdout if done.returncode == 0 else None


def _git(history: Path, *arguments: str) -> bytes:
    done = _run(history, *arguments)
    if done.returncode != 0:
        message = done.stderr.decode(errors="replace").strip()[:300]
        raise EtudeError(f"git cannot read the history at {history}: {message}")
    return done.stdout


def _run(history: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    # The history is a copy of somebody's repository: no hook, monitor or protocol of it may run.
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
