"""Attention of one step: new tokens of many requests, each over its own row of the cache.

The `Attend` of model/attention.py for the engine. The tokens lie in the order of the rows. Neighbouring rows with
the same number of new tokens form a span and attend as one dense batch: all decoding rows are usually one span, the
members of a group that have just been admitted behind their common prefix another, a long prompt a third.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from etude.engine.cache import KeyValueCache
from etude.model.attention import Gather, PackedAttend

Look = Callable[[int, Tensor, Tensor, Tensor], Tensor]

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
    """Splits a batch into spans, so that the places read and what a span costs are together as few as they can be."""
    out: list[Span] = []
    token = first = 0
    while first < len(rows):
        row, count, end = rows[first], counts[first], first + 1
        while end < len(rows) and counts[end] == count and rows[end] == row + end - first:
            end += 1
        lengths = [start + count for start in starts[first:end]]
        edges = cuts(lengths, SPAN_COST // count)
        for low, high in pairwise(edges):
            out.append(Span(row + low, high - low, count, max(lengths[low:high]), token + low * count))
        token, first = token + (end - first) * count, end
    return out


def cuts(lengths: Sequence[int], cost: int) -> list[int]:
    """Where to cut neighbouring rows, if a part reads its longest row's places in each of its rows, and costs `cost`.

    Both ends are among them.
    """
    least, back = [0], [0]  # of the first so many rows: what they cost at least, and where the last part begins
    for end in range(1, len(lengths) + 1):
        longest, best, begin = 0, sys.maxsize, 0
        for at in range(end - 1, -1, -1):
            if lengths[at] > longest:
                longest = lengths[at]
            read = longest * (end - at)
            if read >= best:
                break  # a longer part only reads more
            if (total := least[at] + read) < best:
                best, begin = total, at
        least.append(best + cost)
        back.append(begin)
    edges = [len(lengths)]
    while edges[-1]:
        edges.append(back[edges[-1]])
    return edges[::-1]


class CachedAttend:
    """Writes the new keys and values into the rows, then lets each new token see its row up to itself.

    Of latent attention the rows hold one plane, the keys: their first dimensions are the values.

    Where each row has one new token it may `advance` to the next step, at most `ahead` times, and none of this is
    worked out again; `positions_T` moves on with it.
    """

    latent = True
    gather: Gather | None = None

    def __init__(
        self, cache: KeyValueCache, rows_T: Tensor, positions_T: Tensor, parts: Sequence[Span], ahead: int = 0
    ) -> None:
        self.cache, self.positions_T, self.ahead, self.steps = cache.rows_LPRKSD, positions_T, ahead, 0
        _, self.planes, _, self.heads, places, _ = self.cache.shape
        # a layer is a list of places, and this is where the tokens' heads go, plane by plane
        self.flat_LND = self.cache.flatten(1, 4).unbind()
        first_T1 = rows_T[:, None] * (self.heads * places) + positions_T[:, None]
        heads_K = torch.arange(self.heads, device=rows_T.device) * places
        plane = len(self.flat_LND[0]) // self.planes
        planes_P11 = torch.arange(self.planes, device=rows_T.device)[:, None, None] * plane
        self.places_N = (planes_P11 + (first_T1 + heads_K)).flatten()
        self.spans = parts
        self.masks = [self._mask(span) for span in parts]
        self._look()

    def advance(self) -> None:
        """A step later: behind the last token of every row there is one more."""
        assert self.steps < self.ahead
        self.steps += 1
        self.positions_T += 1
        self.places_N += 1
        self._look()

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        new = k_TKD if self.planes == 1 else torch.cat((k_TKD, v_TKD))
        self.flat_LND[layer].index_copy_(0, self.places_N, new.flatten(0, 1))
        if len(self.views) == 1:
            return self.views[0](layer, q_THD, k_TKD, v_TKD)
        return torch.cat(
            [
                view(layer, q_THD[span.tokens], k_TKD[span.tokens], v_TKD[span.tokens])
                for span, view in zip(self.spans, self.views, strict=True)
            ]
        )

    def _look(self) -> None:
        """What the tokens of each span see in this step."""
        self.views: list[Look] = []
        for span, mask in zip(self.spans, self.masks, strict=True):
            if mask is None:
                self.views.append(PackedAttend([span.count] * span.rows, self.cache.device))
                continue
            rows = self.cache[:, :, span.row : span.row + span.rows, :, : span.longest + self.steps]
            if span.count == 1:
                mask = mask[..., self.ahead - self.steps :]
                self.views.append(OneEach(rows.flatten(2, 3).unbind(), mask))
            else:
                self.views.append(SeveralEach(rows.unbind(), mask))

    def _mask(self, span: Span) -> Tensor | None:
        """0 where a token may look and minus infinity elsewhere; none if there is nothing but the new tokens.

        [rows, 1, count, places], or for one token each [rows * key heads, 1, places]. As such a row grows, so does the
        beginning that all may see: it has `ahead` places too many there.
        """
        # Prompts without a past need no mask: plain causal attention is the faster way on a CPU.
        if span.fresh and not self.ahead:
            return None
        positions = self.positions_T[span.tokens].view(span.rows, 1, span.count, 1)
        places = torch.arange(-self.ahead, span.longest, device=positions.device)
        shape = (span.rows, 1, span.count, len(places))
        mask = torch.zeros(shape, device=positions.device, dtype=self.cache.dtype)
        mask.masked_fill_(places > positions, float("-inf"))
        return mask.expand(-1, self.heads, -1, -1).flatten(0, 1) if span.count == 1 else mask


class OneEach:
    """One query a row. The query heads that share a key head stand as so many queries, so each key is read once.

    Written out, because `scaled_dot_product_attention` takes up to twice as long for so few queries on two cores.
    Shapes: M key heads of all rows, S places.
    """

    def __init__(self, layers_PMSD: Sequence[Tensor], mask_M1S: Tensor) -> None:
        self.layers_PMSD, self.mask_M1S = layers_PMSD, mask_M1S

    def __call__(self, layer: int, q_RHD: Tensor, k_RKD: Tensor, v_RKD: Tensor) -> Tensor:
        rows, heads, dims = q_RHD.shape
        k_MSD, v_MSD = planes(self.layers_PMSD[layer], v_RKD)
        q_MGD = q_RHD.reshape(len(k_MSD), -1, dims)
        scores_MGS = torch.baddbmm(self.mask_M1S, q_MGD, k_MSD.transpose(1, 2), alpha=dims**-0.5)
        return torch.bmm(torch.softmax(scores_MGS, -1), v_MSD).view(rows, heads, -1)


class SeveralEach:
    """Equally many queries of each row."""

    def __init__(self, layers_PRKSD: Sequence[Tensor], mask: Tensor) -> None:
        self.layers_PRKSD, self.mask = layers_PRKSD, mask

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        tokens, heads, dims = q_THD.shape
        k_RKSD, v_RKSD = planes(self.layers_PRKSD[layer], v_TKD)
        q_RHCD = q_THD.view(len(k_RKSD), -1, heads, dims).transpose(1, 2)
        shared = heads != k_RKSD.shape[1]
        out = F.scaled_dot_product_attention(q_RHCD, k_RKSD, v_RKSD, attn_mask=self.mask, enable_gqa=shared)
        return out.transpose(1, 2).reshape(tokens, heads, -1)


def planes(layer_PXSD: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values; the values of latents, of the size of these, are the first dimensions of the keys."""
    both = layer_PXSD.unbind()
    return (both[0], both[1]) if len(both) == 2 else (both[0], both[0][..., : like.shape[-1]])
