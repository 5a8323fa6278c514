"""The files and the history of a git checkout, as ours: a tree at its HEAD and a bare repository of its commits.

Somebody else wrote the checkout, and its configuration can name programs to run; so git only ever works in a bare
repository that we made, with the checkout's object store borrowed (see `corpus.git`). Uncommitted changes, ignored
files and other branches are not taken.
"""

from __future__ import annotations

from pathlib import Path

from etude.core.errors import EtudeError
from etude.corpus.sources.git import LONGEST_LISTING, Reader, copy_cut, find_store, resolve_head
from etude.tasks.format.file_tree import TreeLimits

_SECONDS = 300.0


def take_checkout(root: Path, tree: Path, history: Path) -> str:
    """Fill `tree` with the files of HEAD and `history` with its commits, both new folders; returns the commit."""
    store = find_store(root)
    commit = resolve_head(store, root)
    history.mkdir(parents=True)
    reader = Reader(history, commit, history, _SECONDS)
    (history / "refs" / "heads").mkdir()
    (history / "refs" / "heads" / "main").write_text(f"{commit}\n")
    borrowed = history / "objects" / "info" / "alternates"
    borrowed.parent.mkdir()
    if "\n" in str(store):
        raise EtudeError(f"{root} has a line break in its path: rename it")
    borrowed.write_text(f"{store / 'objects'}\n")
    copy_cut(store, history)
    _check_size(reader, root)
    tree.mkdir(parents=True)
    reader.git(["read-tree", commit], b"", 1 << 20)
    reader.git(["--work-tree", str(tree), "checkout-index", "--all", "--quiet"], b"", 1 << 20)
    reader.git(["repack", "-a", "-d", "-q"], b"", 1 << 20)
    borrowed.unlink()
    (history / "index").unlink()
    return commit


def _check_size(reader: Reader, root: Path) -> None:
    """Before anything is written: nested trees can list themselves into any size."""
    limits = TreeLimits()
    listing = reader.git(["ls-tree", "-r", "-z", "-l", "--full-tree", reader.commit], b"", LONGEST_LISTING)
    sizes = [line.split(b"\t")[0].split()[-1] for line in listing.split(b"\0")[:-1]]
    total = sum(int(size) for size in sizes if size.isdigit())
    if len(sizes) > limits.files or total > limits.total_bytes:
        text = f"{root} has {len(sizes)} files with {total} bytes in its newest commit"
        raise EtudeError(f"{text}; at most {limits.files} and {limits.total_bytes} are taken")
