"""The step that joins scheduler, model, cache and sampler, and the swap of weights between two steps.

Single-threaded and synchronous: whoever owns an engine calls `step` again and again and does everything else
(submit, abort, update) in between. Knows token ids only, never text, and no transport.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch

from etude.core.errors import EtudeError
from etude.core.policy import Sampling, Version
from etude.core.settings import EngineSettings
from etude.engine import resident
from etude.engine.blocks import BlockPool
from etude.engine.logit_rules import LogitRules
from etude.engine.prompt_scores import PromptScores, prompt_scores
from etude.engine.request import COLDEST, QueueFull, Request, refuse_ids, refuse_sampling
from etude.engine.runner import Read, RowRunner, Runner
from etude.engine.scheduler import Chunk, Scheduler
from etude.engine.speculate import SpeculatingRunner
from etude.engine.step_costs import StepCosts, ThreadClock, slept
from etude.model.decoder import Decoder
from etude.model.packed_forward import Packed


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


@dataclass(frozen=True)
class _Flight:
    """A step that was launched: who is in it, who samples, with which weights."""

    chunks: Sequence[Chunk]
    ready: Sequence[Request]
    version: Version
    read: Read


class Engine:
    """`runner` computes the steps; without one it is chosen by where the decoder lies."""

    def __init__(
        self,
        decoder: Decoder,
        settings: EngineSettings,
        version: Version,
        runner: Runner | None = None,
        *,
        first: int = 0,
    ) -> None:
        self.decoder = decoder.eval()
        self.settings = settings
        self.version = version
        self.runner = runner or default_runner(decoder, settings)
        self.cache = self.runner.cache
        self.pool = BlockPool(settings.cache_tokens // settings.block_tokens, settings.block_tokens)
        self.scheduler = Scheduler(settings, self.pool, self.cache)
        self.counts, self.costs, self._clock = Counts(), StepCosts(), ThreadClock()
        self.paused = False
        self.pinned: Engine | None = None  # another version, kept for those who ask for it by name
        self._first = first  # number of the first request
        self._requests: dict[int, Request] = {}
        self._flights: deque[_Flight] = deque()  # launched and not read yet, oldest first
        self._done: list[Request] = []  # finished, and not returned by `step` yet

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        own = (bool(self._requests) and not self.paused) or bool(self._done)
        return own or (self.pinned is not None and self.pinned.busy)

    def submit(
        self,
        ids: Sequence[int],
        sampling: Sampling,
        routed: int = 0,
        version: Version | None = None,
        rules: LogitRules | None = None,
    ) -> Request:
        """Queues a prompt. What can never be answered is refused here.

        `routed` leading tokens are those whose experts the one who asks knows already. With a `version` all of the
        answer is sampled by that one, which must have been pinned; without, by whatever weights there are.
        """
        if version is not None:
            if self.pinned is None or self.pinned.version != version:
                raise resident.refuse(version, [self.version, *([self.pinned.version] if self.pinned else [])])
            return self.pinned.submit(ids, sampling, routed, rules=rules)
        config = self.decoder.config
        positions = config.max_position_embeddings
        refuse_sampling(sampling)
        if rules and self.settings.speculate:
            raise EtudeError("drafts follow the model's own distribution: set engine.speculate=0 for logit rules")
        refuse_ids(ids, config.vocab_size, self.settings, positions, answer=sampling.max_tokens)
        # Bounded: whoever asks too fast should hear of it now, and not when a deadline has passed.
        if len(self.scheduler.waiting) >= self.settings.max_waiting:
            raise QueueFull(f"the engine already has {self.settings.max_waiting} requests waiting; ask again later")
        request = Request(self._first + self.counts.submitted, tuple(ids), sampling, routed, rules or None)
        self.counts.submitted += 1
        self._requests[request.number] = request
        self.scheduler.add(request)
        return request

    def abort(self, number: int) -> Request | None:
        """Ends a request between two steps; what it sampled so far stays in it. None if it is not here (any more)."""
        if self.pinned is not None and number >= resident.FIRST_NUMBER > self._first:
            return self.pinned.abort(number)
        if number not in self._requests:
            return None  # most who ask have been answered, and nobody else should wait for them
        self._drain()
        request = self._requests.get(number)
        if request is not None:
            request.stop = "abort"
            self.counts.aborted += 1
            self._retire(request)
        return request

    def sampled(self, number: int) -> int:
        """Tokens of a request so far; 0 if it is not here (any more)."""
        if self.pinned is not None and number >= resident.FIRST_NUMBER > self._first:
            return self.pinned.sampled(number)
        return len(self._requests[number].logprobs) if number in self._requests else 0

    def pause(self) -> None:
        """Steps do nothing until `resume`; running requests keep their place and their cache."""
        self._drain()
        self.paused = True
        if self.pinned is not None:
            self.pinned.pause()

    def resume(self) -> None:
        self.paused = False
        if self.pinned is not None:
            self.pinned.resume()

    def pin(self, version: Version) -> None:
        """Keeps the present weights, which must be `version`, for requests that ask for them by name."""
        if self.pinned is not None and self.pinned.version == version:
            return
        if version != self.version:
            raise EtudeError(f"version {version} cannot be pinned: the engine is at {self.version}")
        self.pinned = resident.pin(self, self.pinned)
        self.pinned.paused = self.paused

    def update(self, load: Callable[[Decoder], None], version: Version) -> None:
        """Swaps the weights between two steps. Running requests go on, with the keys and values they have.

        `load` either writes all of the new weights into the decoder or raises and writes none; then the engine
        stays at its version.
        """
        if version == self.version:
            raise EtudeError(f"the engine is at version {version} already; a version names one set of weights")
        self._drain()
        # The steps under way are over by now: they read the very memory that `load` writes over.
        load(self.decoder)
        self.version = version
        self.counts.updates += 1
        self.scheduler.swapped()

    @torch.inference_mode()
    def step(self) -> list[Request]:
        """Computes one batch: prompts in pieces, one more token for everyone who is ready. Returns who finished.

        Where the runner allows, a step is launched before the one before it is read: whoever turns out to have
        finished there is computed once more, for nothing.
        """
        if not self.paused:
            self._clock.start()
            chunks = self.scheduler.plan(self.version)
            # None: a block is missing, and who gives one back is known only when the steps under way are read
            if chunks is None or (self._flights and not self.runner.overlaps(chunks)):
                self._settle_all()
                chunks = self.scheduler.plan(self.version)
            if chunks:
                self._launch(chunks)
            # on a GPU one step stays under way: planning and booking then cost it no time (docs/rooms/engine.md)
            while len(self._flights) > (self.runner.depth if chunks else 0):
                self._settle()
            self._clock.stop()
        if self.pinned is not None and self.pinned.busy:
            self._done += self.pinned.step()
        done, self._done = self._done, []
        return done

    @torch.inference_mode()
    def score(self, sequences: Sequence[Sequence[int]], temperature: float = 1.0) -> list[list[float]]:
        """The log-probability of every id given those before it (0.0 for the first), without the cache."""
        config = self.decoder.config
        if not COLDEST <= temperature < math.inf:
            raise EtudeError(f"temperature is {temperature}; scoring needs one of at least {COLDEST}")
        for ids in sequences:
            refuse_ids(ids, config.vocab_size, self.settings, config.max_position_embeddings)
        out: list[list[float]] = []
        # as much at once as a step computes of prompts, so that scoring needs no more memory than sampling
        for batch in _batches(sequences, self.settings.prefill_tokens):
            packed = Packed(self.decoder, [np.array(ids) for ids in batch], [temperature] * len(batch))
            scores_T = packed.scores()
            if not scores_T.isfinite().all():
                raise EtudeError(f"scoring at version {self.version} gave log-probabilities that are not finite")
            out += [part.tolist() for part in torch.split(scores_T, [len(ids) for ids in batch])]
        return out

    def prompt_scores(self, ids: Sequence[int], top: int) -> PromptScores:
        """Log-probabilities of a prompt's tokens, with the `top` likeliest at each place."""
        config = self.decoder.config
        refuse_ids(ids, config.vocab_size, self.settings, config.max_position_embeddings)
        return prompt_scores(self.decoder, ids, top)

    def stats(self) -> dict[str, int | float | str | bool]:
        return {
            **asdict(self.counts),
            **asdict(self.costs),
            "version": str(self.version),
            "pinned": str(self.pinned.version) if self.pinned is not None else "",
            "paused": self.paused,
            "running": len(self.scheduler.running),
            "waiting": len(self.scheduler.waiting),
            "preemptions": self.scheduler.preemptions,
            "blocks": self.pool.count,
            "blocks_held": self.pool.held,
            "blocks_idle": self.pool.idle,
            "cache_bytes": self.cache.bytes,
            **(self.runner.facts() if isinstance(self.runner, SpeculatingRunner) else {}),
        }

    def check(self) -> None:
        """Raises when the engine's books do not agree: a lost block, a row of nobody, a request twice."""
        self.scheduler.check()
        if self.pinned is not None:
            self.pinned.check()
        known = {request.number for request in (*self.scheduler.running, *self.scheduler.waiting)}
        assert known == set(self._requests), "a request is lost"

    def _launch(self, chunks: Sequence[Chunk]) -> None:
        ready = [chunk.request for chunk in chunks if chunk.samples]
        read = self.runner.launch(chunks, ready)
        self.counts.steps += 1
        for chunk in chunks:
            chunk.request.computed += chunk.count
            chunk.request.ahead += chunk.samples
            self.counts.computed_tokens += chunk.count
        self._flights.append(_Flight(chunks, ready, self.version, read))

    def _drain(self) -> None:
        """Between two steps: reads all that are under way; the next `step` returns who finished in them."""
        self._clock.start()
        self._settle_all()
        self._clock.stop()

    def _settle_all(self) -> None:
        while self._flights:
            self._settle()

    def _settle(self) -> None:
        """Books what the oldest step under way computed, and takes what it sampled."""
        flight, before = self._flights.popleft(), self.counts.sampled_tokens
        began = time.perf_counter(), time.thread_time()
        sampled = flight.read()
        waited = slept(began) if self.runner.depth else 0.0
        size = self.pool.block_tokens
        for chunk in flight.chunks:
            request, first = chunk.request, chunk.request.stored
            if request.computed >= (first + 1) * size and request.running and (blocks := self.scheduler.store(request)):
                self.cache.store(request.row, first, blocks)
        done = []
        takers, tops = sampled.takers(flight.ready), sampled.tops
        finite = math.isfinite(sum(sampled.logprobs))  # one that is not shows in the sum
        taker: Request | None = None
        for row, (request, token, logprob) in enumerate(zip(takers, sampled.tokens, sampled.logprobs, strict=True)):
            if request.stop is not None or request.error is not None:
                continue  # it ended after this step was launched, which nobody could know then
            if request is taker:
                request.computed += 1  # of several tokens all but the last were drafts, and are computed already
            else:
                request.ahead, taker = request.ahead - 1, request
            # Only this request failed: its neighbours' logits come from rows of their own.
            if not finite and not math.isfinite(logprob):
                request.error = (
                    f"request {request.number}: the logits after {len(request.tokens)} tokens are not finite at "
                    f"version {flight.version}; the weights or the cache are damaged"
                )
                done.append(request)
                continue
            if not request.logprobs:
                self.counts.cached_tokens += request.cached_tokens
            request.append(token, logprob, flight.version, tops.get(row) if tops else None)
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
        self._done += done
        rows = self.counts.sampled_tokens - before
        self.costs.add(self._clock.lap() + waited, rows, max(0, sum(chunk.count for chunk in flight.chunks) - rows))
        self.costs.waited_seconds += waited

    def _retire(self, request: Request) -> None:
        del self._requests[request.number]
        if self.cache.routes and request.running:
            # a step that is under way may have computed the last token, too; nobody asked for its experts
            end = min(request.computed, len(request.tokens) - 1)
            request.experts = self.cache.experts(request, min(request.routed, end), end)
        # Blocks of a failed request may hold NaN, which nobody may find as a prefix.
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


def default_runner(decoder: Decoder, settings: EngineSettings) -> Runner:
    """Dense rows on a CPU, pages and graphs on a GPU; with drafts for whoever speculates."""
    cuda = decoder.lm_head.weight.device.type == "cuda"
    if settings.speculate and not cuda:
        return SpeculatingRunner(decoder, settings)
    if not cuda:
        return RowRunner(decoder, settings)
    from etude.engine.cuda.draft_cache import PageMemory  # needs Triton, which a CPU does not have
    from etude.engine.cuda.runner import PagedRunner

    if settings.speculate:
        return SpeculatingRunner(decoder, settings, PageMemory(decoder, settings))
    return PagedRunner(decoder, settings)
