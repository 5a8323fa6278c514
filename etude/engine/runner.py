"""What computes a step: the seam between the engine's books and a device, and the runner of dense rows for a CPU.

A runner launches a step and hands back a way to read what it sampled. One that computes on a device of its own allows
the next step to be planned and launched before that (`depth`); the tokens in between stay on the device. Who is in a
step is the scheduler's decision, what becomes of the tokens the engine's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from etude.core.policy import Experts, Sampling
from etude.core.settings import EngineSettings
from etude.engine.cache import KeyValueCache
from etude.engine.dense_cpu_step import forward_of
from etude.engine.logit_rules import apply_rules
from etude.engine.request import Request
from etude.engine.row_attention import CachedAttend, spans
from etude.engine.sampler import Sampled, Settings, choose_at, mixed, read, sample, seed_bits
from etude.engine.scheduler import Chunk, Rows
from etude.model.decoder import Decoder
from etude.model.experts import Routing

Read = Callable[[], Sampled]

AHEAD = 32  # decoding steps that are prepared together


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

    def overlaps(self, chunks: Sequence[Chunk]) -> bool:
        """Whether this step may be launched before those under way are read."""
        ...

    def launch(self, chunks: Sequence[Chunk], ready: Sequence[Request]) -> Read:
        """Computes the chunks and samples for those who are ready, in their order."""
        ...


class RowRunner:
    """One step at a time over dense rows."""

    depth = 0

    def __init__(self, decoder: Decoder, settings: EngineSettings) -> None:
        weight = decoder.lm_head.weight
        self.device, self.forward = weight.device, forward_of(decoder)
        self.cache = KeyValueCache(decoder.config, settings, weight.device, weight.dtype)
        self._streak: _Streak | None = None

    def overlaps(self, chunks: Sequence[Chunk]) -> bool:
        return True

    def launch(self, chunks: Sequence[Chunk], ready: Sequence[Request]) -> Read:
        rows, starts = [chunk.request.row for chunk in chunks], [chunk.request.computed for chunk in chunks]
        counts = [chunk.count for chunk in chunks]
        # Everybody decodes, which is most steps: those skip all that a batch with prompts needs.
        if len(chunks) == len(ready) == sum(counts):
            return self._decode(rows, starts, ready)
        self._streak = None
        tokens, flat_rows, positions, last = list[int](), list[int](), list[int](), list[int]()
        for chunk, row, start in zip(chunks, rows, starts, strict=True):
            tokens += chunk.request.tokens[start : start + chunk.count]
            positions += range(start, start + chunk.count)
            flat_rows += [row] * chunk.count
            if chunk.samples:
                last.append(len(tokens) - 1)
        tokens_T, positions_T, rows_T = torch.tensor((tokens, positions, flat_rows), device=self.device)
        attend = CachedAttend(self.cache, rows_T, positions_T, spans(rows, starts, counts))
        hidden_TD = self._hidden(tokens_T, rows_T, attend, max(positions) + 1)
        if not ready:
            return lambda: Sampled([], [], {})
        # Logits of last tokens only: of a whole prompt they would be tokens x vocabulary numbers that nobody reads.
        hidden_TD = hidden_TD[torch.tensor(last, device=self.device)]
        sampled = sample(apply_rules(self.forward.logits(hidden_TD), ready), *_sampling(ready))
        return lambda: sampled

    def _decode(self, rows: list[int], starts: list[int], ready: Sequence[Request]) -> Read:
        """One token for each. As long as the same requests decode, only what moves on is worked out anew."""
        streak = self._streak
        if streak is None or not streak.goes_on(rows, starts, ready):
            streak = self._streak = _Streak(self.cache, rows, starts, ready, self.device)
        tokens_R = torch.tensor([request.tokens[-1] for request in ready], device=self.device)
        hidden_RD = self._hidden(tokens_R, streak.rows_R, streak.attend, max(starts) + 1)
        logits_RV = self.forward.logits(hidden_RD)
        if streak.ruled:
            apply_rules(logits_RV, ready)
        sampled = read(choose_at(logits_RV, streak.settings, streak.uniform_R1))
        return lambda: sampled

    def _hidden(self, tokens_T: Tensor, rows_T: Tensor, attend: CachedAttend, longest: int) -> Tensor:
        routing = Routing() if self.cache.routes else None
        hidden_TD = self.forward(tokens_T, attend.positions_T, attend, longest, routing)
        if routing is not None:
            self.cache.row_routes_RSEC[rows_T, attend.positions_T] = routing.chosen_TBK.to(torch.int16)
        return hidden_TD


# What the next 32 steps need (masks, places in the cache, settings, uniform numbers) is made together: a step of 1M
# parameters with 32 requests was 1,220 calls into torch, most of a few microseconds, and is 640 (docs/rooms/engine.md).
class _Streak:
    """The same requests decoding step after step, at most `AHEAD` steps more."""

    def __init__(
        self, cache: KeyValueCache, rows: list[int], starts: list[int], ready: Sequence[Request], device: torch.device
    ) -> None:
        self.rows, self.starts, self.ready = rows, starts, list(ready)
        self.ruled = any(request.rules is not None for request in ready)
        positions_R, self.rows_R = torch.tensor((starts, rows), device=device)
        self.attend = CachedAttend(cache, self.rows_R, positions_R, spans(rows, starts, [1] * len(rows)), AHEAD)
        sampling, counters = _sampling(ready)
        self.settings = Settings(sampling, device)
        steps = np.arange(AHEAD + 1, dtype=np.uint64)
        numbers = mixed(
            seed_bits([s.seed for s in sampling])[:, None], np.add.outer(np.array(counters, np.uint64), steps)
        )
        self._numbers = torch.from_numpy(numbers).to(device)

    def goes_on(self, rows: list[int], starts: list[int], ready: Sequence[Request]) -> bool:
        """Whether this is its next step; then it takes it."""
        if self.attend.steps == AHEAD or rows != self.rows or ready != self.ready:
            return False
        # A request that was preempted and came back may sit in the same row, but not one token further.
        if starts != [start + 1 for start in self.starts]:
            return False
        self.starts = starts
        self.attend.advance()
        return True

    @property
    def uniform_R1(self) -> Tensor:
        return self._numbers[:, self.attend.steps, None]


def _sampling(ready: Sequence[Request]) -> tuple[list[Sampling], list[int]]:
    return [request.sampling for request in ready], [request.length - len(request.prompt) for request in ready]
