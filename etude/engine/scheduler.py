"""Who computes what in the next step, who gets in, and who has to step back when memory runs out.

Knows requests, blocks and rows (a row is a place in the running batch); knows no tensors, no weights and no clock.

The rules, in the order in which a step applies them:

1. Every running request that needs one more block gets it, oldest first. When none is left the newest running
   request is preempted: it gives back row and blocks, keeps its tokens, and waits in its old place in the queue.
2. Waiting requests are admitted oldest first while rows, blocks and prefill work allow. One that does not fit
   is never overtaken. One whose next prefix block is being computed by a running request waits for that block
   instead of computing it again; later requests may pass it, for that wait ends with the other's prefill.
3. Every request with one token to compute decodes; the others share `prefill_tokens`, oldest first.
4. With `prefill_every` above 1 prompts are held back while more requests decode than wait, for fewer than so many
   steps: then one step computes the prompts of several. On a GPU a step with prompts takes longer than one that only
   decodes, above all where it is launched operation by operation and not a recorded graph.

Nobody starves: the oldest running request is never preempted and fits in the cache alone, so it finishes; then
there is another oldest.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from etude.core.policy import Version
from etude.core.settings import EngineSettings
from etude.engine.blocks import BlockPool, first_link, next_link
from etude.engine.request import WAITING, Request


class Rows(Protocol):
    """The memory of the running batch, as far as the scheduler needs it."""

    def fill(self, row: int, blocks: Sequence[int]) -> None:
        """The row begins with what these blocks hold."""

    def move(self, source: int, target: int, tokens: int) -> None:
        """The first `tokens` of one row now stand in another."""


@dataclass(slots=True)
class Chunk:
    """The next `count` tokens of one request."""

    request: Request
    count: int
    samples: bool  # whether all of the request's tokens are computed after this, so that it samples the next


class Scheduler:
    def __init__(self, settings: EngineSettings, pool: BlockPool, rows: Rows) -> None:
        self.settings = settings
        self.pool = pool
        self.rows = rows
        self.waiting: list[Request] = []  # by age
        self.running: list[Request] = []  # by row, without gaps
        self.preemptions = 0
        self._held = 0  # steps since prompts were computed, while some wait

    def add(self, request: Request) -> None:
        self.waiting.append(request)

    def plan(self, version: Version) -> list[Chunk] | None:
        """The work of the next step, in the order of the rows. Empty when there is nothing to do.

        None when somebody must step back but tokens are under way: those must be read first, for whoever steps back
        takes all of its tokens along.
        """
        if not self._grow():
            return None
        if self.settings.prefill_every > 1 and self._hold_prompts():
            return [Chunk(request, 1, True) for request in self.running if request.missing == 1]
        if self.waiting and len(self.running) < self.settings.max_running:
            self._admit(version)
        return self._divide()

    def swapped(self) -> None:
        """The weights are others now; between two steps, with none under way."""
        for request in list(self.running):
            # A prompt of which a part is computed begins again: its first token would carry the new version, and come
            # from keys of the old one. Once: a prompt that takes longer than from swap to swap would never be answered.
            if not request.logprobs and not request.preemptions:
                self._preempt(request)
            else:
                # its later blocks hold keys of two versions, so nobody else may find them by a hash of one
                request.mixed = True

    def remove(self, request: Request, keep: bool = True) -> None:
        """Takes a request out for good, wherever it is. `keep` leaves its full blocks to be found by others."""
        if request.running:
            self._vacate(request, keep)
        elif request in self.waiting:
            self.waiting.remove(request)

    def check(self) -> None:
        """Raises when requests, rows and blocks contradict each other."""
        self.pool.check([request.table for request in self.running])
        for row, request in enumerate(self.running):
            assert request.row == row, f"request {request.number} believes in row {request.row}, not {row}"
            assert len(request.table) * self.pool.block_tokens >= request.computed, "computed tokens without a block"
        numbers = [request.number for request in self.waiting]
        assert numbers == sorted(set(numbers)), "the queue is out of order"
        for request in (*self.running, *self.waiting):
            request.check()

    def _grow(self) -> bool:
        """Whether everybody has the blocks for its next tokens now, or has stepped back."""
        size = self.pool.block_tokens
        # Most requests have room in their last block at most steps; `reach` is only worked out for the others.
        full = [r for r in self.running if len(r.tokens) + r.ahead + r.draft_slots > len(r.table) * size]
        growing = [request for request in full if request.reach > len(request.table) * size]
        if not growing:
            return True
        wanted = [self.pool.needed(request.reach) - len(request.table) for request in growing]
        # steps under way may end requests and free blocks: they are read before anybody is preempted
        if sum(wanted) > self.pool.available and any(request.ahead for request in self.running):
            return False
        # Oldest first, and the newest steps back: the oldest always gets on, so nobody starves.
        for short, request in sorted(zip(wanted, growing, strict=True), key=lambda pair: _age(pair[1])):
            while request.running and self.pool.available < short:
                self._preempt(max(self.running, key=_age))
            if request.running:
                request.table += self.pool.allocate(short)
        return True

    def _hold_prompts(self) -> bool:
        """Whether the next step only decodes, although prompts are there."""
        missing = [request.missing for request in self.running]
        decoding = missing.count(1)
        prompts = len(self.waiting) + sum(count > 1 for count in missing)
        self._held += 1
        if prompts and prompts < decoding and self._held < self.settings.prefill_every:
            return True
        self._held = 0
        return False

    def _admit(self, version: Version) -> None:
        # Blocks that somebody is about to fill. A mixed request registers none, so nobody may wait for those.
        coming = {link for request in self.running if not request.mixed for link in request.chain[request.stored :]}
        # Prompts that are admitted and not computed. Past a step's worth, more would only tie up rows and blocks.
        backlog = sum(request.missing for request in self.running if request.missing > 1)
        for request in list(self.waiting):
            if len(self.running) >= self.settings.max_running or backlog >= self.settings.prefill_tokens:
                break
            chain = self._chain(request, version)
            # at least the last token is computed: its logits are needed
            shareable = chain[: (request.length - 1) // self.pool.block_tokens]
            found = self.pool.find(shareable)
            # a group of equal prompts computes its prompt once: the others wait for the blocks of the first
            if len(found) < len(shareable) and shareable[len(found)] in coming:
                continue
            # Nobody overtakes one that does not fit: small requests could keep a large one out for ever.
            if not self._seat(request, found):
                break
            coming.update(chain[len(found) :])
            backlog += request.missing

    def _seat(self, request: Request, found: list[int]) -> bool:
        """Gives the request a row, the blocks found for its beginning and new ones for the rest, if they suffice."""
        # Taken before the rest is allocated, which might evict the very blocks that were found.
        self.pool.share(found)
        fresh = self.pool.needed(request.length) - len(found)
        # a block for each running request, so that letting one in does not push another out at once
        if self.pool.available < fresh + len(self.running):
            self.pool.release(found)
            return False
        self.waiting.remove(request)
        request.table = found + self.pool.allocate(fresh)
        request.row = len(self.running)
        request.stored = len(found)
        request.computed = len(found) * self.pool.block_tokens
        # Whatever it was before a preemption: from here on all of its keys are of one version.
        request.mixed = False
        # After a preemption it finds its own blocks again; that is no prefix hit to report.
        if not request.preemptions:
            request.cached_tokens = request.computed
        self.running.append(request)
        if found:
            self.rows.fill(request.row, found)
        return True

    def _divide(self) -> list[Chunk]:
        shares: dict[int, int] = {}
        missing = [request.missing for request in self.running]
        if max(missing, default=0) > 1:
            left = self.settings.prefill_tokens
            for request in sorted((r for r, count in zip(self.running, missing, strict=True) if count > 1), key=_age):
                shares[request.row] = share = min(left, missing[request.row])
                left -= share
        pairs = zip(self.running, missing, strict=True)
        if not shares:
            return [Chunk(request, count, True) for request, count in pairs if count]
        chunks = [Chunk(r, share := shares.get(r.row, count), share == count) for r, count in pairs]
        return [chunk for chunk in chunks if chunk.count]

    def _preempt(self, request: Request) -> None:
        self.preemptions += 1
        request.preemptions += 1
        self._vacate(request, keep=True)
        # Back to its place by age, not to the end: older is never set back for newer.
        insort(self.waiting, request, key=_age)

    def _vacate(self, request: Request, keep: bool) -> None:
        """Gives back row and blocks. The last row moves into the gap, so that the batch stays dense."""
        self.pool.release(request.table, keep)
        last = self.running.pop()
        if last is not request:
            self.rows.move(last.row, request.row, last.computed)
            last.row = request.row
            self.running[request.row] = last
        request.table, request.row, request.computed, request.stored, request.ahead = [], WAITING, 0, 0, 0
        request.draft_slots = 0

    def store(self, request: Request) -> list[int]:
        """Registers the blocks that have become full, and returns them: their contents must be kept."""
        size = self.pool.block_tokens
        # Keys of a request that ran across an update are of several versions: nobody may share them.
        if request.mixed or request.settled < (request.stored + 1) * size:
            return []
        chain = self._chain(request, request.chain_version)
        # `settled` and not `computed`: a hash needs the tokens, and those under way only the device knows.
        blocks = request.table[request.stored : request.settled // size]
        for block, link in zip(blocks, chain[request.stored :], strict=False):
            self.pool.register(block, link)
        request.stored += len(blocks)
        return blocks

    def _chain(self, request: Request, version: Version | None) -> list[bytes]:
        """The hashes of all full blocks of the request's tokens under this version."""
        assert version is not None
        # The hashes cover the version, so an update makes the old chain worthless.
        if request.chain_version != version:
            request.chain, request.chain_version = [], version
        chain, size = request.chain, self.pool.block_tokens
        parent = chain[-1] if chain else first_link(version)
        for start in range(len(chain) * size, len(request.tokens) - size + 1, size):
            parent = next_link(parent, request.tokens[start : start + size])
            chain.append(parent)
        return chain


def _age(request: Request) -> int:
    return request.number
