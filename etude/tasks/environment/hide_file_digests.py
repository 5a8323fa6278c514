"""Hides what an installer wrote down of the repository's own files: who tries edits would learn which one is right.

`RECORD` of an installed distribution has the digest and the size of each of its files. Of what was installed from a
folder, as a task's repository is, these are the files that the task has changed. A small layer over the environment's
has the same list without them; it also serves environments that were made before. Knows layers; no task.
"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Final

from etude.sandbox.base import Layer
from etude.sandbox.store.layers import Store

_RECORDS: Final = "*/*/lib/python3*/site-packages/*.dist-info/RECORD"  # as in /opt/env


def without_digests(layer: Layer, store: Store) -> list[Layer]:
    """What lies over an environment's layer: nothing where it tells no digest."""
    listed = (file for file in sorted(layer.path.glob(_RECORDS)) if _lies_in(layer.path, file))
    told = {file: _bare(file) for file in listed if _is_local(file.parent)}
    covered = {str(file.relative_to(layer.path)): text.encode() for file, text in told.items() if text}
    return [store.add_files(covered, at="/", shows=())] if covered else []


def _lies_in(root: Path, file: Path) -> bool:
    """Whether it is a file of the layer: what ran while the environment was made may have left a link to a file of this
    machine, or a pipe."""
    return file.resolve() == root.resolve() / file.relative_to(root) and file.is_file()


def _is_local(info: Path) -> bool:
    """Whether it was installed from a folder: the repository itself."""
    try:
        facts = json.loads((info / "direct_url.json").read_text()) if (info / "direct_url.json").is_file() else None
    except (OSError, ValueError):
        return False
    return isinstance(facts, dict) and "dir_info" in facts


def _bare(file: Path) -> str:
    """The list without digests and sizes; nothing where it has none."""
    try:
        rows = [row for row in csv.reader(io.StringIO(file.read_text(errors="replace"))) if row]
    except csv.Error:  # no installer writes such a list
        return "\n"
    if not any(any(row[1:]) for row in rows):
        return ""
    bare = io.StringIO()
    csv.writer(bare, lineterminator="\n").writerows([row[0], "", ""] for row in rows)
    return bare.getvalue()
