"""Causal attention of whole sequences on a CPU, forward and backward, by blocks of queries.

torch's own CPU kernel takes keys 512 at a time, so of shorter sequences it computes the whole square, half of
which is masked. Here a block of queries meets only the keys up to its end, the query heads that share a key
head form one matrix, and probabilities are kept for the backward pass while they are small. Forward and
backward of 8 x 512 tokens with 4 heads of 32, one thread: 57 -> 30 ms. Other devices have better kernels.

Shapes: N sequences of L tokens, K key heads with G query heads each, D dimensions of a head; M = N * K matrices,
R = G * (queries of a block) rows of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 64  # queries: fewer waste less of the square, more make better matrix products
KEEP = 32 << 20  # probabilities of a batch that are kept for the backward pass; more are computed a second time


@dataclass(frozen=True)
class SequenceGroup:
    """Sequences that attend together."""

    count: int
    rows: Tensor | None = None  # where in the flat batch their tokens lie; None: in order
    own: Tensor | None = None  # the same of tokens that are no other sequence's, where some begin alike
    first: int = 0  # tokens that all of them have in common with others


def causal_attention(q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, groups: Sequence[SequenceGroup]) -> Tensor:
    """Each token attends to itself and to the earlier ones of its sequence.

    The groups cover every token once, as one sequence's own. The sequences of a group have one length: a shorter one is
    filled up at its end, where no query of its own looks, with T, the place after the last token. T also stands for
    tokens that are not a sequence's own: they are seen, but what they see is another's to compute.
    """
    out_THD: Tensor = _Causal.apply(q_THD, k_TKD, v_TKD, groups)  # type: ignore[no-untyped-call]
    return out_THD


class _Causal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, groups: Sequence[SequenceGroup]) -> Tensor:
        trained, batches, outs = any(ctx.needs_input_grad), [_Batch(group) for group in groups], []
        q_parts, k_parts, v_parts = (_split(x, [group.rows for group in groups]) for x in (q_THD, k_TKD, v_TKD))
        for batch, q, k, v in zip(batches, q_parts, k_parts, v_parts, strict=True):
            outs.append(batch.forward(q, k, v, trained))
        if trained:
            ctx.groups, ctx.batches = groups, batches
        return _join(outs, _own(groups), q_THD.shape[0])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        groups, total = ctx.groups, gradients[0].shape[0]
        parts = zip(ctx.batches, _split(gradients[0], _own(groups)), strict=True)
        dq, dk, dv = zip(*(batch.backward(part) for batch, part in parts), strict=True)
        join = _join if groups[0].own is None else _add
        every = [group.rows for group in groups]
        return _join(dq, _own(groups), total), join(dk, every, total), join(dv, every, total), None


Rows = Sequence[Tensor | None]


def _own(groups: Sequence[SequenceGroup]) -> Rows:
    return [group.rows if group.own is None else group.own for group in groups]


def _split(x_THD: Tensor, rows: Rows) -> list[Tensor]:
    if rows[0] is None:
        return [x_THD]
    padded = F.pad(x_THD, (0, 0, 0, 0, 0, 1))
    return [padded[places] for places in rows]


def _join(parts: Sequence[Tensor], rows: Rows, total: int) -> Tensor:
    if rows[0] is None:
        return parts[0]
    out = parts[0].new_empty(total + 1, *parts[0].shape[1:])
    for part, places in zip(parts, rows, strict=True):
        out[places] = part
    return out[:total]


def _add(parts: Sequence[Tensor], rows: Rows, total: int) -> Tensor:
    """As `_join`, where several sequences have the same tokens."""
    out = parts[0].new_zeros(total + 1, *parts[0].shape[1:])
    for part, places in zip(parts, rows, strict=True):
        assert places is not None
        out.index_add_(0, places, part)
    return out[:total]


class _Batch:
    """N sequences of one length: forward, and what it leaves for backward."""

    def __init__(self, group: SequenceGroup) -> None:
        self.count, self.first = group.count, group.first // BLOCK * BLOCK
        self.kept: list[tuple[Tensor, Tensor | None]] = []  # of each block, its queries and probabilities

    def forward(self, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, trained: bool) -> Tensor:
        self.scale, self.key_heads = q_THD.shape[2] ** -0.5, k_TKD.shape[1]
        self.k_MLD, self.v_MLD = self._matrices(k_TKD) * self.scale, self._matrices(v_TKD)
        self.out_THD = q_THD.new_empty(*q_THD.shape[:2], v_TKD.shape[2])
        small = q_THD.shape[0] * q_THD.shape[1] * self.k_MLD.shape[1] <= KEEP
        for block in self._blocks():
            q_MRD = self._rows(q_THD, block)
            p_MRL = self._probabilities(q_MRD, block)
            self._set_rows(self.out_THD, block, torch.bmm(p_MRL, self.v_MLD[:, : block.stop]))
            if trained:
                self.kept.append((q_MRD, p_MRL if small else None))
        return self.out_THD.detach()  # the output that autograd knows must not be ours, or each would keep the other

    def backward(self, g_THD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        dq_THD = g_THD.new_empty(*g_THD.shape[:2], self.k_MLD.shape[2])
        # transposed: a product with a thin left factor is faster than one with a thin right factor
        dk_MDL, dv_MDL = (x_MLD.new_zeros(x_MLD.mT.shape) for x_MLD in (self.k_MLD, self.v_MLD))
        # What softmax's gradient subtracts in each row, from outputs instead of probabilities: one number a query.
        along_TH1 = (g_THD * self.out_THD).sum(-1, keepdim=True)
        for block, (q_MRD, kept) in zip(self._blocks(), self.kept, strict=True):
            p_MRL = self._probabilities(q_MRD, block) if kept is None else kept
            g_MRD, keys = self._rows(g_THD, block), slice(block.stop)
            dv_MDL[:, :, keys] += torch.bmm(g_MRD.mT, p_MRL)
            slope_MRL = torch.bmm(g_MRD, self.v_MLD[:, keys].mT)
            slope_MRL.sub_(self._rows(along_TH1, block)).mul_(p_MRL)
            dk_MDL[:, :, keys] += torch.bmm(q_MRD.mT, slope_MRL)
            self._set_rows(dq_THD, block, torch.bmm(slope_MRL, self.k_MLD[:, keys]))
        return dq_THD, self._tokens(dk_MDL.mul_(self.scale)), self._tokens(dv_MDL)

    def _probabilities(self, q_MRD: Tensor, block: slice) -> Tensor:
        scores_MRL = torch.bmm(q_MRD, self.k_MLD[:, : block.stop].mT)
        size = block.stop - block.start
        later = scores_MRL.new_full((size, size), -torch.inf).triu_(1)
        scores_MRL.view(scores_MRL.shape[0], -1, size, block.stop)[..., block.start :].add_(later)
        return torch.softmax(scores_MRL, -1, out=scores_MRL)

    def _blocks(self) -> list[slice]:
        length = self.k_MLD.shape[1]
        return [slice(low, min(low + BLOCK, length)) for low in range(self.first, length, BLOCK)]

    def _matrices(self, x_TKD: Tensor) -> Tensor:
        x_NLKD = x_TKD.view(self.count, -1, *x_TKD.shape[1:])
        return x_NLKD.transpose(1, 2).reshape(self.count * self.key_heads, -1, x_TKD.shape[2])

    def _tokens(self, x_MDL: Tensor) -> Tensor:
        x_NKDL = x_MDL.view(self.count, self.key_heads, *x_MDL.shape[1:])
        return x_NKDL.permute(0, 3, 1, 2).reshape(-1, self.key_heads, x_MDL.shape[1])

    def _rows(self, x_THD: Tensor, block: slice) -> Tensor:
        """The block's tokens, with the G heads of one key head below one another."""
        x_NLKGD = x_THD.view(self.count, -1, self.key_heads, x_THD.shape[1] // self.key_heads, x_THD.shape[2])
        return x_NLKGD[:, block].permute(0, 2, 3, 1, 4).reshape(self.count * self.key_heads, -1, x_THD.shape[2])

    def _set_rows(self, x_THD: Tensor, block: slice, rows_MRD: Tensor) -> None:
        x_NLKGD = x_THD.view(self.count, -1, self.key_heads, x_THD.shape[1] // self.key_heads, x_THD.shape[2])
        rows_NKGLD = rows_MRD.view(self.count, self.key_heads, x_NLKGD.shape[3], -1, x_THD.shape[2])
        x_NLKGD[:, block] = rows_NKGLD.permute(0, 3, 1, 2, 4)
