"""Which side a document is on: train, or held out for evaluation.

Some repositories are held out whole, which shows how a model does on code it has never met; of the others some
files are, which shows how it does on the rest of what it knows. The side follows from the names alone, so a
file stays on its side when the corpus grows. Deduplication runs before, so no copy of a held-out file is trained on.
"""

from __future__ import annotations

from typing import Literal

from etude.corpus.stable_random import stable_share

Side = Literal["train", "held_out"]

# With fewer repositories than this, holding out whole ones could take most of the corpus: then only files are.
FEWEST_REPOSITORIES = 10


def side_of(repo: str, path: str, held_out: float, by_repository: bool) -> Side:
    """`held_out` is the share of repositories, and of files, that training never sees."""
    if by_repository and stable_share("held-out repository", repo) < held_out:
        return "held_out"
    return "held_out" if stable_share("held-out file", repo, path) < held_out else "train"
