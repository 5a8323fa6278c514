"""What computes a step: the seam between the engine's books and a device, and the runner of dense rows for a CPU.

A runner launches a step and hands back a way to read what it sampled. One that computes on a device of its own allows
the next step to be planned and launched before that (`depth`); the tokens in between stay on the device. Who is in a
step is the scheduler's decision, what becomes of the tokens the engine's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from etude.engine.attend import CachedAttend, spans
from etude.engine.cache import KeyValueCache
from etude.engine.request import Request
from etude.engine.sampler import Sampled, sample
from etude.engine.scheduler import Chunk, Rows
from etude.model.decoder import Decoder
from etude.model.experts import Routing
from etude.policy import Experts
from etude.settings import EngineSettings

Read = Callable[[], Sampled]


class Cache(Rows, Protocol):
    """The memory behind rows and blocks."""

    @property
    def bytes(self) -> int: ...

    routes: bool  # whether it also keeps the experts that tokens were routed to

    def store(self, row: int, first: int, blocks: Sequence[int]) -> None:
        """The row's block `first` and those after it are full: from now on others may find them."""

    def scrub(self, tokens: Sequence[int]) -> None:
        """Somebody's keys were not finite; so many tokens of each row in use are still good."""

    def experts(self, request: Request, first: int, end: int) -> Experts:
        """Where these of its tokens were routed."""
        ...


class Runner(Protocol):
    depth: int  # steps that may be under way while the next one is planned

    @property
    def cache(self) -> Cache: ...

    def launch(self, chunks: Sequence[Chunk], ready: Sequence[Request]) -> Read:
        """Computes the chunks and samples for those who are ready, in their order."""
        ...


class RowRunner:
    """One step at a time over dense rows."""

    depth = 0

    def __init__(self, decoder: Decoder, settings: EngineSettings) -> None:
        weight = decoder.lm_head.weight
        self.decoder, self.device = decoder, weight.device
        self.cache = KeyValueCache(decoder.config, settings, weight.device, weight.dtype)

    def launch(self, chunks: Sequence[Chunk], ready: Sequence[Request]) -> Read:
        rows, starts, counts, tokens, last = [], [], [], [], []
        for chunk in chunks:
            request, count = chunk.request, chunk.count
            rows.append(request.row)
            starts.append(request.computed)
            counts.append(count)
            if count == 1:
                tokens.append(request.tokens[request.computed])
            else:
                tokens += request.tokens[request.computed : request.computed + count]
            if chunk.samples:
                last.append(len(tokens) - 1)
        flat_rows, positions = rows, starts
        if len(tokens) > len(rows):
            flat_rows = [row for row, count in zip(rows, counts, strict=True) for _ in range(count)]
            positions = [start + i for start, count in zip(starts, counts, strict=True) for i in range(count)]
        tokens_T, positions_T, rows_T = torch.tensor((tokens, positions, flat_rows), device=self.device)
        attend = CachedAttend(self.cache, rows_T, positions_T, spans(rows, starts, counts))
        routing = Routing() if self.cache.routes else None
        hidden_TD = self.decoder(tokens_T, positions_T, attend, max(positions) + 1, routing)
        if routing is not None:
            self.cache.row_routes_RSEC[rows_T, positions_T] = routing.chosen_TBK.to(torch.int16)
        if len(last) < len(tokens):
            hidden_TD = hidden_TD[torch.tensor(last, device=self.device, dtype=torch.int64)]
        if not ready:
            return lambda: Sampled([], [], {})
        counters = [request.length - len(request.prompt) for request in ready]
        sampled = sample(self.decoder.logits(hidden_TD), [request.sampling for request in ready], counters)
        return lambda: sampled
