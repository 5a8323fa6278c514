"""Who owns which block of cache memory, and which blocks can be found again by what they hold.

A block is a number; the tensors behind it are cache.py's. It is in exactly one of three states:

    free    nobody refers to it and nothing worth keeping is in it
    held    one or more requests have it in their table
    idle    nobody refers to it, but it can be found by its hash; evicted when free blocks run out, oldest first

A full block's hash is chained: it covers the version of the weights, every token before the block and those in it,
so equal hashes mean equal keys and values, and a block of one version is never found under another.
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b

from etude.core.policy import Version


def first_link(version: Version) -> bytes:
    """Where every chain of this version begins."""
    return blake2b(f"etude {version}".encode(), digest_size=16).digest()


def next_link(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The hash of a full block from its parent's and its own tokens."""
    # 8 bytes for each token: with a fixed width no two sequences of tokens spell the same bytes.
    return blake2b(parent + array("q", tokens).tobytes(), digest_size=16).digest()


class BlockPool:
    """Reference counts, hashes and the order of eviction of a fixed number of blocks."""

    def __init__(self, count: int, block_tokens: int) -> None:
        self.count = count
        self.block_tokens = block_tokens
        self._free = list(range(count - 1, -1, -1))  # a stack: the block freed last is warm in the processor's cache
        self._references = [0] * count
        self._hash: list[bytes | None] = [None] * count
        self._found: dict[bytes, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()  # oldest first

    @property
    def available(self) -> int:
        """Blocks that `allocate` could hand out now."""
        return len(self._free) + len(self._idle)

    @property
    def idle(self) -> int:
        return len(self._idle)

    @property
    def held(self) -> int:
        return self.count - self.available

    def needed(self, tokens: int) -> int:
        """Blocks that so many tokens fill, the last one perhaps in part."""
        return -(-tokens // self.block_tokens)

    def find(self, chain: Sequence[bytes]) -> list[int]:
        """The blocks that hold the longest known beginning of the chain. Takes no reference."""
        blocks = []
        for link in chain:
            block = self._found.get(link)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def share(self, blocks: Sequence[int]) -> None:
        """Takes one reference to each, so that none of them is evicted."""
        for block in blocks:
            if self._references[block] == 0:
                del self._idle[block]  # only found blocks are shared, and an unreferenced found block is idle
            self._references[block] += 1

    def allocate(self, count: int) -> list[int]:
        """Blocks with one reference each and nothing in them; the caller has looked at `available`."""
        if count > self.available:
            raise RuntimeError(f"{count} cache blocks asked for, {self.available} available")
        blocks = []
        for _ in range(count):
            # Free blocks first: an idle one may still save somebody a prefill.
            block = self._free.pop() if self._free else self._evict()
            self._references[block] = 1
            blocks.append(block)
        return blocks

    def register(self, block: int, link: bytes) -> None:
        """From now on the held block can be found by its hash. Of two blocks with equal contents the first stays."""
        if self._references[block] == 0 or self._hash[block] is not None:
            raise RuntimeError(f"cache block {block} cannot be registered: it is unreferenced or has a hash already")
        # Two requests can compute equal blocks at the same time. The second copy stays its owner's and is never found.
        if link not in self._found:
            self._found[link] = block
            self._hash[block] = link

    def release(self, blocks: Sequence[int], keep: bool = True) -> None:
        """Gives one reference to each back. Without `keep` what they hold is forgotten, as it is worth nothing."""
        # the end of a sequence is of less use than its beginning, so it becomes idle, and is evicted, first
        for block in reversed(blocks):
            if self._references[block] < 1:
                raise RuntimeError(f"cache block {block} was released more often than it was taken")
            self._references[block] -= 1
            # What is not worth keeping may hold NaN: nobody may find it, not even while another request still holds it.
            if not keep:
                self._forget(block)
            if self._references[block] == 0:
                if self._hash[block] is None:
                    self._free.append(block)
                else:
                    self._idle[block] = None

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Proves, from the tables of all running requests, that no block is lost, leaked or owned twice."""
        references = Counter(block for table in tables for block in table)
        for block in range(self.count):
            assert self._references[block] == references[block], f"block {block}: wrong reference count"
        free, idle = set(self._free), set(self._idle)
        held = {block for block in range(self.count) if self._references[block]}
        assert len(free) == len(self._free), "a block is free twice"
        assert len(free) + len(idle) + len(held) == self.count == len(free | idle | held), "a block is lost"
        assert all(self._hash[block] is None for block in free), "a free block has a hash"
        assert all(self._hash[block] is not None for block in idle), "an idle block cannot be found"
        hashed = {link: block for block, link in enumerate(self._hash) if link is not None}
        assert hashed == self._found, "hashes and blocks disagree"

    def _evict(self) -> int:
        block, _ = self._idle.popitem(last=False)
        self._forget(block)
        return block

    def _forget(self, block: int) -> None:
        link = self._hash[block]
        if link is not None:
            self._hash[block] = None
            del self._found[link]
