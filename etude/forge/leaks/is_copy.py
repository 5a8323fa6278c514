"""Whether what a place shares with a deleted piece is a copy of it. Sets of numbers in, a verdict out.

A copy shows most of what was deleted; a relative shows a few lines of it, as code of one repository does. In the
workspace itself, where relatives are at home, only a near-complete copy counts, and only of more than an idiom.
Elsewhere less is enough, but what the workspace shows anyway does not count. A few shingles prove little by
themselves; where most of what stood around the piece is there as well, it is a copy of the module. The thresholds
were set on installed packages: each function deleted in turn, everything else searched (docs/tasks/leaks.md).
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Final

import numpy as np

from etude.corpus.word_hashes import Hashes
from etude.forge.leaks.search_terms import Unit

IN_WORKSPACE: Final = 0.9  # share that makes a file of the workspace a copy; relatives in one file reach 0.88
IN_WORKSPACE_LEAST: Final = 24  # shingles that a copy in the workspace has at least: some 30 tokens
ELSEWHERE: Final = 0.5  # share that makes any other file a copy
ELSEWHERE_LEAST: Final = 12
PLENTY: Final = 64  # shingles that are too many, whatever their share
TINY: Final = 24  # shingles below which a piece needs its surroundings to be recognised
AROUND: Final = 0.5  # share of the rest of its module that makes a copy of that
AROUND_LEAST: Final = 40
AMONG: Final = 0.4  # share of the piece that is enough then: a copy may have been rewritten by a formatter
CODE: Final = 0.6  # share of the runs of bytecode
CODE_LEAST: Final = 5
CODE_TINY: Final = 10
WHOLE: Final = 0.9


def share_in_workspace(unit: Unit, shingles: Hashes, own: bool) -> float:
    """Share of what went that a place of the workspace shows, when it is a copy; else 0. `own`: the module itself."""
    shared = len(common(unit.shingles, shingles))
    if not shared:
        return 0.0
    share = shared / len(unit.shingles)
    whole = len(common(unit.whole, shingles))
    # Both shares: of what went, and of the function as it was. A relative shares one of them, not both.
    if whole >= IN_WORKSPACE_LEAST and share >= IN_WORKSPACE and whole >= IN_WORKSPACE * len(unit.whole):
        return share
    return share if not own and share >= AMONG and _is_copied_module(unit, shingles) else 0.0


def share_elsewhere(unit: Unit, distinctive: Hashes, shingles: Hashes, place: str) -> float:
    """The same for a place outside; of what went, the `distinctive` part is what the workspace does not show."""
    shared = len(common(distinctive, shingles))
    if not shared:
        return 0.0
    share = shared / len(distinctive)
    if shared >= PLENTY or (shared >= ELSEWHERE_LEAST and share >= ELSEWHERE):
        return share
    if len(distinctive) < TINY and share >= WHOLE:
        whole = len(common(unit.whole, shingles))
        # A few shingles prove little alone; with its file name or the rest of its function they do.
        if same_file(unit, place) or whole >= max(TINY, WHOLE * len(unit.whole)):
            return share
    return share if share >= AMONG and _is_copied_module(unit, shingles) else 0.0


def share_in_bytecode(unit: Unit, codes: Hashes, place: str) -> float:
    """Share of the unit's names and constants that a file of bytecode shows, when it is a copy; else 0."""
    shared = len(common(unit.codes, codes))
    if not shared:
        return 0.0
    share = shared / len(unit.codes)
    if shared >= CODE_LEAST and share >= CODE:
        return share
    if len(unit.codes) >= CODE_TINY or share < WHOLE:
        return 0.0
    around = len(common(unit.module_codes, codes))
    return share if same_file(unit, place) or around >= max(3, AROUND * len(unit.module_codes)) else 0.0


def same_file(unit: Unit, place: str) -> bool:
    """Whether a place is called like the file the unit was in: `pkg/mod.py`, `__pycache__/mod.cpython-311.pyc`."""
    name = PurePosixPath(place.rpartition("!")[2]).name
    return name.split(".")[0] == PurePosixPath(unit.path).name.split(".")[0]


def common(left: Hashes, right: Hashes) -> Hashes:
    """What two sorted sets share, fast where the right one is much larger."""
    if not len(left) or not len(right):
        return np.empty(0, np.uint64)
    at = np.minimum(np.searchsorted(right, left), len(right) - 1)
    found: Hashes = left[right[at] == left]
    return found


def _is_copied_module(unit: Unit, shingles: Hashes) -> bool:
    return len(common(unit.module, shingles)) >= max(AROUND_LEAST, AROUND * len(unit.module))
