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

from etude.core.policy import Experts
from etude.core.settings import EngineSettings
from etude.engine.request import Request
from etude.model.config import ModelConfig


class KeyValueCache:
    """Shapes: L layers, P planes (keys and values, or one of latents), R rows, K heads, S places in a row, B in
    a block, D dimensions; E of the layers have experts, C of which each chose for a token.

    The choices are kept beside the keys: a prefix that is found again also says where its tokens were routed.
    """

    def __init__(
        self, config: ModelConfig, settings: EngineSettings, device: torch.device | str, dtype: torch.dtype
    ) -> None:
        self.block_tokens = settings.block_tokens
        blocks = settings.cache_tokens // settings.block_tokens
        layers, (planes, heads, dims) = config.num_hidden_layers, config.cache_shape
        # The MTP heads attend to keys of their own, so drafting needs their layers in the cache, too.
        if settings.speculate:
            layers = config.cache_layers
        longest = -(-settings.max_length // self.block_tokens) * self.block_tokens
        # zeros, because attention multiplies what lies past a row's end by zero, and zero times NaN is NaN
        self.blocks_NLPKBD = torch.zeros(
            blocks, layers, planes, heads, self.block_tokens, dims, device=device, dtype=dtype
        )
        self.rows_LPRKSD = torch.zeros(
            layers, planes, settings.max_running, heads, longest, dims, device=device, dtype=dtype
        )
        routed = (len(config.sparse_layers), config.num_experts_per_tok)
        self.routes = all(routed)
        # int16: there is one entry for each token, sparse layer and choice, and the numbers of experts are small.
        if self.routes:
            self.block_routes_NBEC = torch.zeros(blocks, self.block_tokens, *routed, device=device, dtype=torch.int16)
            self.row_routes_RSEC = torch.zeros(settings.max_running, longest, *routed, device=device, dtype=torch.int16)

    @property
    def bytes(self) -> int:
        routes = self.block_routes_NBEC.nbytes + self.row_routes_RSEC.nbytes if self.routes else 0
        return self.blocks_NLPKBD.nbytes + self.rows_LPRKSD.nbytes + routes

    def fill(self, row: int, blocks: Sequence[int]) -> None:
        """The row begins with what these blocks hold."""
        found = self.blocks_NLPKBD[self._index(blocks)]
        self.rows_LPRKSD[:, :, row, :, : len(blocks) * self.block_tokens] = found.movedim(0, 3).flatten(3, 4)
        if self.routes:
            known = self.block_routes_NBEC[self._index(blocks)].flatten(0, 1)
            self.row_routes_RSEC[row, : len(known)] = known

    def move(self, source: int, target: int, tokens: int) -> None:
        """The first `tokens` of one row now stand in another."""
        self.rows_LPRKSD[:, :, target, :, :tokens] = self.rows_LPRKSD[:, :, source, :, :tokens]
        if self.routes:
            self.row_routes_RSEC[target, :tokens] = self.row_routes_RSEC[source, :tokens]

    def store(self, row: int, first: int, blocks: Sequence[int]) -> None:
        """Copies the row's block `first` and the ones after it to these blocks."""
        start, stop = first * self.block_tokens, (first + len(blocks)) * self.block_tokens
        part = self.rows_LPRKSD[:, :, row, :, start:stop]
        if len(blocks) == 1:  # decoding fills one block at a time
            self.blocks_NLPKBD[blocks[0]] = part
        else:
            parts = part.view(*part.shape[:3], len(blocks), self.block_tokens, part.shape[-1])
            self.blocks_NLPKBD[self._index(blocks)] = parts.movedim(3, 0)
        if self.routes:
            part = self.row_routes_RSEC[row, start:stop]
            self.block_routes_NBEC[self._index(blocks)] = part.view(len(blocks), self.block_tokens, *part.shape[1:])

    def scrub(self, tokens: Sequence[int]) -> None:
        """Zeroes all that lies past the ends of the rows in use (so many tokens in each): it may hold NaN."""
        for row, end in enumerate(tokens):
            self.rows_LPRKSD[:, :, row, :, end:] = 0
        self.rows_LPRKSD[:, :, len(tokens) :] = 0

    def experts(self, request: Request, first: int, end: int) -> Experts:
        """Where these of a running request's tokens were routed."""
        experts: Experts = self.row_routes_RSEC[request.row, first:end].to("cpu", copy=True).numpy()
        return experts

    def _index(self, blocks: Sequence[int]) -> Tensor:
        return torch.tensor(blocks, device=self.blocks_NLPKBD.device)
