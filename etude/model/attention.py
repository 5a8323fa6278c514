"""Grouped-query attention over token-flat activations, and the seam through which it sees other tokens.

The module projects, normalises and rotates. Which earlier tokens a token may see, and where their keys and
values lie, is the business of an `Attend`: `PackedAttend` here for whole sequences side by side (training,
scoring), the engine's own for a cache. Latent attention (mla.py) is another module that calls the same seam.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from etude.model.causal import Group, causal_attention
from etude.model.config import ModelConfig
from etude.model.norm import RMSNorm
from etude.model.rope import rotate


class Attend(Protocol):
    """T new tokens of one forward: queries in, attended values out. K is the number of key-value heads."""

    latent: bool  # whether latent attention should hand over latents, which is what a cache keeps of it

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor: ...


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
        self.q_proj = nn.Linear(width, self.heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(width, self.kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(width, self.kv_heads * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(self.heads * self.head_dim, width, bias=config.output_bias)
        if config.qk_norm:
            self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps)
            self.k_norm = RMSNorm(self.head_dim, config.rms_norm_eps)
        self.qk_norm = config.qk_norm

    def forward(self, x_TD: Tensor, angles: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        length = x_TD.shape[0]
        q_THD = self.q_proj(x_TD).view(length, self.heads, self.head_dim)
        k_TKD = self.k_proj(x_TD).view(length, self.kv_heads, self.head_dim)
        v_TKD = self.v_proj(x_TD).view(length, self.kv_heads, self.head_dim)
        if self.qk_norm:
            q_THD, k_TKD = self.q_norm(q_THD), self.k_norm(k_TKD)
        out_THD = attend(self.layer, rotate(q_THD, angles), rotate(k_TKD, angles), v_TKD)
        out: Tensor = self.o_proj(out_THD.reshape(length, self.heads * self.head_dim))
        return out


class PackedAttend:
    """Causal attention inside each of several sequences that lie end to end in one flat batch.

    A mask over the whole pack is 10 to 25 times slower on a CPU, so sequences are grouped by length and each
    group attends as one dense batch. Padding is at the end, where a causal query never looks, so no mask is
    needed at all. A pack of equally long sequences is a view: nothing is copied.
    """

    latent = False

    def __init__(self, lengths: Sequence[int], device: torch.device | str = "cpu") -> None:
        starts, buckets, start = [], defaultdict(list), 0
        for length in lengths:
            starts.append(start)
            buckets[_bucket(length)].append(len(starts) - 1)
            start += length
        self.total = start
        self.groups: list[Group] = []
        if len(set(lengths)) == 1:
            self.groups.append((len(lengths), None))
            return
        for members in buckets.values():
            longest = max(lengths[m] for m in members)
            rows = torch.full((len(members), longest), self.total, dtype=torch.int64)  # row `total` is padding
            for i, m in enumerate(members):
                rows[i, : lengths[m]] = torch.arange(starts[m], starts[m] + lengths[m])
            self.groups.append((len(members), rows.flatten().to(device)))

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        if q_THD.device.type == "cpu":
            return causal_attention(q_THD, k_TKD, v_TKD, self.groups)
        count, whole = self.groups[0]
        if whole is None:
            return _causal(q_THD, k_TKD, v_TKD, count).reshape(q_THD.shape[0], q_THD.shape[1], v_TKD.shape[2])
        q, k, v = (F.pad(x, (0, 0, 0, 0, 0, 1)) for x in (q_THD, k_TKD, v_TKD))
        out = q.new_zeros(self.total + 1, q.shape[1], v.shape[2])
        for count, rows in self.groups:
            assert rows is not None
            dense = _causal(q[rows], k[rows], v[rows], count)
            out = out.index_copy(0, rows, dense.reshape(rows.shape[0], *out.shape[1:]))
        return out[: self.total]


def _bucket(length: int) -> int:
    """Lengths that attend together: steps of an eighth of the next power of two, so padding stays under an eighth."""
    step = max(8, 1 << max(0, length.bit_length() - 3))
    return -(-length // step) * step


def _causal(q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, count: int) -> Tensor:
    """`count` sequences of one length, end to end -> the same, attended."""
    q, k, v = (x.view(count, -1, *x.shape[1:]).transpose(1, 2) for x in (q_THD, k_TKD, v_TKD))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
    return out.transpose(1, 2)
