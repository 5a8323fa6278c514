"""Requests in the middle of their answers, with drafts: a step is one recorded graph, launched before the last is read.

From the tokens to the next drafts nothing is asked of the host: how many drafts are kept, and so where a request
stands, is known to the device alone until the host reads it, one step late. What the host says (tables, seeds, where
answers end) goes over only when it changes. Who may be in such a step, and all others, are `speculate.py`'s business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from etude.engine.cuda.draft_tensors import DraftInputStaging, DraftOutputs, DraftScratch
from etude.engine.cuda.forward import Forward, Step
from etude.engine.cuda.graphs import sizes
from etude.engine.cuda.ops import Pages, Places
from etude.engine.request import Request
from etude.engine.sampler import seed_bits


@dataclass(frozen=True)
class Answer:
    """What one request got: tokens with their log-probabilities, and what was drafted behind them."""

    tokens: list[int]
    logprobs: list[float]
    drafts: list[int]


Read = Callable[[], list[Answer]]


class DraftGraphs:
    def __init__(self, forward: Forward, drafts: int, rows: int, blocks: int) -> None:
        self.forward, self.drafts, self.blocks = forward, drafts, blocks
        self.device = forward.decoder.lm_head.weight.device
        self.sizes = sizes(rows)
        self.left = DraftOutputs(rows, drafts, forward.decoder.config.vocab_size, self.device)
        self.nothing_S = torch.zeros(1, dtype=torch.int32, device=self.device)
        self._recorded: dict[int, tuple[DraftInputStaging, Callable[[], None]]] = {}
        self._kept: list[DraftScratch] = []
        self._memory = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None
        self._seats: dict[int, int] = {}  # of the last step's requests, by number
        self._requests: list[Request] = []
        self._lengths: list[int] = []  # of their tables, as far as the device knows them
        self._moved = False  # whether the device still has to hear that they sit where they sat

    @property
    def beliefs(self) -> Tensor:
        """The logits that drafts came from, a line for each row of the last step."""
        return self.left.beliefs_SKV

    def record_all(self) -> None:
        with torch.inference_mode():
            for size in reversed(self.sizes):
                self._find(size)

    def holds(self, requests: Sequence[Request]) -> bool:
        """Whether the device knows where all of these stand, and the host does not."""
        return all(request.ahead and request.number in self._seats for request in requests)

    def forget(self) -> None:
        """Another kind of step comes in between: what the next one begins with is for the host to say."""
        self._seats, self._requests = {}, []

    def launch(self, requests: list[Request], drafts: Sequence[Sequence[int]]) -> Read:
        """One step. `drafts` are those of requests whose last step was read; their beliefs are in place by then."""
        count = len(requests)
        asking, replay = self._find(next(size for size in self.sizes if size >= count))
        # The last step is not read yet, so the device knows where they stand. Otherwise the host says it anew.
        if requests == self._requests and requests[0].ahead:
            self._follow(asking, requests)
        else:
            self._say(asking, requests, drafts)
        replay()
        self._seats = {request.number: seat for seat, request in enumerate(requests)}
        host, happened = self.left.fetch()

        def read() -> list[Answer]:
            if happened is not None:
                happened.synchronize()
            rows = zip(*(part[:, :count].T.tolist() for part in host), strict=True)
            return [Answer(tokens[: kept + 1], scores[: kept + 1], more) for (kept, _), tokens, scores, more in rows]

        return read

    def _follow(self, asking: DraftInputStaging, requests: Sequence[Request]) -> None:
        """The same requests a step later: nothing is new but blocks at the ends of tables."""
        host, changed = asking.host, False
        # In the step before, sources were rows of another batch; from now on each request sits where it sat.
        if self._moved:
            host.sources[: len(requests)] = np.arange(len(requests))
            self._moved, changed = False, True
        for row, request in enumerate(requests):
            if (length := len(request.table)) != (known := self._lengths[row]):
                host.table[row, known:length] = request.table[known:]
                self._lengths[row], changed = length, True
        if changed:
            asking.send()

    def _say(self, asking: DraftInputStaging, requests: list[Request], drafts: Sequence[Sequence[int]]) -> None:
        host = asking.host
        # With a stop of 0 every place of a row without a request is nobody's.
        host.stops[:], host.sources[:] = 0, -1
        for row, request in enumerate(requests):
            prompt = len(request.prompt)
            host.prompts[row], host.stops[row] = prompt, prompt + request.sampling.max_tokens - 1
            host.temperatures[row] = request.sampling.temperature
            host.table[row, : len(request.table)] = request.table
            if request.ahead:
                host.sources[row] = self._seats[request.number]
            else:
                host.ends[row] = len(request.tokens) - 1
                ids = [request.tokens[-1], *drafts[row]]
                host.ids[row, : len(ids)] = ids
        host.seeds[: len(requests)] = seed_bits([request.sampling.seed for request in requests]).view(np.int64)
        asking.send()
        self._requests, self._lengths, self._moved = requests, [len(request.table) for request in requests], True

    def _find(self, size: int) -> tuple[DraftInputStaging, Callable[[], None]]:
        if size not in self._recorded:
            asking = DraftInputStaging(size, self.drafts, self.blocks, self.device)
            self._recorded[size] = asking, self._record(asking)
        return self._recorded[size]

    def _record(self, asking: DraftInputStaging) -> Callable[[], None]:
        work = DraftScratch(asking.rows, self.drafts, self.device)
        if self.device.type != "cuda":
            return lambda: self._compute(asking, self.left, work)
        # a first run loads and compiles; it must not touch what the last step left
        vocabulary = self.forward.decoder.config.vocab_size
        self._compute(asking, DraftOutputs(asking.rows, self.drafts, vocabulary, self.device), work)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory):
            self._compute(asking, self.left, work)
        self._kept.append(work)  # which the graph knows by its address alone
        return graph.replay

    def _compute(self, asking: DraftInputStaging, left: DraftOutputs, work: DraftScratch) -> None:
        asked, forward, ops, new = asking.device, self.forward, self.forward.ops, self.drafts + 1
        ops.begin(asked, left, work, forward.cache.block_tokens, forward.cache.nobody)
        step = Step(
            work.ids_RJ.flatten(),
            work.nowhere_T,
            Places(work.positions_RJ.flatten(), work.slots_RJ.flatten(), forward.angles),
            Pages(asked.table, work.lengths_RJ.flatten(), new),
        )
        hidden_TD = forward.hidden(step, self.nothing_S)
        ops.accept(forward.logits(hidden_TD), asked, left, work)
        for depth in range(self.drafts):
            hidden_TD = forward.ahead(depth + 1, hidden_TD, work.ahead_RX[:, depth : depth + new], step)
            logits_RV = forward.logits(hidden_TD.index_select(0, work.rows_R))
            left.beliefs_SKV[: asking.rows, depth] = logits_RV
            drawn_S = left.drafts_KS[depth]
            ops.pick(logits_RV, asked.temperatures, work.numbers_KR[depth], drawn_S, work.nobody_R)
            if depth + 1 < self.drafts:
                behind_R1 = left.kept_S[: asking.rows, None].long() + depth + 1
                work.ahead_RX.scatter_(1, behind_R1, drawn_S[: asking.rows, None])
