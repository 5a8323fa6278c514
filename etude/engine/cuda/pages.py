"""The key-value cache as pages: blocks are all there is, and attention reads them through the requests' tables.

Nothing is copied when a request is admitted, moves to another row or fills a block: its table says where its tokens
lie. Who owns which block is decided in blocks.py. One block more than those belongs to nobody: what rows without a
request write goes there.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from etude.core.policy import Experts
from etude.core.settings import EngineSettings
from etude.engine.request import Request
from etude.model.config import ModelConfig


class PagedCache:
    """Shapes: L layers, P planes (keys and values, or one of latents), N blocks, K heads, B tokens in a block, D
    dimensions; E of the layers have experts, C of which each chose for a token; S = N * B slots, one for each token.
    """

    def __init__(
        self, config: ModelConfig, settings: EngineSettings, device: torch.device | str, dtype: torch.dtype
    ) -> None:
        self.block_tokens = settings.block_tokens
        blocks = settings.cache_tokens // self.block_tokens + 1
        self.nobody = (blocks - 1) * self.block_tokens  # a slot that no request has
        layers, (planes, heads, dims) = config.num_hidden_layers, config.cache_shape
        if settings.speculate:
            layers = config.cache_layers
        self.blocks_LPNKBD = torch.zeros(
            layers, planes, blocks, heads, self.block_tokens, dims, device=device, dtype=dtype
        )
        routed = (len(config.sparse_layers), config.num_experts_per_tok)
        self.routes = all(routed)
        if self.routes:
            slots = blocks * self.block_tokens
            self.routes_SEC = torch.zeros(slots, *routed, device=device, dtype=torch.int16)

    @property
    def bytes(self) -> int:
        return self.blocks_LPNKBD.nbytes + (self.routes_SEC.nbytes if self.routes else 0)

    def slots(self, request: Request, first: int, end: int) -> list[int]:
        """Where these of a running request's tokens lie."""
        size, table = self.block_tokens, request.table
        return [table[place // size] * size + place % size for place in range(first, end)]

    def experts(self, request: Request, first: int, end: int) -> Experts:
        """Where these of a running request's tokens were routed."""
        slots = torch.tensor(self.slots(request, first, end), device=self.routes_SEC.device, dtype=torch.int64)
        experts: Experts = self.routes_SEC[slots].cpu().numpy()
        return experts

    # what dense rows have to do, and pages need not

    def fill(self, row: int, blocks: Sequence[int]) -> None:
        pass

    def move(self, source: int, target: int, tokens: int) -> None:
        pass

    def store(self, row: int, first: int, blocks: Sequence[int]) -> None:
        pass

    def scrub(self, tokens: Sequence[int]) -> None:
        """Places past a request's end are never read, so what is left there does not matter."""
