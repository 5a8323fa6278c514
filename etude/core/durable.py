"""Files and folders that survive a kill and a full disk.

A folder is written under a hidden name and gets its own by one atomic rename, after everything in it has
reached the disk; a small file is replaced whole. Knows nothing about runs or about what the files hold.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from etude.core.errors import EtudeError

SEAL = "checkpoint.json"  # in each committed folder: its files and their sizes, which shows a truncated copy


class CannotSave(Exception):
    """Why a folder was not committed, in a few words."""


@contextmanager
def commit_folder(final: Path, **facts: Any) -> Iterator[Path]:
    """A temporary folder that becomes `final` when the block succeeds, or vanishes. `facts` go into its seal."""
    working = final.with_name(f".{final.name}.saving")
    try:
        shutil.rmtree(working, ignore_errors=True)
        working.mkdir(parents=True)
        yield working
        sizes = {str(file.relative_to(working)): file.stat().st_size for file in _files(working)}
        (working / SEAL).write_text(json.dumps(facts | {"files": sizes}, indent=1))
        # Contents first, then folders, then the rename: the order in which a crash can do no harm.
        for file in _files(working):
            sync(file)
        for folder in [entry for entry in working.rglob("*") if entry.is_dir()] + [working]:
            sync(folder)
        _swap(working, final)
    except BaseException as error:
        shutil.rmtree(working, ignore_errors=True)
        if isinstance(error, Exception) and _says_full(error):
            raise CannotSave("the disk is full") from error
        if isinstance(error, OSError):
            raise CannotSave(why_not(error)) from error
        raise


def _swap(working: Path, final: Path) -> None:
    aside = final.with_name(f".{final.name}.replaced")
    if final.exists():  # a resumed run that saves its last step again
        # In two steps, because a folder cannot be renamed over one that is not empty; `sweep` mends a kill in between.
        shutil.rmtree(aside, ignore_errors=True)
        final.rename(aside)
    working.rename(final)
    # A rename is safe only when the folder that it happened in is on the disk.
    sync(final.parent)
    shutil.rmtree(aside, ignore_errors=True)


def check_folder(folder: Path) -> None:
    """Refuse a checkpoint whose files are missing or not as long as they were written."""
    advice = f"remove {folder} to continue from the one before it"
    try:
        files = json.loads((folder / SEAL).read_text())["files"]
    except (OSError, ValueError, KeyError) as error:
        raise EtudeError(f"checkpoint {folder.name} is damaged: its {SEAL} cannot be read; {advice}") from error
    for name, size in files.items():
        file = folder / name
        have = file.stat().st_size if file.is_file() else None
        if have is None:
            raise EtudeError(f"checkpoint {folder.name} is damaged: {name} is missing; {advice}")
        if have != size:
            raise EtudeError(f"checkpoint {folder.name} is damaged: {name} has {have} of {size} bytes; {advice}")


def remove_folder(folder: Path) -> None:
    """Out of sight first: a kill in the middle of the deletion never leaves half a checkpoint under its name."""
    gone = folder.with_name(f".{folder.name}.removed")
    folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def sweep(root: Path) -> None:
    """Remove what killed processes left half-made; put back a checkpoint whose replacement never came."""
    for entry in list(root.iterdir()) if root.is_dir() else []:
        if not entry.name.startswith("."):
            continue
        name = entry.name.removeprefix(".").removesuffix(".replaced")
        if entry.name.endswith(".replaced") and not (root / name).exists():
            entry.rename(root / name)
        else:
            shutil.rmtree(entry, ignore_errors=True)


def write_whole(path: Path, data: str | bytes) -> None:
    """Replace a file whole: a reader sees the old one or the new one."""
    working = path.with_name(f".{path.name}.saving")
    try:
        working.write_bytes(data.encode() if isinstance(data, str) else data)
        sync(working)
        working.replace(path)
        sync(path.parent)
    except OSError as error:
        working.unlink(missing_ok=True)
        raise EtudeError(f"cannot write {path}: {why_not(error)}") from error


def why_not(error: OSError) -> str:
    """What went wrong with a file, and what helps against that."""
    helps = {
        errno.ENOSPC: "make room",
        errno.EDQUOT: "make room",
        errno.EACCES: "choose a place that you may write to",
        errno.EPERM: "choose a place that you may write to",
        errno.EROFS: "choose a place that you may write to",
        errno.ENOENT: "choose a folder that exists or can be made",
        errno.ENOTDIR: "a part of this path is a file; choose another place",
        errno.EEXIST: "a file is in the way; choose another place",
        errno.EISDIR: "a folder is in the way; choose another name",
    }
    advice = helps.get(error.errno or 0)
    return f"{error.strerror or error}; {advice}" if advice else str(error.strerror or error)


def check_writable(path: Path) -> None:
    """Refuse a file that could not be written at the end of long work; makes the folder that it lies in."""
    probe = path.with_name(f".{path.name}.probe")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise EtudeError(f"cannot write {path}: {why_not(error)}") from None


def append_line(path: Path, line: str) -> None:
    try:
        # Without a sync for each row: a checkpoint syncs metrics.jsonl before it counts (run.py).
        with path.open("a") as file:
            file.write(line + "\n")
    except OSError as error:
        raise EtudeError(f"cannot write {path}: {why_not(error)}, and run the same command again") from error


def cut_torn_line(path: Path) -> None:
    """A killed process can leave half a line; what we append must not be glued to it."""
    if not path.exists():
        return
    data = path.read_bytes()
    if data and not data.endswith(b"\n"):
        os.truncate(path, data.rfind(b"\n") + 1)


def sync(path: Path) -> None:
    """Wait until the file or folder is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _says_full(error: BaseException) -> bool:
    # safetensors reports a full disk as its own exception with the system's words in the text.
    full = (errno.ENOSPC, errno.EDQUOT)
    return getattr(error, "errno", None) in full or any(
        words in str(error) for words in ("No space left", "StorageFull", "os error 28", "Disk quota")
    )
