"""Multi-head latent attention: keys and values of all heads are made from one small latent of each token.

    latent  = norm(down(x))                       kv_lora_rank dimensions, what a cache holds
    k, v    = up(latent), for each head           beside a rotated key part that all heads share

Whole sequences (training, scoring) make keys and values of every head and attend as usual. Over a cache of latents
(`attend.latent`) the up-projection is absorbed instead: queries are brought into the latent space, every head looks
at the same latents, and what it gathered is projected up once. Both give the same numbers but for rounding.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from etude.model.attention import Attend, Gather
from etude.model.config import ModelConfig
from etude.model.low_precision.products import Linear
from etude.model.norm import RMSNorm
from etude.model.rope import paired, rotate

EPS = 1e-6  # of the norms of latents, whatever the model's other norms have


class LatentAttention(nn.Module):
    """Shapes: T tokens, H heads, P plain and R rotated dimensions of a query, V of a value, C of the latent."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.layer, self.heads = layer, config.num_attention_heads
        self.plain, self.rotated = config.qk_nope_head_dim, config.qk_rope_head_dim
        self.value_dim, self.rank = config.v_head_dim, config.kv_lora_rank
        self.interleaved = config.rope_interleave
        self.sharper = config.yarn.softmax_scale if config.yarn else 1.0
        width, bias = config.hidden_size, config.attention_bias
        self.q_rank = config.q_lora_rank
        if self.q_rank:
            self.q_a_proj = Linear(width, self.q_rank, bias=bias)
            self.q_a_layernorm = RMSNorm(self.q_rank, EPS)
            self.q_b_proj = Linear(self.q_rank, self.heads * config.query_dim, bias=False)
        else:
            self.q_proj = Linear(width, self.heads * config.query_dim, bias=False)
        self.kv_a_proj_with_mqa = Linear(width, self.rank + self.rotated, bias=bias)
        self.kv_a_layernorm = RMSNorm(self.rank, EPS)
        self.kv_b_proj = Linear(self.rank, self.heads * (self.plain + self.value_dim), bias=False)
        self.o_proj = Linear(self.heads * self.value_dim, width, bias=config.output_bias)

    def forward(self, x_TD: Tensor, angles: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        if attend.latent:
            return self.output(self._absorbed(*self._latents(x_TD, angles), attend))
        return self.output(attend(self.layer, *self.project(x_TD, angles, getattr(attend, "gather", None))))

    def project(
        self, x_TD: Tensor, angles: tuple[Tensor, Tensor], gather: Gather | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of every head. What is gathered is latents: less than keys and values by far."""
        q_THP, q_THR, latent_TC, k_T1R = self._latents(x_TD, angles)
        if gather is not None:
            latent_TC, k_T1R = gather(latent_TC, k_T1R)
        kv = self.kv_b_proj(latent_TC).view(len(latent_TC), self.heads, -1)
        k_THP, v_THV = kv.split((self.plain, self.value_dim), -1)
        k = torch.cat((k_THP, k_T1R.expand(-1, self.heads, -1)), -1)
        q = torch.cat((q_THP, q_THR), -1)
        # attention divides by the root of the dimensions it sees, here the right ones
        return q * self.sharper if self.sharper != 1.0 else q, k, v_THV

    def output(self, out_THV: Tensor) -> Tensor:
        out: Tensor = self.o_proj(out_THV.reshape(out_THV.shape[0], self.heads * self.value_dim))
        return out

    def _latents(self, x_TD: Tensor, angles: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        length = x_TD.shape[0]
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x_TD))) if self.q_rank else self.q_proj(x_TD)
        q_THP, q_THR = q.view(length, self.heads, self.plain + self.rotated).split((self.plain, self.rotated), -1)
        latent_TC, k_TR = self.kv_a_proj_with_mqa(x_TD).split((self.rank, self.rotated), -1)
        latent_TC = self.kv_a_layernorm(latent_TC)
        return q_THP, self._rotate(q_THR, angles), latent_TC, self._rotate(k_TR[:, None], angles)

    def _absorbed(self, q_THP: Tensor, q_THR: Tensor, latent_TC: Tensor, k_T1R: Tensor, attend: Attend) -> Tensor:
        up_HXC = self.kv_b_proj.weight.view(self.heads, -1, self.rank)
        key_up_HPC, value_up_HVC = torch.split(up_HXC, [self.plain, self.value_dim], 1)
        q_THC = torch.bmm(q_THP.transpose(0, 1), key_up_HPC).transpose(0, 1)
        latent_T1C = latent_TC[:, None]
        # attention divides by the root of the dimensions it sees, of which there are more here than in a query
        scale = self.sharper * ((self.rank + self.rotated) / (self.plain + self.rotated)) ** 0.5
        q, k = torch.cat((q_THC, q_THR), -1) * scale, torch.cat((latent_T1C, k_T1R), -1)
        out_THC = attend(self.layer, q, k, latent_T1C)
        return torch.bmm(out_THC.transpose(0, 1), value_up_HVC.mT).transpose(0, 1)

    def _rotate(self, x_THR: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        return rotate(paired(x_THR) if self.interleaved else x_THR, angles)
