"""The engine's steps on a GPU, as recorded graphs; with long prompts in them, launched one operation at a time.

The host is not in the way: a step's tokens stay on the device, where the next one takes them from, and are read while
that one computes. A step needs from the host only what that knows before it reads (lengths, tables, seeds).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from etude.core.policy import Sampling
from etude.core.settings import EngineSettings
from etude.engine.cuda.batch import Answers, MixedStaging, put
from etude.engine.cuda.forward import Forward, Prompts, Step
from etude.engine.cuda.graphs import Graphs, MixedGraphs, Recorder, Replay
from etude.engine.cuda.mixed_step import MixedStep, mixed_step, next_token, tables
from etude.engine.cuda.ops import Ops, Pages, Places, Runs
from etude.engine.cuda.pages import PagedCache
from etude.engine.logit_rules import apply_rules
from etude.engine.request import Request, Top
from etude.engine.runner import Read
from etude.engine.sampler import Choice, Sampled, choose, mixed, seed_bits, uniforms
from etude.engine.scheduler import Chunk
from etude.model.decoder import Decoder

Choices = list[tuple[list[int], Choice]]  # of the rows that are sampled the general way
MOST_READ = 4 << 30  # bytes of the cache, read so that a step can be recorded: 1 ms, half of what launching it takes


class _Streak:
    """The same requests decoding step after step: the arguments of a step, as arrays."""

    def __init__(self, requests: list[Request], block_tokens: int, blocks: int) -> None:
        self.requests, self.steps, self.block_tokens = requests, 0, block_tokens
        self.table = tables(requests, blocks)
        self.positions = np.array([request.computed for request in requests], np.int32)
        next_ = [next_token(request) for request in requests]
        self.tokens = np.array([token for token, _ in next_], np.int32)
        self.sources = np.array([source for _, source in next_], np.int32)
        sampling, counters = _sampling(requests)
        self.temperatures = np.array([s.temperature for s in sampling])
        self.seeds, self.counters = seed_bits([s.seed for s in sampling]), np.array(counters, np.uint64)
        self.special = any(map(_is_special, requests))
        for seat, request in enumerate(requests):
            request.seat = seat

    def next(self) -> _Streak:
        """A step later: everybody computes the token that it sampled in the last."""
        # The first step takes its tokens from wherever the step before put them; from then on seats stay.
        if not self.steps:
            self.sources = np.arange(len(self.requests), dtype=np.int32)
        self.steps += 1
        self.positions += 1
        self.counters += np.uint64(1)
        for place in np.flatnonzero(self.positions % self.block_tokens == 0).tolist():  # a new block begins
            block = self.positions[place] // self.block_tokens
            self.table[place, block] = self.requests[place].table[block]
        return self

    @property
    def slots(self) -> NDArray[np.int32]:
        blocks, offsets = np.divmod(self.positions, self.block_tokens)
        slots: NDArray[np.int32] = self.table[np.arange(len(blocks)), blocks] * self.block_tokens + offsets
        return slots


class PagedRunner:
    depth = 1

    def __init__(self, decoder: Decoder, settings: EngineSettings, ops: Ops | None = None) -> None:
        if ops is None:
            from etude.engine.cuda.fused import FusedOps  # needs Triton

            ops = FusedOps()
        weight = decoder.lm_head.weight
        self.device, self.ops = weight.device, ops
        self.cache = PagedCache(decoder.config, settings, weight.device, weight.dtype)
        self.forward = Forward(
            decoder, self.cache, ops, min(settings.max_length, decoder.config.max_position_embeddings)
        )
        blocks = -(-settings.max_length // settings.block_tokens)
        self.answers = Answers(settings.max_running, self.device)
        recorder = Recorder(self.answers)
        self.graphs = Graphs(self.forward, recorder, settings.max_running, blocks)
        most = settings.max_running + settings.prefill_tokens
        self.mixed = MixedGraphs(self.forward, recorder, settings.max_running, blocks, most)
        slots = self.cache.nobody + self.cache.block_tokens
        self._token_bytes = self.cache.blocks_LPNKBD.nbytes // slots
        self._blocks = blocks
        self._streak = self._begin([])

    def overlaps(self, chunks: Sequence[Chunk]) -> bool:
        # Rules depend on the tokens so far, which only a step that was read has told the host.
        return all(chunk.request.rules is None for chunk in chunks)

    def launch(self, chunks: Sequence[Chunk], ready: Sequence[Request]) -> Read:
        if len(chunks) == sum(chunk.count for chunk in chunks):
            requests = [chunk.request for chunk in chunks]
            choices = self._decode(requests)
        else:
            requests, choices = self._mixed(chunks)
        places = None  # all, in order
        if len(ready) < len(requests) or requests != ready:
            seats = {request.number: seat for seat, request in enumerate(requests)}
            places = [seats[request.number] for request in ready]
        host, happened = self.answers.fetch()

        def read() -> Sampled:
            if happened is not None:
                happened.synchronize()
            tops: dict[int, Top] = {}
            for rows, choice in choices:
                tops |= {rows[i]: top for i, top in choice.tops().items()}
            if places is None:
                return Sampled(host[0, : len(ready)].tolist(), host[1, : len(ready)].view(np.float32).tolist(), tops)
            tokens, logprobs = host[0, places].tolist(), host[1, places].view(np.float32).tolist()
            return Sampled(tokens, logprobs, {i: tops[seat] for i, seat in enumerate(places) if seat in tops})

        return read

    def _decode(self, requests: list[Request]) -> Choices:
        """One token for each. As long as the same requests decode, only what moves on is written anew."""
        # With ahead == 1 the last token lies unread on the device, where the recorded step takes it from.
        if requests == self._streak.requests and all(request.ahead == 1 for request in requests):
            streak = self._streak.next()
        else:
            streak = self._streak = self._begin(requests)
        count = len(requests)
        staging, replay = self.graphs.staging(count)
        host = staging.host()
        host.tokens[:count], host.sources[:count] = streak.tokens, streak.sources
        host.positions[:count], host.lengths[:count] = streak.positions, streak.positions + 1
        host.table[:count], host.slots[:count] = streak.table, streak.slots
        host.temperatures[:count] = streak.temperatures
        host.uniforms[:count] = mixed(streak.seeds, streak.counters)
        staging.send(count)
        logits_RV = replay()
        return self._special(logits_RV, requests) if streak.special else []

    def _mixed(self, chunks: Sequence[Chunk]) -> tuple[list[Request], Choices]:
        """Decoding and prompts together. Those who decode come first, and so they do among the answers."""
        # A mixed step gives new seats, so no streak survives it.
        self._streak = self._begin([])
        step = mixed_step(chunks, self.cache.block_tokens, self._blocks)
        cheap = step.prompt_reads * self._token_bytes <= MOST_READ
        recorded = self.mixed.staging(len(step.tokens)) if cheap else None
        logits_RV = self._launch_mixed(step) if recorded is None else self._replay_mixed(step, *recorded)
        choices = self._special(logits_RV, step.requests) if logits_RV is not None else []
        for seat, request in enumerate(step.requests):
            request.seat = seat
        return step.requests, choices

    def _replay_mixed(self, step: MixedStep, staging: MixedStaging, replay: Replay) -> torch.Tensor:
        host, count, rows = staging.host(), len(step.tokens), len(step.requests)
        host.tokens[:count], host.sources[:count], host.positions[:count] = step.tokens, step.sources, step.positions
        host.slots[:count], host.lengths[:count], host.lines[:count] = step.slots, step.positions + 1, step.lines
        host.table[: len(step.table)] = step.table
        host.last[:rows] = step.last
        host.temperatures[:rows], host.uniforms[:rows] = _drawn(step.requests)
        staging.send(count, rows)
        return replay()

    def _launch_mixed(self, step: MixedStep) -> torch.Tensor | None:
        """The same, one operation at a time; None where nobody samples."""
        first = step.decoding
        fields = put((step.tokens, step.sources, step.positions, step.slots), np.int32, self.device)
        pages = Pages(
            put(step.table[:first], np.int32, self.device), put(step.positions[:first] + 1, np.int32, self.device)
        )
        places = Places(fields[2], fields[3], self.forward.angles)
        launched = Step(fields[0], fields[1], places, pages, self._prompts(step.prompts))
        hidden_TD = self.forward.hidden(launched, self.answers.tokens_S)
        if not step.requests:
            return None
        logits_RV = self.forward.logits(hidden_TD[put(step.last, np.int64, self.device)])
        reals = put(_drawn(step.requests), np.float64, self.device)
        self.ops.pick(logits_RV, reals[0], reals[1], self.answers.tokens_S, self.answers.logprobs_S)
        return logits_RV

    def _prompts(self, chunks: Sequence[Chunk]) -> Prompts:
        queries = [chunk.count for chunk in chunks]
        keys = [chunk.request.computed + chunk.count for chunk in chunks]
        slots = None
        # Some keys were computed in earlier steps. Otherwise those just made are all, and nothing is gathered.
        if keys != queries:
            seen = [
                slot
                for chunk, end in zip(chunks, keys, strict=True)
                for slot in self.cache.slots(chunk.request, 0, end)
            ]
            slots = put(seen, np.int64, self.device)
        ends = [put(np.cumsum([0, *lengths]), np.int32, self.device) for lengths in (queries, keys)]
        return Prompts(Runs(queries, keys, *ends), slots)

    def _special(self, logits_RV: torch.Tensor, requests: Sequence[Request]) -> Choices:
        """Rows whose distribution is cut, or that ask for alternatives, are sampled again, the general way."""
        rows = [i for i, request in enumerate(requests) if _is_special(request)]
        if not rows:
            return []
        rows_R = put(rows, np.int64, self.device)
        asking = [requests[i] for i in rows]
        choice = choose(apply_rules(logits_RV[rows_R], asking), *_sampling(asking))
        self.answers.tokens_S[rows_R] = choice.tokens_R.to(torch.int32)
        self.answers.logprobs_S[rows_R] = choice.logprobs_R.float()
        return [(rows, choice)]

    def _begin(self, requests: list[Request]) -> _Streak:
        return _Streak(requests, self.cache.block_tokens, self._blocks)


def _is_special(request: Request) -> bool:
    s = request.sampling
    return bool(request.rules is not None or s.top_logprobs or (s.temperature and (s.top_k or s.top_p < 1)))


def _sampling(requests: Sequence[Request]) -> tuple[list[Sampling], list[int]]:
    counters = [len(request.logprobs) + request.ahead for request in requests]
    return [request.sampling for request in requests], counters


def _drawn(requests: Sequence[Request]) -> tuple[list[float], NDArray[np.float64]]:
    """How each is sampled: its temperature, and the uniform number of its next token."""
    sampling, counters = _sampling(requests)
    return [s.temperature for s in sampling], uniforms([s.seed for s in sampling], counters)
