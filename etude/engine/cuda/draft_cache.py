"""Speculation over pages: the memory of `speculate.py` on a GPU, with the operations of the engine's own steps.

A request's last token and its drafts are so many queries of one token each, all with the request's table and each with
a length of its own; prompts are treated the same way. What attends is the kernel that decodes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from etude.core.settings import EngineSettings
from etude.engine.cuda.batch import put
from etude.engine.cuda.draft_graphs import DraftGraphs
from etude.engine.cuda.forward import Forward, Step
from etude.engine.cuda.ops import Ops, Pages, Places
from etude.engine.cuda.pages import PagedCache
from etude.engine.request import Request
from etude.model.decoder import Decoder


class PageMemory:
    def __init__(self, decoder: Decoder, settings: EngineSettings, ops: Ops | None = None) -> None:
        if ops is None:
            from etude.engine.cuda.fused import FusedOps  # needs Triton

            ops = FusedOps()
        weight = decoder.lm_head.weight
        self.device = weight.device
        self.cache = PagedCache(decoder.config, settings, weight.device, weight.dtype)
        longest = min(settings.max_length, decoder.config.max_position_embeddings)
        self.forward = Forward(decoder, self.cache, ops, longest)
        self.width = -(-settings.max_length // settings.block_tokens)  # blocks in the longest table
        self.nothing_S = torch.zeros(1, dtype=torch.int32, device=weight.device)
        self.graphs = DraftGraphs(self.forward, settings.speculate, settings.max_running, self.width)

    def mixed(self, requests: Sequence[Request], starts: Sequence[int], counts: Sequence[int]) -> PageView:
        tables = [request.table + [0] * (self.width - len(request.table)) for request in requests]
        positions = np.concatenate([start + np.arange(n) for start, n in zip(starts, counts, strict=True)])
        table_TM = put(np.repeat(tables, counts, 0), np.int32, self.device)
        return PageView(self, put(positions, np.int32, self.device), table_TM)


class PageView:
    def __init__(self, memory: PageMemory, positions_T: Tensor, table_TM: Tensor) -> None:
        """All of it int32, as every argument of the kernels."""
        size = memory.cache.block_tokens
        blocks_T = table_TM.gather(1, (positions_T // size).long()[:, None])[:, 0]
        self.forward = memory.forward
        self.places = Places(positions_T, blocks_T * size + positions_T % size, memory.forward.angles)
        self.pages = Pages(table_TM, positions_T + 1)
        self.nowhere_T, self.nothing_S = torch.full_like(positions_T, -1), memory.nothing_S

    def hidden(self, tokens_T: Tensor) -> Tensor:
        return self.forward.hidden(self._step(tokens_T), self.nothing_S)

    def ahead(self, depth: int, hidden_TD: Tensor, next_T: Tensor) -> Tensor:
        return self.forward.ahead(depth, hidden_TD, next_T[:, None].int(), self._step(next_T))

    def logits(self, hidden_TD: Tensor) -> Tensor:
        return self.forward.logits(hidden_TD)

    def _step(self, tokens_T: Tensor) -> Step:
        return Step(tokens_T.int(), self.nowhere_T, self.places, self.pages)
