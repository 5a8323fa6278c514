"""Word vectors for the tool `search`, trained on what agents did and on Python with docstrings.

A run, or a folder of saved rollouts, gives what was asked and the files that were edited where that passed; any other
folder gives its Python files. The pairs are those of `harness/code_search/pairs.py`, the training that of
`learn/word_vectors.py`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from etude.core.errors import EtudeError
from etude.harness.code_search.embedding import WordVectors
from etude.harness.code_search.pairs import Pair, bags_of, docstring_pairs, trace_pairs
from etude.harness.trajectory_files import load_trajectory
from etude.rollout.listing import RolloutLine, list_rollouts

MOST_PAIRS = 30_000  # drawn from all, as many as benchmarks/code_search.py trains on
LARGEST = 1_000_000  # bytes of a Python file


def train_search_vectors(sources: Sequence[Path], out: Path, steps: int, seed: int) -> dict[str, Any]:
    """Writes the vectors to `out`; says how many pairs they were trained on, and how many words they know."""
    from etude.learn.word_vectors import train_word_vectors
    from etude.model.torch_process import prepare

    counts = {"from_rollouts": 0, "from_docstrings": 0}
    pairs: list[Pair] = []
    for source in sources:
        rollouts = [] if source.is_file() else list_rollouts(source)
        found = list(_of_rollouts(rollouts) if rollouts else _of_python(source))
        if not found:
            lacks = "no rollout that passed read a file and edited it" if rollouts else "no function has a docstring"
            raise EtudeError(f"{source} has nothing to train the search on: {lacks}")
        counts["from_rollouts" if rollouts else "from_docstrings"] += len(found)
        pairs += found
    chosen = random.Random(seed).sample(pairs, min(len(pairs), MOST_PAIRS))
    prepare(threads=1)
    words, vectors = train_word_vectors([bags_of(pair) for pair in chosen], steps=steps, seed=seed)
    if not words:
        raise EtudeError(f"{len(chosen)} pairs are too few, no word is in three of them; name more runs or folders")
    out.parent.mkdir(parents=True, exist_ok=True)
    WordVectors(tuple(words), vectors.numpy()).save(out)
    return {"file": str(out), "words": len(words), "pairs": len(chosen), **counts}


def _of_rollouts(lines: Sequence[RolloutLine]) -> Iterator[Pair]:
    # What a rollout edited that failed may have been the wrong file.
    return trace_pairs(load_trajectory(line.path) for line in lines if line.passed)


def _of_python(source: Path) -> Iterator[Pair]:
    for file in [source] if source.is_file() else sorted(source.rglob("*.py")):
        if file.is_file() and not file.is_symlink() and file.stat().st_size <= LARGEST:
            yield from docstring_pairs(file.name, file.read_text(encoding="utf-8", errors="replace"))
