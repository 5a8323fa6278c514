"""Grouped-query attention over token-flat activations, and the seam through which it sees other tokens.

The module projects, normalises and rotates. Which earlier tokens a token may see, and where their keys and
values lie, is the business of an `Attend`: `PackedAttend` here for whole sequences side by side (training,
scoring), the engine's own for a cache. Latent attention (mla.py) is another module that calls the same seam.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from etude.model.config import ModelConfig
from etude.model.cpu_causal_attention import BLOCK, SequenceGroup, causal_attention
from etude.model.low_precision.products import Linear, side_by_side
from etude.model.norm import RMSNorm
from etude.model.rope import rotate

LONG = 2048  # tokens; from this mean length on, sequences are padded to one length on a GPU

# in the order in which they are wanted; cuDNN's is made for Hopper
KERNELS = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


# Of the tokens of this forward, what keys and values are made of -> the same of all tokens that they may see.
Gather = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class Attend(Protocol):
    """T new tokens of one forward: queries in, attended values out. K is the number of key-value heads."""

    latent: bool  # whether latent attention should hand over latents, which is what a cache keeps of it
    gather: Gather | None  # where tokens of one sequence are in other processes too: keys and values are of all of them

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor: ...


class Share(Protocol):
    """The tokens of a flat batch that this process computes, where several compute its sequences together."""

    own_N: Tensor  # their places in the flat batch, in order
    leads: bool  # whether it is the first of these processes: it reports what all of them find alike
    attend: Attend

    def whole(self, x_ND: Tensor) -> Tensor:
        """Rows of this process's tokens -> of all tokens, in the order of the flat batch; without a gradient."""

    def total(self, x: Tensor) -> Tensor:
        """The sum over the processes; without a gradient."""


class Attention(nn.Module):
    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.heads, self.kv_heads, self.head_dim = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        width, bias = config.hidden_size, config.attention_bias
        self.q_proj = Linear(width, self.heads * self.head_dim, bias=bias)
        self.k_proj = Linear(width, self.kv_heads * self.head_dim, bias=bias)
        self.v_proj = Linear(width, self.kv_heads * self.head_dim, bias=bias)
        self.o_proj = Linear(self.heads * self.head_dim, width, bias=config.output_bias)
        if config.qk_norm:
            self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps)
            self.k_norm = RMSNorm(self.head_dim, config.rms_norm_eps)
        self.qk_norm = config.qk_norm

    def forward(self, x_TD: Tensor, angles: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        return self.output(attend(self.layer, *self.project(x_TD, angles, getattr(attend, "gather", None))))

    def project(
        self, x_TD: Tensor, angles: tuple[Tensor, Tensor], gather: Gather | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values."""
        parts = side_by_side(x_TD, (self.q_proj, self.k_proj, self.v_proj))
        q_THD, k_TKD, v_TKD = (x.view(len(x), x.shape[1] // self.head_dim, self.head_dim) for x in parts)
        if self.qk_norm:
            q_THD, k_TKD = self.q_norm(q_THD), self.k_norm(k_TKD)
        q_THD, k_TKD = rotate(q_THD, angles), rotate(k_TKD, angles)
        return (q_THD, k_TKD, v_TKD) if gather is None else (q_THD, *gather(k_TKD, v_TKD))

    def output(self, out_THD: Tensor) -> Tensor:
        out: Tensor = self.o_proj(out_THD.reshape(out_THD.shape[0], self.heads * self.head_dim))
        return out


class PackedAttend:
    """Causal attention inside each of several sequences that lie end to end in one flat batch.

    A mask over the whole pack is 10 to 25 times slower on a CPU, so sequences are grouped by length and each
    group attends as one dense batch. Padding is at the end, where a causal query never looks, so no mask is
    needed at all. A pack of equally long sequences is a view: nothing is copied.

    On a GPU short sequences of different lengths go to a kernel that takes boundaries, without padding. Long ones are
    grouped there too: the kernel for dense batches is much faster, and that is where the time goes.
    """

    latent = False
    gather: Gather | None = None

    def __init__(self, lengths: Sequence[int], device: torch.device | str = "cpu") -> None:
        self.lengths, self.groups = list(lengths), list[SequenceGroup]()
        self.ends: Tensor | None = None  # where sequences end, for the kernel that takes boundaries
        self.buckets: dict[int, list[int]] = defaultdict(list)  # numbers of sequences, by the length they are padded to
        for number, length in enumerate(lengths):
            self.buckets[_bucket(length)].append(number)
        if len(set(lengths)) == 1:
            self.groups.append(SequenceGroup(len(lengths)))
        elif torch.device(device).type == "cpu":
            self.groups += [SequenceGroup(len(members), self._rows(members)) for members in self.buckets.values()]
        elif sum(lengths) / len(lengths) < LONG:
            self.ends = _there(torch.tensor([0, *accumulate(lengths)], dtype=torch.int32), device)

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        if q_THD.device.type == "cpu":
            return causal_attention(q_THD, k_TKD, v_TKD, self.groups)
        # Keys of latent attention are wider than its values, which not every kernel takes, backwards least of all.
        dims = v_TKD.shape[2]
        return self._on_gpu(q_THD, k_TKD, _as_wide(v_TKD, q_THD.shape[2]))[..., :dims]

    def _on_gpu(self, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        if self.groups:
            return _causal(q_THD, k_TKD, v_TKD, len(self.lengths)).flatten(0, 1)
        # What the flash kernel takes.
        if self.ends is not None and q_THD.dtype == torch.bfloat16 and q_THD.shape[2] <= 256:
            return _bounded(q_THD, k_TKD, v_TKD, self.ends, max(self.lengths))
        return self.padded(q_THD, k_TKD, v_TKD)

    def padded(self, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        """Sequences in dense batches, padded to the lengths of their buckets: few shapes, each prepared for once."""
        parts = [torch.split(x, self.lengths) for x in (q_THD, k_TKD, v_TKD)]
        outs: dict[int, Tensor] = {}
        for size, members in self.buckets.items():
            spare = [(0, 0, 0, 0, 0, size - self.lengths[m]) for m in members]
            q, k, v = (torch.cat([F.pad(x[m], s) for m, s in zip(members, spare, strict=True)]) for x in parts)
            for m, out_THD in zip(members, _causal(q, k, v, len(members)), strict=True):
                outs[m] = out_THD[: self.lengths[m]]
        return torch.cat([outs[m] for m in range(len(self.lengths))])

    def _rows(self, members: Sequence[int]) -> Tensor:
        """Where the tokens of these sequences lie, one sequence a row; the place after the last token is padding."""
        starts, longest = [0, *accumulate(self.lengths)], max(self.lengths[m] for m in members)
        rows = torch.full((len(members), longest), starts[-1], dtype=torch.int64)
        for i, m in enumerate(members):
            rows[i, : self.lengths[m]] = torch.arange(starts[m], starts[m + 1])
        return rows.flatten()


class SharingAttend:
    """Causal attention on a CPU where sequences of a flat batch begin alike.

    `places` are where the tokens of each sequence lie; the first `common` of them are an earlier sequence's, too. The
    projections of a token are computed once, and most of the work is in those; keys and values are copied for everybody
    who sees them.
    """

    latent = False
    gather: Gather | None = None

    def __init__(self, places: Sequence[Tensor], common: Sequence[int], total: int) -> None:
        self.groups = list[SequenceGroup]()
        buckets: dict[tuple[int, int], list[int]] = defaultdict(list)
        for number, (places_T, alike) in enumerate(zip(places, common, strict=True)):
            if alike < len(places_T):
                buckets[_bucket(len(places_T)), alike // BLOCK].append(number)
        for members in buckets.values():
            rows = torch.full((len(members), max(len(places[m]) for m in members)), total, dtype=torch.int64)
            own = rows.clone()
            for i, m in enumerate(members):
                rows[i, : len(places[m])] = places[m]
                own[i, common[m] : len(places[m])] = places[m][common[m] :]
            self.groups.append(
                SequenceGroup(len(members), rows.flatten(), own.flatten(), min(common[m] for m in members))
            )

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        return causal_attention(q_THD, k_TKD, v_TKD, self.groups)


@dataclass(frozen=True)
class Prefixes:
    """The beginnings of sequences: places in another flat batch whose keys and values were kept, layer by layer."""

    kept: Mapping[int, tuple[Tensor, Tensor]]
    places: Sequence[tuple[int, int]]  # where each begins, and how many tokens it has


class KeepingAttend:
    """Attends as another one does, and keeps keys and values for sequences that begin alike."""

    latent = False

    def __init__(self, attend: Attend) -> None:
        self.attend, self.gather = attend, attend.gather
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        self.kept[layer] = k_TKD.detach(), v_TKD.detach()
        return self.attend(layer, q_THD, k_TKD, v_TKD)


class ContinuingAttend:
    """Causal attention of sequences, end to end, whose beginnings are elsewhere: they see those and themselves.

    All of them attend in a few calls, however many they are: each call costs a GPU more than a short sequence does.
    """

    latent = False
    gather: Gather | None = None

    def __init__(self, lengths: Sequence[int], behind: Prefixes, device: torch.device | str = "cpu") -> None:
        self.behind, self.device, self.lengths = behind, device, list(lengths)
        self.seen = [before + own for own, (_, before) in zip(lengths, behind.places, strict=True)]
        self.begins = [0, *accumulate(lengths)]
        first = next(iter(behind.kept.values()))[0].shape[0]  # of our own tokens, behind all that was kept
        # Of each sequence, where all that it may see lies.
        self.keys = [
            torch.cat((torch.arange(start, start + before), torch.arange(first + begin, first + begin + own)))
            for own, begin, (start, before) in zip(lengths, self.begins, behind.places, strict=False)
        ]

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        keys, values = (torch.cat(pair) for pair in zip(self.behind.kept[layer], (k_TKD, v_TKD), strict=True))
        dims, values = v_TKD.shape[2], _as_wide(values, q_THD.shape[2])
        if q_THD.is_cuda and q_THD.dtype == torch.bfloat16 and q_THD.shape[2] <= 256:  # what the flash kernel takes
            rows_U, ends = self._bounds
            longest = max(self.lengths), max(self.seen)
            flash = torch.ops.aten._flash_attention_forward
            # Of fewer queries than keys it takes the queries for the last ones.
            out: Tensor = flash(q_THD, keys[rows_U], values[rows_U], *ends, *longest, 0.0, True, False)[0]
            return out[..., :dims]
        groups, places_T = self._groups
        outs = [
            _grouped(q_THD[queries], keys[rows], values[rows], sees).flatten(0, 1) for queries, rows, sees in groups
        ]
        return torch.cat(outs)[places_T][..., :dims]

    @cached_property
    def _bounds(self) -> tuple[Tensor, list[Tensor]]:
        """All that the sequences may see, end to end, and where sequences end: their queries and their keys."""
        ends = [torch.tensor([0, *accumulate(counts)], dtype=torch.int32) for counts in (self.lengths, self.seen)]
        return _there(torch.cat(self.keys), self.device), [_there(x, self.device) for x in ends]

    @cached_property
    def _groups(self) -> tuple[list[tuple[Tensor, Tensor, Tensor]], Tensor]:
        """Of like sequences their queries, their keys and who sees what; and where in that our tokens are."""
        like: dict[tuple[int, int], list[int]] = defaultdict(list)
        for number, own in enumerate(self.lengths):
            like[own.bit_length(), self.seen[number].bit_length()].append(number)
        groups, places, count = [], torch.empty(self.begins[-1], dtype=torch.int64), 0
        for members in like.values():
            most, all_keys = max(self.lengths[m] for m in members), max(self.seen[m] for m in members)
            # A row that is filled up at its end repeats a place; only queries that are no tokens see the repeated keys.
            queries = torch.stack([self.begins[m] + torch.arange(most).clamp(max=self.lengths[m] - 1) for m in members])
            rows = torch.stack([self.keys[m][torch.arange(all_keys).clamp(max=self.seen[m] - 1)] for m in members])
            before = torch.tensor([self.seen[m] - self.lengths[m] for m in members])
            sees = torch.arange(all_keys) <= (before[:, None] + torch.arange(most))[..., None]
            for row, m in enumerate(members):
                at = count + row * most
                places[self.begins[m] : self.begins[m + 1]] = torch.arange(at, at + self.lengths[m])
            count += queries.numel()
            groups.append((_there(queries, self.device), _there(rows, self.device), _there(sees[:, None], self.device)))
        return groups, _there(places, self.device)


def _grouped(q_NTHD: Tensor, k_NUKD: Tensor, v_NUKD: Tensor, seen_N1TU: Tensor) -> Tensor:
    """Attention of N equally long sequences; the query heads that share a key head form one matrix."""
    count, length, heads, dims = q_NTHD.shape
    share = heads // k_NUKD.shape[2]
    q = q_NTHD.view(count, length, -1, share, dims).permute(0, 2, 3, 1, 4).reshape(count, -1, share * length, dims)
    k, v = k_NUKD.transpose(1, 2), v_NUKD.transpose(1, 2)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen_N1TU.repeat(1, 1, share, 1))
    return out.view(count, -1, share, length, dims).permute(0, 3, 1, 2, 4).reshape(count, length, heads, dims)


def _there(x: Tensor, device: torch.device | str) -> Tensor:
    """On the device, without waiting for what it still has to do."""
    return x.pin_memory().to(device, non_blocking=True) if torch.device(device).type == "cuda" else x


def masked_attention(q_THD: Tensor, k_UKD: Tensor, v_UKD: Tensor, seen_TU: Tensor) -> Tensor:
    """Attention of T tokens to those of U others that they see."""
    share = q_THD.shape[1] // k_UKD.shape[1]
    if share > 1:
        k_UKD, v_UKD = k_UKD.repeat_interleave(share, 1), v_UKD.repeat_interleave(share, 1)
    dims = v_UKD.shape[2]
    q, k, v = (x.transpose(0, 1)[None] for x in (q_THD, k_UKD, _as_wide(v_UKD, q_THD.shape[2])))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen_TU)[0].transpose(0, 1)[..., :dims]


def _as_wide(v_TKD: Tensor, width: int) -> Tensor:
    """Values with zeros behind them, as wide as keys."""
    return F.pad(v_TKD, (0, width - v_TKD.shape[2])) if v_TKD.shape[2] < width else v_TKD


def _bucket(length: int) -> int:
    """Lengths that attend together: steps of an eighth of the next power of two, so padding stays under an eighth."""
    step = max(8, 1 << max(0, length.bit_length() - 3))
    return -(-length // step) * step


def _causal(q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, count: int) -> Tensor:
    """`count` sequences of one length, end to end -> the same, attended."""
    q, k, v = (x.view(count, -1, *x.shape[1:]).transpose(1, 2) for x in (q_THD, k_TKD, v_TKD))
    with sdpa_kernel(KERNELS, set_priority=True):
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
    return out.transpose(1, 2)


def _bounded(q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, ends: Tensor, longest: int) -> Tensor:
    """Sequences of any lengths, end to end, by the flash kernel that takes boundaries. Heads may share keys."""
    flash = torch.ops.aten._flash_attention_forward
    out: Tensor = flash(q_THD, k_TKD, v_TKD, ends, ends, longest, longest, 0.0, True, False)[0]
    return out
