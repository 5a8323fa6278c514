"""The tensors of the key-value cache: blocks, which are shared, and rows, which are fast.

Attention over scattered blocks has to gather them at every step, which halves decoding on a CPU. So every running
request has a row: its keys and values, dense and in order. A row is filled from blocks once, when a request with a
known prefix is admitted; each step appends to it; and a block's worth that has become full is copied to its block,
where later requests find it. Who owns which block is decided in blocks.py, who sits in which row in scheduler.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from etude.model.config import ModelConfig
from etude.settings import EngineSettings


class KeyValueCache:
    """Shapes: L layers, 2 for keys and values, R rows, K key-value heads, S places in a row, B in a block, D dims."""

    def __init__(
        self, config: ModelConfig, settings: EngineSettings, device: torch.device | str, dtype: torch.dtype
    ) -> None:
        self.block_tokens = settings.block_tokens
        blocks = settings.cache_tokens // settings.block_tokens
        layers, heads, dims = config.num_hidden_layers, config.num_key_value_heads, config.head_dim
        longest = -(-settings.max_length // self.block_tokens) * self.block_tokens
        # zeros, because attention multiplies what lies past a row's end by zero, and zero times NaN is NaN
        self.blocks_NL2KBD = torch.zeros(blocks, layers, 2, heads, self.block_tokens, dims, device=device, dtype=dtype)
        self.rows_L2RKSD = torch.zeros(
            layers, 2, settings.max_running, heads, longest, dims, device=device, dtype=dtype
        )

    @property
    def bytes(self) -> int:
        return self.blocks_NL2KBD.nbytes + self.rows_L2RKSD.nbytes

    def fill(self, row: int, blocks: Sequence[int]) -> None:
        """The row begins with what these blocks hold."""
        found = self.blocks_NL2KBD[self._index(blocks)]
        self.rows_L2RKSD[:, :, row, :, : len(blocks) * self.block_tokens] = found.movedim(0, 3).flatten(3, 4)

    def move(self, source: int, target: int, tokens: int) -> None:
        """The first `tokens` of one row now stand in another."""
        self.rows_L2RKSD[:, :, target, :, :tokens] = self.rows_L2RKSD[:, :, source, :, :tokens]

    def store(self, row: int, first: int, blocks: Sequence[int]) -> None:
        """Copies the row's block `first` and the ones after it to these blocks."""
        start, stop = first * self.block_tokens, (first + len(blocks)) * self.block_tokens
        part = self.rows_L2RKSD[:, :, row, :, start:stop]
        if len(blocks) == 1:  # decoding fills one block at a time
            self.blocks_NL2KBD[blocks[0]] = part
        else:
            parts = part.view(*part.shape[:3], len(blocks), self.block_tokens, part.shape[-1])
            self.blocks_NL2KBD[self._index(blocks)] = parts.movedim(3, 0)

    def scrub(self, tokens: Sequence[int]) -> None:
        """Zeroes all that lies past the ends of the rows in use (so many tokens in each): it may hold NaN."""
        for row, end in enumerate(tokens):
            self.rows_L2RKSD[:, :, row, :, end:] = 0
        self.rows_L2RKSD[:, :, len(tokens) :] = 0

    def _index(self, blocks: Sequence[int]) -> Tensor:
        return torch.tensor(blocks, device=self.blocks_NL2KBD.device)
