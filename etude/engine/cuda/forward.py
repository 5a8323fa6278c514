"""One step of the decoder, in the operations of ops.py: embeddings, blocks, logits. The same for prompts and answers.

It computes what model/decoder.py computes, from the same weights, with fewer and larger operations; the tests hold
the two against each other. Knows no requests and no schedule.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from etude.engine.cuda.ops import Ops, Pages, Places, Runs
from etude.engine.cuda.pages import PagedCache
from etude.engine.cuda.weights import Layer, join_layers, read
from etude.model.attention import Attention
from etude.model.decoder import Decoder, NextToken
from etude.model.experts import Routing
from etude.model.mla import LatentAttention


@dataclass(frozen=True)
class Prompts:
    """Tokens of prompts: where all of the tokens that they see lie, if the cache holds some that are not among them."""

    runs: Runs
    slots_S: Tensor | None


@dataclass(frozen=True)
class Step:
    """The tokens of a step: first one of each decoding request, then those of prompts."""

    tokens_T: Tensor
    sources_T: Tensor  # where the last step sampled the token, or -1
    places: Places
    pages: Pages  # of the decoding requests
    prompts: Prompts | None = None

    @property
    def decoding(self) -> int:
        return len(self.pages.lengths_R)


class Forward:
    def __init__(self, decoder: Decoder, cache: PagedCache, ops: Ops, positions: int) -> None:
        self.decoder, self.cache, self.ops = decoder, cache, ops
        self.layers = join_layers(decoder)
        device = decoder.lm_head.weight.device
        decoder.rope(torch.zeros(1, dtype=torch.int64, device=device), positions)
        self.angles = decoder.rope.table  # made once: graphs remember where it lies

    def hidden(self, step: Step, sampled_S: Tensor) -> Tensor:
        """The state after the last norm of every token."""
        ops, routing = self.ops, Routing()
        x_TD = ops.embed(self.decoder.model.embed_tokens.weight, step.tokens_T, step.sources_T, sampled_S)
        # What a block adds last is left to the norm behind it: x + y and the norm are one kernel.
        y_TD: Tensor | None = None
        for number in range(self.decoder.config.num_hidden_layers):
            x_TD, y_TD = self._block(number, x_TD, y_TD, step, routing)
        if self.cache.routes:
            self.cache.routes_SEC[step.places.slots_T.long()] = routing.chosen_TBK.to(torch.int16)
        return ops.add_norm(x_TD, y_TD, read(self.decoder.model.norm))[1]

    def ahead(self, depth: int, hidden_TD: Tensor, next_RJ: Tensor, step: Step) -> Tensor:
        """The state of head `depth` (1 is the first) from the one below it and the tokens `depth` ahead."""
        ops, head = self.ops, self.decoder.mtp[depth - 1]
        assert isinstance(head, NextToken)
        table_VD = self.decoder.model.embed_tokens.weight
        both_T2D = ops.pair(table_VD, next_RJ, hidden_TD, read(head.enorm), read(head.hnorm))
        number = self.decoder.config.num_hidden_layers + depth - 1
        x_TD, y_TD = self._block(number, ops.linear(both_T2D, head.eh_proj.weight), None, step, Routing())
        return ops.add_norm(x_TD, y_TD, read(head.norm))[1]

    def _block(
        self, number: int, x_TD: Tensor, y_TD: Tensor | None, step: Step, routing: Routing
    ) -> tuple[Tensor, Tensor]:
        """The stream, and what the block's last part adds to it."""
        ops, layer, planes = self.ops, self.layers[number], self.cache.blocks_LPNKBD[number]
        x_TD, joint_TX = ops.norm_linear(x_TD, y_TD, layer.before_attention, layer.inward.weight, layer.inward.bias)
        if isinstance(layer.attention, LatentAttention):
            out_TX = self._latent(layer, joint_TX, planes, step)
        else:
            out_TX = self._grouped(layer, joint_TX, planes, step)
        y_TD = ops.linear(out_TX, layer.attention.o_proj.weight, layer.attention.o_proj.bias)
        if layer.mixture is None:
            x_TD, inner_TF = ops.norm_gated(x_TD, y_TD, layer.before_mlp, layer.gate_up)
            return x_TD, ops.linear(inner_TF, layer.down)
        x_TD, normed_TD = ops.add_norm(x_TD, y_TD, layer.before_mlp)
        chosen_TK, weight_TK = ops.route(normed_TD, layer.mixture.gate, routing)
        y_TD = ops.experts(normed_TD, chosen_TK, weight_TK, layer.mixture.experts)
        if layer.mixture.shared:
            y_TD = y_TD + ops.linear(ops.gated(normed_TD, layer.gate_up), layer.down)
        return x_TD, y_TD

    def logits(self, hidden_TD: Tensor) -> Tensor:
        return self.ops.logits(hidden_TD, self.decoder.lm_head.weight)

    def _grouped(self, layer: Layer, qkv_TX: Tensor, planes: Tensor, step: Step) -> Tensor:
        attention, first = layer.attention, step.decoding
        heads, dims, ops = attention.heads, planes.shape[-1], self.ops
        assert isinstance(attention, Attention)
        q_norm, k_norm = (read(attention.q_norm), read(attention.k_norm)) if attention.qk_norm else (None, None)
        ops.place(qkv_TX, heads, q_norm, k_norm, planes, step.places)
        q_THX, k_TKX, v_TKX = torch.split(
            qkv_TX.view(len(qkv_TX), -1, dims), [heads, planes.shape[2], planes.shape[2]], 1
        )
        out = ops.attend(q_THX[:first], planes, step.pages).flatten(1) if first else None
        if step.prompts is None:
            assert out is not None
            return out
        k, v = k_TKX[first:], v_TKX[first:]
        # A prompt in pieces, or behind a shared prefix: its earlier keys lie in the cache only.
        if step.prompts.slots_S is not None:
            k, v = (_gather(plane, step.prompts.slots_S) for plane in planes)
        behind = ops.attend_runs(q_THX[first:], k, v, step.prompts.runs, dims**-0.5).flatten(1)
        return behind if out is None else torch.cat((out, behind))

    def _latent(self, layer: Layer, joint_TX: Tensor, planes: Tensor, step: Step) -> Tensor:
        """Decoding looks at latents (absorbed), prompts at keys and values made from them (expanded): see mla.py."""
        attention, first, ops = layer.attention, step.decoding, self.ops
        assert isinstance(attention, LatentAttention)
        q_TX, kv_TX = torch.split(joint_TX, layer.inward.widths, -1)
        if attention.q_rank:
            q_TX = ops.linear(ops.norm(q_TX, read(attention.q_a_layernorm)), attention.q_b_proj.weight)
        else:
            q_TX = q_TX.contiguous()  # a part of wider rows, and the kernel that rotates queries knows none
        q_THX = q_TX.view(len(q_TX), attention.heads, -1)
        ops.place_latent(q_THX, kv_TX, read(attention.kv_a_layernorm), attention.interleaved, planes, step.places)
        scale = attention.sharper * q_THX.shape[-1] ** -0.5
        up_HXC = attention.kv_b_proj.weight.view(attention.heads, -1, attention.rank)
        key_up_HPC, value_up_HVC = torch.split(up_HXC, [attention.plain, attention.value_dim], 1)
        out_THV = q_TX.new_empty(len(q_TX), attention.heads, attention.value_dim)
        if first:
            plain_RHP, rotated_RHX = torch.split(q_THX[:first], [attention.plain, attention.rotated], -1)
            q_HRC = torch.bmm(plain_RHP.transpose(0, 1), key_up_HPC)
            seen_HRC = ops.attend_latent(q_HRC, rotated_RHX, planes, step.pages, scale)
            torch.bmm(seen_HRC, value_up_HVC.mT, out=out_THV[:first].transpose(0, 1))
        if step.prompts is not None:
            seen = kv_TX[first:]
            if step.prompts.slots_S is not None:
                seen = _gather(planes[0], step.prompts.slots_S)[:, 0]
            latent_SC, k_SX = torch.split(seen, [attention.rank, attention.rotated], -1)
            kv = F.linear(latent_SC, attention.kv_b_proj.weight).view(len(seen), attention.heads, -1)
            k_SHP, v_SHV = torch.split(kv, [attention.plain, attention.value_dim], -1)
            k_SHX = torch.cat((k_SHP, k_SX[:, None].expand(-1, attention.heads, -1)), -1)
            # one width for keys and values, as the kernel for prompts wants it
            width = k_SHX.shape[-1] - attention.value_dim
            behind = ops.attend_runs(q_THX[first:], k_SHX, F.pad(v_SHV, (0, width)), step.prompts.runs, scale)
            out_THV[first:] = behind[..., : attention.value_dim]
        return out_THV.flatten(1)


def _gather(plane_NKBD: Tensor, slots_S: Tensor) -> Tensor:
    size = plane_NKBD.shape[2]
    return plane_NKBD[slots_S // size, :, slots_S % size]
