"""The arguments of a step with prompts in it, as arrays: those who decode come first, then the tokens of prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.engine.request import Request
from etude.engine.scheduler import Chunk

Ints = NDArray[np.int32]


@dataclass(frozen=True)
class MixedStep:
    """Entries for every token; `last` are the tokens behind which `requests` sample."""

    decoding: int  # requests, and tokens, that come first
    prompts: Sequence[Chunk]
    requests: list[Request]
    tokens: Ints
    sources: Ints  # where the device has the token, or -1
    positions: Ints
    slots: Ints
    lines: Ints  # of the table, for each token
    last: Ints
    table: Ints  # a line for each request in the step

    @property
    def prompt_reads(self) -> int:
        """Keys that are read if every token of a prompt looks at its request's pages by itself."""
        return int(self.positions[self.decoding :].sum()) + len(self.positions) - self.decoding


def mixed_step(chunks: Sequence[Chunk], block_tokens: int, blocks: int) -> MixedStep:
    decoding, prompts = [c for c in chunks if c.count == 1], [c for c in chunks if c.count > 1]
    ordered = [*decoding, *prompts]
    counts = np.array([chunk.count for chunk in ordered], np.int32)
    ends = np.cumsum(counts)
    starts = np.array([chunk.request.computed for chunk in ordered], np.int32)
    lines = np.repeat(np.arange(len(ordered), dtype=np.int32), counts)
    positions = np.arange(ends[-1], dtype=np.int32) + np.repeat(starts - (ends - counts), counts).astype(np.int32)
    table = tables([chunk.request for chunk in ordered], blocks)
    in_blocks, offsets = np.divmod(positions, np.int32(block_tokens))
    known = [next_token(chunk.request) for chunk in decoding]
    tokens: list[Any] = [np.array([token for token, _ in known], np.int32)]
    for chunk in prompts:
        tokens.append(chunk.request.tokens[chunk.request.computed : chunk.request.computed + chunk.count])
    sources = np.full(len(positions), -1, np.int32)
    sources[: len(decoding)] = [source for _, source in known]
    samples = np.array([chunk.samples or chunk.count == 1 for chunk in ordered], np.bool_)
    return MixedStep(
        len(decoding),
        prompts,
        [chunk.request for chunk, yes in zip(ordered, samples, strict=True) if yes],
        np.concatenate(tokens, dtype=np.int32, casting="unsafe"),
        sources,
        positions,
        table[lines, in_blocks] * np.int32(block_tokens) + offsets,
        lines,
        (ends[samples] - 1).astype(np.int32),
        table,
    )


def tables(requests: Sequence[Request], blocks: int) -> Ints:
    """The requests' tables, a line each."""
    out = np.zeros((len(requests), blocks), np.int32)
    for line, request in zip(out, requests, strict=True):
        line[: len(request.table)] = request.table
    return out


def next_token(request: Request) -> tuple[int, int]:
    """The next token to compute, or where the device has it."""
    place = request.computed
    return (request.tokens[place], -1) if place < len(request.tokens) else (0, request.seat)
