"""A step of a dense decoder on a CPU, in few operations: what model/decoder.py computes, from the same weights.

A small model's step is mostly the price of calling operations, and of fetching weights that have left the cache since
the last step. So here

- activations are columns (x_DT), as a product with few tokens is faster that way round: 1536 x 256 weights fetched anew
  times 32 tokens took 236 us on two cores, and 317 as rows;
- projections of one input are one product, their weights lying one below the other. That is the decoder's own memory:
  its parameters become views of it, so that published weights are in place at once;
- residuals are added by the products, and queries and keys are normalised and rotated together.

The decoder stays the definition, and the tests hold the two against each other. Models with experts, latents, adapters
or another precision than float32 are computed by the decoder itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from etude.model.attention import Attend, Attention
from etude.model.decoder import Block, Decoder
from etude.model.experts import Routing
from etude.model.low_precision.products import PLAIN, Linear
from etude.model.mlp import SwiGLU
from etude.model.norm import RMSNorm

FEW = 64  # tokens; to turn over what a product gave for more costs more than the faster product gains


class Forward(Protocol):
    """What computes a step, as the decoder does."""

    def __call__(
        self, tokens_T: Tensor, positions_T: Tensor, attend: Attend, longest: int, routing: Routing | None
    ) -> Tensor: ...

    def logits(self, hidden_TD: Tensor) -> Tensor: ...


def forward_of(decoder: Decoder) -> Forward:
    return DenseCpuForward(decoder) if fits(decoder) else decoder


def fits(decoder: Decoder) -> bool:
    weight = decoder.lm_head.weight
    if decoder.config.latent or decoder.config.num_experts or weight.dtype != torch.float32 or weight.is_cuda:
        return False
    blocks = [block for block in decoder.model.layers if isinstance(block, Block)]
    inside = [part for block in blocks for half in (block.self_attn, block.mlp) for part in half.children()]
    # Exact types: an adapter or another precision is a subclass or a setting that this forward does not compute.
    return all(type(part) is RMSNorm or (type(part) is Linear and part.precision is PLAIN) for part in inside)


# With streaks (runner.py) it brought a decoding step of 5M parameters and 32 requests from 11.8 to 8.1 ms.
class DenseCpuForward:
    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.layers = [_Layer.of(block) for block in decoder.model.layers]
        self.last = _Norm(decoder.model.norm)

    def __call__(
        self, tokens_T: Tensor, positions_T: Tensor, attend: Attend, longest: int, routing: Routing | None = None
    ) -> Tensor:
        """Hidden states after the last norm."""
        turns_T1D = torch.complex(*self.decoder.rope(positions_T, longest))
        x_DT = F.embedding(tokens_T, self.decoder.model.embed_tokens.weight).t().contiguous()
        for layer in self.layers:
            x_DT = layer(x_DT, turns_T1D, attend)
        return self.last(x_DT).t()

    def logits(self, hidden_TD: Tensor) -> Tensor:
        return torch.mm(self.decoder.lm_head.weight, hidden_TD.t()).t().contiguous()


class _Norm:
    """An RMSNorm of columns, or of what lies along another dimension."""

    def __init__(self, norm: nn.Module) -> None:
        assert isinstance(norm, RMSNorm)
        self.weight_D, self.weight_D1 = norm.weight.detach(), norm.weight.detach()[:, None]
        self.share, self.eps = 1 / len(norm.weight), torch.tensor(norm.eps)

    def __call__(self, x_DT: Tensor) -> Tensor:
        return (x_DT * self.scale(x_DT, 0)).mul_(self.weight_D1)

    def scale(self, x: Tensor, dim: int) -> Tensor:
        """What a vector is multiplied by to have a root mean square of 1."""
        # Not `vector_norm`, which goes down columns number by number: 35 us for 128 x 174 numbers, and this takes 6.
        squares = (x * x).sum(dim, keepdim=True)
        return torch.add(self.eps, squares, alpha=self.share).rsqrt_()


@dataclass(frozen=True)
class _Layer:
    number: int
    heads: int
    both: int  # heads of queries and of keys
    dims: int
    before_attention: _Norm
    inward: Tensor  # queries, keys, values
    inward_bias: Tensor | None
    norms: tuple[_Norm, _Norm] | None  # of queries and of keys
    output: Tensor
    output_bias: Tensor | None
    before_mlp: _Norm
    gate_up: Tensor
    down: Tensor

    @classmethod
    def of(cls, block: nn.Module) -> _Layer:
        assert isinstance(block, Block)
        attention, mlp = block.self_attn, block.mlp
        assert isinstance(attention, Attention)
        assert isinstance(mlp, SwiGLU)
        inward = (attention.q_proj, attention.k_proj, attention.v_proj)
        bias = attention.o_proj.bias
        return cls(
            attention.layer,
            attention.heads,
            attention.heads + attention.kv_heads,
            attention.head_dim,
            _Norm(block.input_layernorm),
            joined([linear.weight for linear in inward]),
            None if attention.q_proj.bias is None else joined([linear.bias for linear in inward]),
            (_Norm(attention.q_norm), _Norm(attention.k_norm)) if attention.qk_norm else None,
            attention.o_proj.weight.detach(),
            None if bias is None else bias.detach()[:, None],
            _Norm(block.post_attention_layernorm),
            joined([mlp.gate_proj.weight, mlp.up_proj.weight]),
            mlp.down_proj.weight.detach(),
        )

    def __call__(self, x_DT: Tensor, turns_T1D: Tensor, attend: Attend) -> Tensor:
        joint_TXD = self._inward(self.before_attention(x_DT)).view(x_DT.shape[1], -1, self.dims)
        turned_TXD = self._turned(joint_TXD[:, : self.both], turns_T1D)
        q_THD, k_TKD = turned_TXD[:, : self.heads], turned_TXD[:, self.heads :]
        out_THD = attend(self.number, q_THD, k_TKD, joint_TXD[:, self.both :])
        # The product adds the residual: one operation less in each half of a block.
        x_DT = torch.addmm(x_DT, self.output, out_THD.flatten(1).t())
        if self.output_bias is not None:
            x_DT += self.output_bias
        gate_FT, up_FT = torch.mm(self.gate_up, self.before_mlp(x_DT)).chunk(2)
        return torch.addmm(x_DT, self.down, F.silu(gate_FT, inplace=True).mul_(up_FT))

    def _inward(self, x_DT: Tensor) -> Tensor:
        if x_DT.shape[1] > FEW or self.inward_bias is not None:
            return F.linear(x_DT.t(), self.inward, self.inward_bias)
        return torch.mm(self.inward, x_DT).t().contiguous()

    def _turned(self, x_TXD: Tensor, turns_T1D: Tensor) -> Tensor:
        """Queries and keys, normalised and rotated.

        A pair of dimensions is a complex number, and comes out with its two side by side. As they do in queries and
        keys alike, attention is none the wiser.
        """
        if self.norms is not None:
            of_q, of_k = self.norms
            # One call for both: the scale depends on width and eps alone, which queries and keys share.
            x_TXD.mul_(of_q.scale(x_TXD, -1))
            x_TXD[:, : self.heads].mul_(of_q.weight_D)
            x_TXD[:, self.heads :].mul_(of_k.weight_D)
        low_TXP, high_TXP = x_TXD.chunk(2, -1)
        return torch.view_as_real(torch.complex(low_TXP, high_TXP).mul_(turns_T1D)).flatten(-2)


@torch.no_grad()
def joined(parts: Sequence[Tensor]) -> Tensor:
    """The parameters one below the other. From now on that is where they lie, if they did not before."""
    memory = {part.untyped_storage().data_ptr() for part in parts}
    ends = [part.data_ptr() + part.nbytes for part in parts]
    # A second engine over the same decoder finds them joined already, and must leave them where the first reads them.
    if len(memory) > 1 or ends[:-1] != [part.data_ptr() for part in parts[1:]]:
        joint = torch.cat([part.detach() for part in parts])
        for part, place in zip(parts, torch.split(joint, [len(part) for part in parts]), strict=True):
            part.data = place
    first = parts[0].detach()
    return first.as_strided((sum(len(part) for part in parts), *first.shape[1:]), first.stride())
