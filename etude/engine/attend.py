"""Attention of one step: new tokens of many requests, each over its own row of the cache.

The `Attend` of model/attention.py for the engine. The tokens lie in the order of the rows. Neighbouring rows with
the same number of new tokens form a span and attend as one dense batch: all decoding rows are usually one span, the
members of a group that have just been admitted behind their common prefix another, a long prompt a third.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from etude.engine.cache import KeyValueCache
from etude.model.attention import PackedAttend

# What opening one more span costs, in places of one row read by attention; it is where a longer padding starts to
# cost more than another call (about 30 us against 30 ns a place, two heads of 32 dimensions on one core).
SPAN_COST = 1024


@dataclass(frozen=True)
class Span:
    """Neighbouring rows with equally many new tokens."""

    row: int
    rows: int
    count: int  # new tokens of each row
    longest: int  # places of the longest row, its new tokens included
    token: int  # where its tokens begin in the flat batch

    @property
    def tokens(self) -> slice:
        return slice(self.token, self.token + self.rows * self.count)

    @property
    def fresh(self) -> bool:
        """Whether the rows hold nothing but these tokens."""
        return self.longest == self.count


def spans(rows: Sequence[int], starts: Sequence[int], counts: Sequence[int]) -> list[Span]:
    """Splits a batch into spans; a row much shorter than its neighbours is padded only if that is the cheaper way."""
    out: list[Span] = []
    token = 0
    for row, start, count in zip(rows, starts, counts, strict=True):
        span = Span(row, 1, count, start + count, token)
        if out and row == out[-1].row + out[-1].rows and count == out[-1].count:
            last = out[-1]
            longest = max(last.longest, span.longest)
            padding = longest * (last.rows + 1) - last.longest * last.rows - span.longest
            if padding * count <= SPAN_COST:
                span = Span(last.row, last.rows + 1, count, longest, last.token)
                out.pop()
        out.append(span)
        token += count
    return out


class CachedAttend:
    """Writes the new keys and values into the rows, then lets each new token see its row up to itself.

    Of latent attention the rows hold one plane, the keys: their first dimensions are the values.
    """

    latent = True

    def __init__(self, cache: KeyValueCache, rows_T: Tensor, positions_T: Tensor, parts: Sequence[Span]) -> None:
        self.cache = cache.rows_LPRKSD
        self.rows_T, self.positions_T = rows_T, positions_T
        self.parts = [(span, self._view(span)) for span in parts]

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        planes = self.cache[layer]
        keys_RKSD = planes[0]
        keys_RKSD[self.rows_T, :, self.positions_T] = k_TKD
        if len(planes) == 1:
            values_RKSD = keys_RKSD[..., : v_TKD.shape[-1]]
        else:
            values_RKSD = planes[1]
            values_RKSD[self.rows_T, :, self.positions_T] = v_TKD
        out = []
        for span, view in self.parts:
            q = q_THD[span.tokens]
            if isinstance(view, PackedAttend):
                out.append(view(layer, q, k_TKD[span.tokens], v_TKD[span.tokens]))
                continue
            rows = slice(span.row, span.row + span.rows)
            k, v = keys_RKSD[rows, :, : span.longest], values_RKSD[rows, :, : span.longest]
            out.append(_one_each(q, k, v, view) if span.count == 1 else _several_each(q, k, v, view))
        return out[0] if len(out) == 1 else torch.cat(out)

    def _view(self, span: Span) -> PackedAttend | Tensor:
        """What the new tokens see: as in training if there is nothing but them, else a mask over their rows.

        The mask [rows, 1, count, places] is 0 where a token may look and minus infinity elsewhere.
        """
        if span.fresh:
            return PackedAttend([span.count] * span.rows, self.cache.device)
        positions = self.positions_T[span.tokens].view(span.rows, 1, span.count, 1)
        places = torch.arange(span.longest, device=positions.device)
        mask = torch.zeros(span.rows, 1, span.count, span.longest, device=positions.device, dtype=self.cache.dtype)
        return mask.masked_fill_(places > positions, float("-inf"))


def _one_each(q_RHD: Tensor, k_RKSD: Tensor, v_RKSD: Tensor, mask: Tensor) -> Tensor:
    """One query a row. The query heads that share a key head stand as so many queries, so each key is read once.

    Written out, because `scaled_dot_product_attention` takes up to twice as long for so few queries on two cores.
    """
    rows, heads, dims = q_RHD.shape
    q, k, v = q_RHD.view(rows * k_RKSD.shape[1], -1, dims), k_RKSD.flatten(0, 1), v_RKSD.flatten(0, 1)
    mask = mask.expand(-1, k_RKSD.shape[1], -1, -1).flatten(0, 1)
    scores = torch.baddbmm(mask, q, k.transpose(1, 2), alpha=dims**-0.5)
    return torch.bmm(torch.softmax(scores, -1), v).view(rows, heads, -1)


def _several_each(q_THD: Tensor, k_RKSD: Tensor, v_RKSD: Tensor, mask: Tensor) -> Tensor:
    tokens, heads, dims = q_THD.shape
    q_RHCD = q_THD.view(k_RKSD.shape[0], -1, heads, dims).transpose(1, 2)
    shared = heads != k_RKSD.shape[1]
    out = F.scaled_dot_product_attention(q_RHCD, k_RKSD, v_RKSD, attn_mask=mask, enable_gqa=shared)
    return out.transpose(1, 2).reshape(tokens, heads, -1)
