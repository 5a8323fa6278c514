"""How files came to be what they are: their versions on the main line of a git repository.

A repository is data that somebody else wrote, so git sees only its objects (`corpus/sources/git.py` says how), and it
is asked for two plain things: which blobs each commit changed, and their bytes. Diffs are made here, by `difflib`: no
driver, no filter and no attribute of the repository has a say.
"""

from __future__ import annotations

import difflib
import hashlib
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from etude.core.errors import EtudeError
from etude.corpus.document import CODE_SUFFIXES, FilesSettings, decode, is_safe_path, is_wanted
from etude.corpus.sources.git import OBJECT_ID, PLAIN_FILES, Blob, Reader, find_store, resolve_head

MOST_COMMITS = 20_000  # of the main line, the newest
MOST_VERSIONS = 64  # of one file, the newest
LONGEST_LOG = 256_000_000  # bytes
LARGEST_FILE = 64_000  # bytes of a version
SECONDS = 120.0  # for one call of git


@dataclass(frozen=True)
class History:
    """A file's versions, oldest first; each ends with a line break and differs from the one before it."""

    path: str
    versions: tuple[str, ...]

    @property
    def changes(self) -> int:
        return len(self.versions) - 1


def tidy(path: str, versions: list[str]) -> History:
    """A history of these texts, without versions that change nothing."""
    kept: list[str] = []
    for text in versions:
        whole = text if text.endswith("\n") else f"{text}\n"
        if not kept or kept[-1] != whole:
            kept.append(whole)
    return History(path, tuple(kept))


def diff(old: str, new: str) -> str:
    """The hunks of a unified diff, without file names."""
    lines = difflib.unified_diff(old.split("\n")[:-1], new.split("\n")[:-1], n=3, lineterm="")
    return "".join(f"{line}\n" for place, line in enumerate(lines) if place > 1)


def read_histories(repository: Path, seed: int = 0) -> Iterator[History]:
    """Histories of the files at HEAD that changed at least twice, in an order that depends on path and seed alone."""
    root = repository.expanduser()
    if not root.is_dir():
        raise EtudeError(f"there is no repository at {repository}; correct base.repository")
    if shutil.which("git") is None:
        raise EtudeError(
            "tracking the history of a repository needs the program git: install it, or leave base.repository empty"
        )
    store = find_store(root)
    with tempfile.TemporaryDirectory(prefix="etude-git-") as empty:
        reader = Reader(store, resolve_head(store, root), Path(empty), SECONDS)
        chains = _chains(reader)
        for path in sorted(chains, key=lambda path: hashlib.sha256(f"{seed}/{path}".encode()).digest()):
            history = _fetch(reader, path, chains[path])
            if history is not None and history.changes >= 2:
                yield history


def _chains(reader: Reader) -> dict[str, list[str]]:
    """Path -> ids of its blobs, newest first, from HEAD back to where it was last created."""
    code_files = FilesSettings(path=".", suffixes=CODE_SUFFIXES)
    # The main line alone, so that one version follows the other; a renamed file begins a new history.
    argv = ["log", "--first-parent", "-m", "--raw", "-z", "--no-renames", "--no-abbrev", "--format="]
    log = reader.git([*argv, f"--max-count={MOST_COMMITS}", reader.commit], b"", LONGEST_LOG)
    fields = log.split(b"\0")[:-1]
    chains: dict[str, list[str]] = {}
    ended: set[str] = set()
    for facts, raw in zip(fields[::2], fields[1::2], strict=False):
        path = raw.decode("utf-8", "replace")
        if path in ended or not is_safe_path(path) or not is_wanted(path, code_files):
            continue
        old_mode, mode, old, new, status = facts.lstrip(b"\n:").split()
        if status == b"D" or mode not in PLAIN_FILES or not OBJECT_ID.fullmatch(new.decode("ascii", "replace")):
            ended.add(path)
            continue
        chain = chains.setdefault(path, [])
        chain.append(new.decode())
        if status == b"A" or old_mode not in PLAIN_FILES:
            ended.add(path)
        # The oldest change that is kept still needs the version that it changed.
        elif len(chain) == MOST_VERSIONS - 1:
            chain.append(old.decode())
            ended.add(path)
    return {path: chain for path, chain in chains.items() if len(chain) > 2}


def _fetch(reader: Reader, path: str, chain: list[str]) -> History | None:
    """The history of a file; None when a version is too large, missing or no text."""
    asked = "".join(f"{name}\n" for name in chain).encode()
    checked = reader.git(["cat-file", "--batch-check"], asked, 200 * len(chain)).decode("ascii", "replace")
    blobs = []
    for name, line in zip(chain, checked.splitlines(), strict=True):
        found, _, facts = line.partition(" ")
        kind, _, size = facts.partition(" ")
        if found != name or kind != "blob" or not size.isdigit() or int(size) > LARGEST_FILE:
            return None
        blobs.append(Blob(path, name, int(size)))
    texts = []
    for file in reader.fetch(blobs):
        text, problem = decode(file.data)
        if problem:
            return None
        texts.append(text)
    return tidy(path, texts[::-1])
