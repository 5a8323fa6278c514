"""Context parallelism: several ranks compute the same sequences together, each some of their tokens.

Each sequence is cut into 2 C pieces for C ranks, and rank r takes the pieces r and 2 C - 1 - r (zig-zag): an early one,
whose tokens see little, and a late one, whose tokens see much, so all ranks have about the same to do. Everything but
attention acts on tokens by themselves. For attention, what keys and values are made of is gathered from all ranks:
latents where there are latents, else keys and values; its gradient is added up and goes back to where it came from.

Applied from outside: `split_context` gives a decoder the callable that it asks for its share of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

from etude.model.attention import Attend, Gather, masked_attention
from etude.model.decoder import Decoder

Ints = npt.NDArray[np.int64]


def split_context(decoder: Decoder, group: dist.ProcessGroup) -> None:
    """Lets the ranks of `group` compute every packed batch of this decoder together; all must be given the same."""
    rank, ranks = dist.get_rank(group), group.size()

    def share(lengths: Sequence[int], device: torch.device) -> ContextShare:
        return ContextShare(lengths, rank, ranks, group, device)

    # a function, which a copy of the decoder shares: groups cannot be copied
    decoder.share = share


def pieces(length: int, rank: int, ranks: int) -> list[tuple[int, int]]:
    """Where the two pieces of a sequence begin and end that a rank computes; the middle rank's two are one."""
    cuts = [length * i // (2 * ranks) for i in range(2 * ranks + 1)]
    (a, b), (c, d) = ((cuts[i], cuts[i + 1]) for i in (rank, 2 * ranks - 1 - rank))
    return [(a, d)] if b == c else [(a, b), (c, d)]


def places(lengths: Sequence[int], rank: int, ranks: int) -> Ints:
    """Where the tokens of a rank lie in the flat batch, in order."""
    starts = [0, *accumulate(lengths)]
    parts = [
        np.arange(starts[i] + low, starts[i] + high)
        for i, length in enumerate(lengths)
        for low, high in pieces(length, rank, ranks)
    ]
    return np.concatenate(parts).astype(np.int64)


class ContextShare:
    """One rank's tokens of a flat batch, and how it gets what others have of theirs."""

    def __init__(
        self, lengths: Sequence[int], rank: int, ranks: int, group: dist.ProcessGroup, device: torch.device
    ) -> None:
        self.group, self.leads = group, rank == 0
        every = [places(lengths, r, ranks) for r in range(ranks)]
        most = max(map(len, every))  # all ranks send as many rows: the last ones of some are padding
        order = np.empty(sum(lengths), np.int64)
        for r, rows in enumerate(every):
            order[rows] = r * most + np.arange(len(rows))
        self.own_N = torch.from_numpy(every[rank]).to(device)
        self.by_rank_T, self.counts = torch.from_numpy(np.concatenate(every)).to(device), [len(r) for r in every]
        self.ranks, self.most, self.order_T = ranks, most, torch.from_numpy(order).to(device)
        self.attend: Attend = ContextAttend(lengths, rank, ranks, device, self.gather)

    def gather(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """Two facts of each token of this rank -> of all tokens, in one message; with a gradient."""
        both = torch.cat((a.flatten(1), b.flatten(1)), -1)
        whole: Tensor = _Gather.apply(both, self)  # type: ignore[no-untyped-call]
        first, second = torch.split(whole, [_width(a), _width(b)], -1)
        return first.reshape(-1, *a.shape[1:]), second.reshape(-1, *b.shape[1:])

    @torch.no_grad()
    def whole(self, x_ND: Tensor) -> Tensor:
        return self.gathered(x_ND)

    @torch.no_grad()
    def total(self, x: Tensor) -> Tensor:
        summed = x.clone()
        dist.all_reduce(summed, group=self.group)
        return summed

    def gathered(self, x_ND: Tensor) -> Tensor:
        padded = x_ND.new_zeros(self.most, x_ND.shape[1])
        padded[: len(x_ND)] = x_ND
        rows = x_ND.new_empty(self.ranks * self.most, x_ND.shape[1])
        dist.all_gather(list(rows.chunk(self.ranks)), padded, group=self.group)
        return rows[self.order_T]

    def scattered(self, g_TD: Tensor) -> Tensor:
        """The way back: what all ranks found of each token, added up on the rank of the token."""
        own, ranks = len(self.own_N), self.ranks
        parts = g_TD.new_empty(ranks * own, g_TD.shape[1])
        # As many bytes as a reduce-scatter, no padding, and one order of the sum on every backend.
        dist.all_to_all_single(parts, g_TD[self.by_rank_T], [own] * ranks, self.counts, group=self.group)
        return parts.view(ranks, own, g_TD.shape[1]).sum(0)


class ContextAttend:
    """Causal attention of one rank's tokens to all earlier ones of their sequences. Communicates nothing itself."""

    latent = False

    def __init__(self, lengths: Sequence[int], rank: int, ranks: int, device: torch.device, gather: Gather) -> None:
        self.gather: Gather | None = gather
        starts, own = [0, *accumulate(lengths)], 0
        self.parts: list[tuple[slice, slice, Tensor]] = []  # queries here, keys in the flat batch, who sees whom
        for i, length in enumerate(lengths):
            for low, high in pieces(length, rank, ranks):
                if high > low:
                    queries, keys = slice(own, own + high - low), slice(starts[i], starts[i] + high)
                    self.parts.append((queries, keys, _causal(high - low, high, device)))
                    own = queries.stop

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        """Keys and values are of all tokens of the flat batch, more than there are queries."""
        if not self.parts:  # no token here: still an attention, whose gradient other ranks wait for
            return torch.einsum("nhd,tkd,tke->nhe", q_THD, k_TKD, v_TKD)
        return torch.cat([masked_attention(q_THD[q], k_TKD[k], v_TKD[k], seen) for q, k, seen in self.parts])


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, share: ContextShare) -> Tensor:
        ctx.share = share
        return share.gathered(x_ND)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.share.scattered(gradients[0]), None


def _causal(tokens: int, seen: int, device: torch.device) -> Tensor:
    """The last `tokens` of `seen` tokens: a mask, or on a GPU only its name, which kernels know."""
    if device.type == "cpu":
        return torch.ones(tokens, seen, dtype=torch.bool).tril(seen - tokens)
    named: Tensor = causal_lower_right(tokens, seen)
    return named


def _width(x: Tensor) -> int:
    """Numbers of one row."""
    return int(np.prod(x.shape[1:]))
