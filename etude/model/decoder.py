"""The decoder: token ids and positions in, hidden states and logits out.

Activations are token-flat (x_TD): no batch dimension and no padding, so the trainer's packed sequences and
the engine's mixed prefill and decode run the very same forward. Knows nothing of caches, losses or sampling.
Parameter names are those of a Hugging Face checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from etude.model.attention import Attend, Attention, Share
from etude.model.compile_regions import Stages, in_stages
from etude.model.config import ModelConfig
from etude.model.experts import MixtureOfExperts, Routing
from etude.model.head import head_logits
from etude.model.low_precision.products import PLAIN, Linear
from etude.model.mla import LatentAttention
from etude.model.mlp import SwiGLU
from etude.model.norm import RMSNorm
from etude.model.rope import Rope


class Block(nn.Module):
    stages: Stages | None = None  # how training cuts a block up

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = LatentAttention(config, layer) if config.latent else Attention(config, layer)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.sparse = config.sparse(layer)
        if self.sparse:
            self.mlp: nn.Module = MixtureOfExperts(config)
        else:
            self.mlp = SwiGLU(config.hidden_size, config.intermediate_size)

    def forward(
        self, x_TD: Tensor, angles: tuple[Tensor, Tensor], attend: Attend, routing: Routing | None = None
    ) -> Tensor:
        # Stages are for training; whoever hands over latents samples from a cache.
        if self.stages is not None and not attend.latent:
            return in_stages(self, x_TD, angles, attend, routing)
        x_TD = x_TD + self.self_attn(self.input_layernorm(x_TD), angles, attend)
        normed_TD = self.post_attention_layernorm(x_TD)
        out: Tensor = x_TD + (self.mlp(normed_TD, routing) if self.sparse else self.mlp(normed_TD))
        return out


class NextToken(nn.Module):
    """One multi-token-prediction module: the state so far joined with the next token, then one more block."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.enorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.hnorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.eh_proj = Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.block = Block(config, layer)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(
        self,
        hidden_TD: Tensor,
        next_TD: Tensor,
        angles: tuple[Tensor, Tensor],
        attend: Attend,
        routing: Routing | None = None,
    ) -> Tensor:
        joined = self.eh_proj(torch.cat((self.enorm(next_TD), self.hnorm(hidden_TD)), dim=-1))
        out: Tensor = self.norm(self.block(joined, angles, attend, routing))
        return out


class Trunk(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config, i) for i in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class Decoder(nn.Module):
    precision = PLAIN
    reader: Callable[[str, Tensor], None] | None = None  # of an outline: writes a parameter or buffer, by its name
    share: Callable[[Sequence[int], torch.device], Share] | None = None  # of sequences that several processes compute

    def __init__(self, config: ModelConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.model = Trunk(config)
        self.rope = Rope(config.rotary_dim, config.rope_theta, config.yarn)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight
        first = config.num_hidden_layers
        self.mtp = nn.ModuleList(NextToken(config, first + i) for i in range(config.num_nextn_predict_layers))
        self._initialise(seed)

    def forward(
        self,
        tokens_T: Tensor,
        positions_T: Tensor,
        attend: Attend,
        longest: int | None = None,
        routing: Routing | None = None,
    ) -> Tensor:
        """Hidden states after the last norm. `longest` bounds the positions when the caller knows it on the host.

        `routing` says which experts are to be chosen, and learns which were.
        """
        angles = self._angles(positions_T, longest)
        x_TD = self._embedded(tokens_T)
        for block in self.model.layers:
            x_TD = block(x_TD, angles, attend, routing)
        out: Tensor = self.model.norm(x_TD)
        return out

    def logits(self, hidden_TD: Tensor) -> Tensor:
        return head_logits(hidden_TD, self.lm_head.weight)

    def mtp_hidden(
        self,
        depth: int,
        hidden_TD: Tensor,
        next_T: Tensor,
        positions_T: Tensor,
        attend: Attend,
        longest: int | None = None,
        routing: Routing | None = None,
    ) -> Tensor:
        """The state of module `depth` (1 is the first), which predicts the token `depth` + 1 ahead.

        `hidden_TD` is the state one depth below, `next_T` the token `depth` ahead of each position. Where a sequence of
        the flat batch ends, these may be a neighbour's: nothing may be trained or drafted from the last `depth`
        positions, and no earlier one sees them.
        """
        angles = self._angles(positions_T, longest)
        out: Tensor = self.mtp[depth - 1](hidden_TD, self._embedded(next_T), angles, attend, routing)
        return out

    def _embedded(self, tokens_T: Tensor) -> Tensor:
        x_TD: Tensor = self.model.embed_tokens(tokens_T)
        return x_TD.to(self.precision.dtype or x_TD.dtype)

    def _angles(self, positions_T: Tensor, longest: int | None) -> tuple[Tensor, Tensor]:
        angles: tuple[Tensor, Tensor] = self.rope(positions_T, longest or int(positions_T.max()) + 1)
        return angles

    @torch.no_grad()
    def _initialise(self, seed: int) -> None:
        """Normal with deviation 0.02, residual writes scaled down by depth; its own generator, so a seed is a model."""
        device = self.lm_head.weight.device
        generator = torch.Generator(device if device.type == "cuda" else "cpu").manual_seed(seed)  # none for an outline
        residual = residual_deviation(self.config)
        for name, parameter in self.named_parameters():
            draw(name, parameter, residual, generator)


def residual_deviation(config: ModelConfig) -> float:
    # two residual writes a block: their sum keeps its size whatever the depth
    return 0.02 / math.sqrt(2 * config.cache_layers)


@torch.no_grad()
def draw(name: str, parameter: Tensor, residual: float, generator: torch.Generator) -> None:
    """A parameter's first values; `residual` is the deviation of those that write to the residual stream."""
    if parameter.ndim < 2:
        parameter.fill_(0.0 if name.endswith("bias") else 1.0)
    else:
        deviation = residual if name.endswith(("o_proj.weight", "down_proj.weight", "down_proj")) else 0.02
        parameter.normal_(0.0, deviation, generator=generator)
