"""Bits per byte of a codebase: files in alphabetical order as one long stream, a window rolling over it.

Every token but the first is scored once. The window moves by half its length, so each token is predicted from at least
half a window of what stands before it, where there is as much. Tokenizers cut text differently; bits per byte of the
same text can be compared between models all the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from etude.bench.base.code_text import Code
from etude.bench.base.model_under_test import Advance, ModelUnderTest, ScoredText
from etude.core.errors import EtudeError


@dataclass(frozen=True)
class Codebase:
    """`nats` is the sum over all scored tokens, the figure that is published elsewhere for other texts."""

    bits_per_byte: float
    nats: float
    tokens: int  # scored
    bytes: int  # that they stand for
    files: int
    window: int  # tokens
    code: str
    fingerprint: str  # of the text: figures of different texts say nothing about each other


def measure_codebase(
    tested: ModelUnderTest, code: Code, window: int, advance: Advance = lambda tokens: None
) -> Codebase:
    ids = [token for _, text in code.files for token in tested.text.encode(text)]
    if len(ids) < 2:
        raise EtudeError(f"{code.name} is too little code to be measured on")
    window = min(window, tested.positions)
    scores = tested.score(windows(ids, window), advance)
    nats = -math.fsum(float(part.sum()) for part in scores)
    # Nothing predicts the first token, so its bytes are not counted either.
    size = code.bytes - len(tested.text.bytes_of(ids[0]))
    return Codebase(
        bits_per_byte=nats / math.log(2) / size,
        nats=nats,
        tokens=len(ids) - 1,
        bytes=size,
        files=len(code.files),
        window=window,
        code=code.name,
        fingerprint=code.fingerprint,
    )


def windows(ids: Sequence[int], window: int) -> list[ScoredText]:
    """Pieces of at most `window` tokens that score every token but the first exactly once."""
    pieces = [ScoredText(ids[:window], 1)]
    scored = min(window, len(ids))
    while scored < len(ids):
        # Half a window at a time: each token is predicted from at least half a window of context.
        end = min(scored + window // 2, len(ids))
        start = end - window  # the last window reaches back as far as it can
        pieces.append(ScoredText(ids[start:end], scored - start))
        scored = end
    return pieces
