"""What layers show when they lie over each other: which file of a lower one is still to be seen. Knows no sandbox."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from etude.sandbox.base import WORKSPACE
from etude.sandbox.store.overlay_changes import OPAQUE, is_whiteout


class View:
    """The trees of layers, lowest first."""

    def __init__(self, trees: Sequence[Path]) -> None:
        self.trees = list(trees)

    def text(self, path: str) -> str | None:
        """A file of the workspace, the topmost one."""
        home = WORKSPACE.strip("/")
        for number in reversed(range(len(self.trees))):
            file = self.trees[number] / home / path
            if file.is_file() and not file.is_symlink() and self.sees(number, f"{home}/{path}"):
                return file.read_bytes().decode("utf-8", "surrogateescape")
        return None

    def sees(self, number: int, path: str) -> bool:
        """Whether no layer above number `number` covers or removes its file at `path`."""
        return not any(_hides(str(tree), path.split("/")) for tree in self.trees[number + 1 :])


def _hides(tree: str, parts: Sequence[str]) -> bool:
    here = tree
    for depth, part in enumerate(parts, start=1):
        here = f"{here}/{part}"
        try:
            status = os.lstat(here)
        except OSError:
            return False
        if depth == len(parts) or is_whiteout(status) or not stat.S_ISDIR(status.st_mode) or _is_opaque(here):
            return True
    return False


def _is_opaque(folder: str) -> bool:
    with suppress(OSError, AttributeError):
        return os.getxattr(folder, OPAQUE) == b"y"
    return False
