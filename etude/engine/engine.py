"""The step that joins scheduler, model, cache and sampler, and the swap of weights between two steps.

Single-threaded and synchronous: whoever owns an engine calls `step` again and again and does everything else
(submit, abort, update) in between. Knows token ids only, never text, and no transport.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor

from etude.engine.attend import CachedAttend, spans
from etude.engine.blocks import BlockPool
from etude.engine.cache import KeyValueCache
from etude.engine.request import COLDEST, QueueFull, Request, refuse_ids, refuse_sampling
from etude.engine.sampler import sample
from etude.engine.scheduler import Chunk, Scheduler
from etude.errors import EtudeError
from etude.model.decoder import Decoder
from etude.model.experts import Routing
from etude.model.packed import Packed
from etude.policy import Sampling, Version
from etude.settings import EngineSettings


@dataclass
class Counts:
    """What the engine did since it started."""

    steps: int = 0
    submitted: int = 0
    finished: int = 0
    aborted: int = 0
    failed: int = 0
    updates: int = 0
    computed_tokens: int = 0  # through the model, prompts and answers
    sampled_tokens: int = 0
    cached_tokens: int = 0  # of prompts, found in the prefix cache


class Engine:
    def __init__(self, decoder: Decoder, settings: EngineSettings, version: Version) -> None:
        weight = decoder.lm_head.weight
        self.decoder = decoder.eval()
        self.settings = settings
        self.version = version
        self.device = weight.device
        self.cache = KeyValueCache(decoder.config, settings, weight.device, weight.dtype)
        self.pool = BlockPool(settings.cache_tokens // settings.block_tokens, settings.block_tokens)
        self.scheduler = Scheduler(settings, self.pool, self.cache)
        self.counts = Counts()
        self.paused = False
        self._requests: dict[int, Request] = {}

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._requests) and not self.paused

    def submit(self, ids: Sequence[int], sampling: Sampling, routed: int = 0) -> Request:
        """Queues a prompt. What can never be answered is refused here.

        `routed` leading tokens are those whose experts the one who asks knows already.
        """
        config = self.decoder.config
        positions = config.max_position_embeddings
        refuse_sampling(sampling)
        refuse_ids(ids, config.vocab_size, self.settings, positions, answer=sampling.max_tokens)
        if len(self.scheduler.waiting) >= self.settings.max_waiting:
            raise QueueFull(f"the engine already has {self.settings.max_waiting} requests waiting; ask again later")
        request = Request(self.counts.submitted, tuple(ids), sampling, routed)
        self.counts.submitted += 1
        self._requests[request.number] = request
        self.scheduler.add(request)
        return request

    def abort(self, number: int) -> Request | None:
        """Ends a request between two steps; what it sampled so far stays in it. None if it is not here (any more)."""
        request = self._requests.get(number)
        if request is not None:
            request.stop = "abort"
            self.counts.aborted += 1
            self._retire(request)
        return request

    def pause(self) -> None:
        """Steps do nothing until `resume`; running requests keep their place and their cache."""
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def update(self, load: Callable[[Decoder], None], version: Version) -> None:
        """Swaps the weights between two steps. Running requests go on, with the keys and values they have.

        `load` either writes all of the new weights into the decoder or raises and writes none; then the engine
        stays at its version.
        """
        if version == self.version:
            raise EtudeError(f"the engine is at version {version} already; a version names one set of weights")
        load(self.decoder)
        self.version = version
        self.counts.updates += 1
        for request in self.scheduler.running:
            request.mixed = True

    @torch.inference_mode()
    def step(self) -> list[Request]:
        """Computes one batch: prompts in pieces, one more token for everyone who is ready. Returns who finished."""
        if self.paused:
            return []
        chunks = self.scheduler.plan(self.version)
        if not chunks:
            return []
        self.counts.steps += 1
        logits_RV = self._forward(chunks)
        ready = [chunk.request for chunk in chunks if chunk.samples]
        self._keep(chunks)
        return self._sample(ready, logits_RV)

    @torch.inference_mode()
    def score(self, sequences: Sequence[Sequence[int]], temperature: float = 1.0) -> list[list[float]]:
        """The log-probability of every id given those before it (0.0 for the first), without the cache."""
        config = self.decoder.config
        if not COLDEST <= temperature < math.inf:
            raise EtudeError(f"temperature is {temperature}; scoring needs one of at least {COLDEST}")
        for ids in sequences:
            refuse_ids(ids, config.vocab_size, self.settings, config.max_position_embeddings)
        out: list[list[float]] = []
        for batch in _batches(sequences, self.settings.prefill_tokens):
            packed = Packed(self.decoder, [np.array(ids) for ids in batch], [temperature] * len(batch))
            scores_T = packed.scores()
            if not scores_T.isfinite().all():
                raise EtudeError(f"scoring at version {self.version} gave log-probabilities that are not finite")
            out += [part.tolist() for part in torch.split(scores_T, [len(ids) for ids in batch])]
        return out

    def stats(self) -> dict[str, int | float | str | bool]:
        return {
            **asdict(self.counts),
            "version": str(self.version),
            "paused": self.paused,
            "running": len(self.scheduler.running),
            "waiting": len(self.scheduler.waiting),
            "preemptions": self.scheduler.preemptions,
            "blocks": self.pool.count,
            "blocks_held": self.pool.held,
            "blocks_idle": self.pool.idle,
            "cache_bytes": self.cache.bytes,
        }

    def check(self) -> None:
        """Raises when the engine's books do not agree: a lost block, a row of nobody, a request twice."""
        self.scheduler.check()
        known = {request.number for request in (*self.scheduler.running, *self.scheduler.waiting)}
        assert known == set(self._requests), "a request is lost"

    def _forward(self, chunks: Sequence[Chunk]) -> Tensor:
        """Logits of the last token of each chunk that samples, in their order."""
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
        self.counts.computed_tokens += len(tokens)
        return self.decoder.logits(hidden_TD)

    def _keep(self, chunks: Sequence[Chunk]) -> None:
        """Books what was computed, and copies blocks that became full to the pool."""
        for chunk in chunks:
            request = chunk.request
            request.computed += chunk.count
            first = request.stored
            if blocks := self.scheduler.store(request):
                self.cache.store(request.row, first, blocks)

    def _sample(self, ready: Sequence[Request], logits_RV: Tensor) -> list[Request]:
        if not ready:
            return []
        sampled = [request.length - len(request.prompt) for request in ready]
        tokens, logprobs, tops = sample(logits_RV, [request.sampling for request in ready], sampled)
        done = []
        for row, (request, token, logprob) in enumerate(zip(ready, tokens, logprobs, strict=True)):
            if not math.isfinite(logprob):
                request.error = (
                    f"request {request.number}: the logits after {request.length} tokens are not finite at version "
                    f"{self.version}; the weights or the cache are damaged"
                )
                done.append(request)
                continue
            if not request.logprobs:
                self.counts.cached_tokens += request.cached_tokens
            request.append(token, logprob, self.version, tops.get(row))
            self.counts.sampled_tokens += 1
            if request.finished:
                done.append(request)
        for request in done:
            self.counts.finished += request.error is None
            self.counts.failed += request.error is not None
            self._retire(request)
        if any(request.error for request in done):
            # attention multiplies what lies past a row's end by zero: NaN there would reach whoever sits there next
            self.cache.scrub([request.computed for request in self.scheduler.running])
        return done

    def _retire(self, request: Request) -> None:
        del self._requests[request.number]
        if self.cache.routes and request.running:
            known = self.cache.row_routes_RSEC[request.row, request.routed : request.computed]
            request.experts = known.to("cpu", copy=True).numpy()
        self.scheduler.remove(request, keep=request.error is None)


def _batches(sequences: Sequence[Sequence[int]], tokens: int) -> list[list[Sequence[int]]]:
    """In order, as many sequences at a time as stay within `tokens` (one that alone is longer goes alone)."""
    out: list[list[Sequence[int]]] = []
    room = 0
    for ids in sequences:
        if not out or len(ids) > room:
            out.append([])
            room = tokens
        out[-1].append(ids)
        room -= len(ids)
    return out
