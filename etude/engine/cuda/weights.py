"""The decoder's matrices as a step wants them: those that act on the same input lie one below the other.

They are the decoder's own memory: a projection's weight becomes a view of the joint matrix. So weights that are
published into the decoder are in the joint matrices at once, at the addresses that recorded graphs know.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from etude.core.errors import EtudeError
from etude.engine.cuda.ops import Norm
from etude.model.attention import Attention
from etude.model.decoder import Block, Decoder
from etude.model.experts import MixtureOfExperts
from etude.model.mla import LatentAttention
from etude.model.mlp import SwiGLU
from etude.model.norm import RMSNorm


@dataclass(frozen=True)
class Joint:
    """Projections of one input, their outputs side by side."""

    weight: Tensor
    bias: Tensor | None
    widths: list[int]


@dataclass(frozen=True)
class Layer:
    before_attention: Norm
    attention: Attention | LatentAttention
    inward: Joint  # queries, keys, values; or the queries' first step and the latents
    before_mlp: Norm
    gate_up: Tensor  # of the feed-forward network, or of the experts that all tokens share
    down: Tensor
    mixture: MixtureOfExperts | None


def read(norm: RMSNorm) -> Norm:
    return Norm(norm.weight, norm.eps)


def join_layers(decoder: Decoder) -> list[Layer]:
    """Of the model's blocks; behind them those of its heads that predict further ahead."""
    blocks = [*decoder.model.layers, *(head.block for head in decoder.mtp)]
    return [join_block(block, decoder.lm_head.weight.new_empty(0)) for block in blocks]


def join_block(block: nn.Module, none: Tensor) -> Layer:
    assert isinstance(block, Block)
    attention, mlp = block.self_attn, block.mlp
    assert isinstance(attention, (Attention, LatentAttention))
    if isinstance(attention, LatentAttention):
        first = attention.q_a_proj if attention.q_rank else attention.q_proj
        inward = join(first, attention.kv_a_proj_with_mqa)
    else:
        inward = join(attention.q_proj, attention.k_proj, attention.v_proj)
    mixture = mlp if isinstance(mlp, MixtureOfExperts) else None
    dense = (mlp.shared_experts if mlp.shared else None) if isinstance(mlp, MixtureOfExperts) else mlp
    assert dense is None or isinstance(dense, SwiGLU)
    return Layer(
        read(block.input_layernorm),
        attention,
        inward,
        read(block.post_attention_layernorm),
        none if dense is None else join(dense.gate_proj, dense.up_proj).weight,
        none if dense is None else dense.down_proj.weight,
        mixture,
    )


@torch.no_grad()
def join(*linears: nn.Module) -> Joint:
    plain = []
    for linear in linears:
        if not isinstance(linear, nn.Linear):
            raise EtudeError(
                "this engine samples from plain weights: save the model with its adapters added, and load that"
            )
        plain.append(linear)
    widths = [len(linear.weight) for linear in plain]
    weight = torch.cat([linear.weight for linear in plain])
    for linear, part in zip(plain, torch.split(weight, widths), strict=True):
        # By `.data`: the parameter stays the same object, only its memory moves.
        linear.weight.data = part
    if all(linear.bias is None for linear in plain):
        return Joint(weight, None, widths)
    missing = weight.new_zeros(max(widths))  # a projection without a bias beside one that has it
    biases: list[Tensor] = [
        missing[:width] if linear.bias is None else linear.bias for linear, width in zip(plain, widths, strict=True)
    ]
    bias = torch.cat(biases)
    for linear, part in zip(plain, torch.split(bias, widths), strict=True):
        if linear.bias is not None:
            linear.bias.data = part
    return Joint(weight, bias, widths)
