"""What was read once is kept: contents of files in memory, by what they hold, and indexes beside the layers.

The tasks of a repository differ in a file or two and share an environment, so an audit after the first reads almost
nothing. Knows no deleted code.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Final

from etude.core.errors import EtudeError
from etude.forge.leaks.tree_index import Content, TreeIndex, build_index, exact, host_digest, load_index, read_file
from etude.forge.leaks.unpack import Unsearchable
from etude.sandbox.store.layers import Store

REMEMBERED: Final = 25_000_000  # numbers kept of files seen before: 200 MB
OPEN: Final = 200  # indexes held open: mapped files, no memory to speak of
FRESH: Final = 600.0  # seconds for which a folder of the host is taken to be as it was

_lock = threading.Lock()
_contents: OrderedDict[tuple[bytes, str], tuple[list[Content], list[Unsearchable]]] = OrderedDict()
_indexes: OrderedDict[Path, TreeIndex] = OrderedDict()
_making: dict[Path, threading.Lock] = {}
_host_digests: dict[str, tuple[float, str]] = {}
_held = 0


def contents_of(root: Path, path: str, size: int) -> tuple[list[Content], list[Unsearchable]]:
    """What a file holds, from memory when one of equal content and name was read before."""
    global _held
    try:
        with (root / path).open("rb") as file:
            # The name is part of the key: its ending decides how the text is read.
            key = (hashlib.file_digest(file, "sha256").digest(), Path(path).name)
    except OSError:
        return [], []
    with _lock:
        if key in _contents:
            _contents.move_to_end(key)
            return _contents[key]
    contents: list[Content] = []
    refused: list[Unsearchable] = []
    for found in read_file(root, path, size):
        if isinstance(found, Unsearchable):
            refused.append(found)
        else:
            contents.append(exact(found))
    with _lock:
        if key not in _contents:
            _contents[key] = (contents, refused)
            _held += _size(contents)
        while _held > REMEMBERED and len(_contents) > 1:
            _held -= _size(_contents.popitem(last=False)[1][0])
    return contents, refused


def _size(contents: list[Content]) -> int:
    return sum(len(content.shingles) + len(content.codes) for content in contents) + 100


def open_index(
    store: Store, name: str, root: Path, *, skip: str = "", host: bool = False, deadline: float = float("inf")
) -> TreeIndex:
    """The index of a tree, made when the store does not have it yet."""
    folder = store.root / "leaks" / name
    # One lock for each index: two audits over different environments do not wait for each other.
    with _lock:
        making = _making.setdefault(folder, threading.Lock())
    with making:  # whoever comes second waits, and finds it made
        if folder not in _indexes:
            index = load_index(folder) or _make(store, folder, root, skip, host, deadline)
            with _lock:
                _indexes[folder] = index
                while len(_indexes) > OPEN:
                    _indexes.popitem(last=False)
            return index
        return _indexes[folder]


def _make(store: Store, folder: Path, root: Path, skip: str, host: bool, deadline: float) -> TreeIndex:
    folder.parent.mkdir(exist_ok=True)
    with store.scratch() as partial:
        made = partial / "index"
        made.mkdir()
        build_index(root, made, host=host, skip=skip, deadline=deadline)
        if folder.exists() and load_index(folder) is None:  # of another version of this code
            folder.rename(partial / "old")
        with suppress(OSError):  # somebody else made the same one: theirs is as good
            made.rename(folder)
    index = load_index(folder)
    if index is None:
        raise EtudeError(f"the leak index {folder} cannot be used: remove it and try again")
    return index


def open_host_index(store: Store, path: str, deadline: float = float("inf")) -> TreeIndex:
    """The index of a folder of the host; made anew when its files have changed."""
    known = _host_digests.get(path)
    # Walking the host's folders costs time, and many tasks are audited one after another.
    if known is None or time.monotonic() - known[0] > FRESH:
        known = _host_digests[path] = (time.monotonic(), host_digest(path))
    return open_index(store, f"host-{known[1]}", Path(path), host=True, deadline=deadline)
