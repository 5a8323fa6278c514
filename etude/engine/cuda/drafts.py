"""Speculation over pages: the memory of `speculate.py` on a GPU, with the operations of the engine's own steps.

A request's last token and its drafts are so many queries of one token each, all with the request's table and each with
a length of its own; prompts are treated the same way. What attends is the kernel that decodes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from etude.engine.cuda.batch import put
from etude.engine.cuda.forward import Forward, Step
from etude.engine.cuda.ops import Ops, Pages, Places
from etude.engine.cuda.pages import PagedCache
from etude.engine.request import Request
from etude.engine.steady import verify_logits
from etude.model.decoder import Decoder
from etude.settings import EngineSettings


class PageMemory:
    def __init__(self, decoder: Decoder, settings: EngineSettings, ops: Ops | None = None) -> None:
        if ops is None:
            from etude.engine.cuda.fused import FusedOps  # needs Triton

            ops = FusedOps()
        weight = decoder.lm_head.weight
        self.device = weight.device
        self.cache = PagedCache(decoder.config, settings, weight.device, weight.dtype)
        self.longest = min(settings.max_length, decoder.config.max_position_embeddings)
        self.forward = Forward(decoder, self.cache, ops, self.longest)
        self.width = -(-settings.max_length // settings.block_tokens)  # blocks in the longest table
        self.spare = [self.cache.nobody // settings.block_tokens] * self.width
        self.nothing_S = torch.zeros(1, dtype=torch.int32, device=weight.device)

    def where(self, request: Request) -> list[int]:
        return request.table + [0] * (self.width - len(request.table))

    def view(self, where_RX: Tensor, positions_RJ: Tensor, places: int) -> PageView:
        """`places` is of no interest: a table says what is there."""
        table_RJM = where_RX.int()[:, None].expand(-1, positions_RJ.shape[1], -1)
        return PageView(self, positions_RJ.flatten().int(), table_RJM.flatten(0, 1).contiguous())

    def mixed(self, requests: Sequence[Request], starts: Sequence[int], counts: Sequence[int]) -> PageView:
        table = np.repeat([self.where(request) for request in requests], counts, 0)
        positions = np.concatenate([start + np.arange(n) for start, n in zip(starts, counts, strict=True)])
        return PageView(self, put(positions, np.int32, self.device), put(table, np.int32, self.device))


class PageView:
    def __init__(self, memory: PageMemory, positions_T: Tensor, table_TM: Tensor) -> None:
        """All of it int32, as everything that kernels are told."""
        size = memory.cache.block_tokens
        blocks_T = table_TM.gather(1, (positions_T // size).long()[:, None])[:, 0]
        self.forward = memory.forward
        self.places = Places(positions_T, blocks_T * size + positions_T % size, memory.forward.angles)
        self.pages = Pages(table_TM, positions_T + 1)
        self.nowhere_T, self.nothing_S = torch.full_like(positions_T, -1), memory.nothing_S

    def hidden(self, tokens_T: Tensor) -> Tensor:
        return self.forward.hidden(self._step(tokens_T), self.nothing_S)

    def ahead(self, depth: int, hidden_TD: Tensor, next_T: Tensor) -> Tensor:
        return self.forward.ahead(depth, hidden_TD, next_T, self._step(next_T))

    def logits(self, hidden_TD: Tensor) -> Tensor:
        return self.forward.logits(hidden_TD)

    def verify(self, *facts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if not facts[0].is_cuda:
            return verify_logits(*facts)
        from etude.engine.cuda import verify_kernel  # needs Triton

        return verify_kernel.verify_logits(*facts)

    def draw(self, logits_RV: Tensor, temperature_R1: Tensor, uniform_R1: Tensor) -> Tensor:
        tokens_R = torch.empty(len(logits_RV), dtype=torch.int32, device=logits_RV.device)
        logprobs_R = torch.empty(len(logits_RV), dtype=torch.float32, device=logits_RV.device)
        temperature_R, uniform_R = temperature_R1[:, 0].contiguous(), uniform_R1[:, 0].contiguous()
        self.forward.ops.pick(logits_RV, temperature_R, uniform_R, tokens_R, logprobs_R)
        return tokens_R.long()[:, None]

    def _step(self, tokens_T: Tensor) -> Step:
        return Step(tokens_T.int(), self.nowhere_T, self.places, self.pages)
