"""How large a model is: weights, the part of them that a token uses, and the memory that training and serving take.

Counted from the shape alone, so a model can be weighed before it is downloaded or built. Weights are exact; memory
is what they and what is kept beside them take, without a device's own workspace.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from etude.model.config import ModelConfig


class Projection(NamedTuple):
    """A matrix of a block, or as many alike as there are experts."""

    outputs: int
    inputs: int
    bias: bool = False
    copies: int = 1
    used: int = 1  # copies that one token goes through
    adapted: bool = True  # whether LoRA gives it an adapter

    @property
    def weights(self) -> int:
        return self.outputs * self.inputs + (self.outputs if self.bias else 0)


def parameters(config: ModelConfig) -> int:
    """All weights, multi-token-prediction modules included; a tied head counts once."""
    width = config.hidden_size
    blocks = sum(_block(config, layer) for layer in range(config.cache_layers))
    joins = config.num_nextn_predict_layers * (2 * width * width + 3 * width)
    return _tables(config) + blocks + width + joins


def active_parameters(config: ModelConfig) -> int:
    """The weights that one token goes through in a forward of the main head."""
    layers = range(config.num_hidden_layers)
    return _tables(config) + config.hidden_size + sum(_block(config, layer, used=True) for layer in layers)


def adapter_parameters(config: ModelConfig, rank: int) -> int:
    """What LoRA of this rank trains: adapters to every projection of the blocks but routers and routed experts."""
    layers = range(config.num_hidden_layers)
    adapted = (p for layer in layers for p in projections(config, layer) if p.adapted)
    return sum(rank * (p.outputs + p.inputs) for p in adapted)


def cache_entries(config: ModelConfig) -> int:
    """Numbers that a cache keeps of one token."""
    planes, heads, dims = config.cache_shape
    return config.num_hidden_layers * planes * heads * dims


def training_bytes(
    config: ModelConfig,
    micro_tokens: int,
    number: int = 4,
    rank: int = 0,
    *,
    activation: int | None = None,
    recompute: bool = False,
    chunk: int | None = None,
) -> int:
    """A rough need of memory with numbers of `number` bytes, activations of `activation` bytes.

    Weights; gradients and two moments of what is trained, which is everything or adapters of `rank`; activations of
    one micro-batch, or with `recompute` what blocks keep and the activations of one of them; logits, at most `chunk`
    of them at once.
    """
    trained = adapter_parameters(config, rank) if rank else parameters(config)
    weights = parameters(config) + (trained if rank else 0)
    # A weight is rounded where it is used, so there is a second, smaller copy of each.
    rounded = parameters(config) if activation is not None and activation < number else 0
    sizes = [_activations(config, layer) for layer in range(config.cache_layers)]
    if recompute:
        kept = config.hidden_size + config.num_attention_heads * (config.value_dim + 1)
        sizes = [*(kept for _ in sizes), max(sizes)]  # the one that is computed again
    logits = 3 * min(micro_tokens * config.vocab_size, chunk or micro_tokens * config.vocab_size)
    return number * (weights + 3 * trained + logits) + (activation or number) * (rounded + micro_tokens * sum(sizes))


def projections(config: ModelConfig, layer: int) -> Iterator[Projection]:
    """The matrices of a block."""
    width, heads, bias = config.hidden_size, config.num_attention_heads, config.attention_bias
    if config.latent:
        rank = config.q_lora_rank
        if rank:
            yield Projection(rank, width, bias)
        yield Projection(heads * config.query_dim, rank or width)
        yield Projection(config.kv_lora_rank + config.qk_rope_head_dim, width, bias)
        yield Projection(heads * (config.qk_nope_head_dim + config.v_head_dim), config.kv_lora_rank)
    else:
        yield Projection(heads * config.head_dim, width, bias)
        yield from 2 * [Projection(config.num_key_value_heads * config.head_dim, width, bias)]
    yield Projection(width, heads * config.value_dim, config.output_bias)
    if not config.sparse(layer):
        yield from _feed_forward(width, config.intermediate_size)
        return
    yield Projection(config.num_experts, width, adapted=False)
    for part in _feed_forward(width, config.moe_intermediate_size):
        yield part._replace(copies=config.num_experts, used=config.num_experts_per_tok, adapted=False)
    if config.n_shared_experts:
        yield from _feed_forward(width, config.n_shared_experts * config.moe_intermediate_size)


def _feed_forward(width: int, hidden: int) -> list[Projection]:
    return [Projection(hidden, width), Projection(hidden, width), Projection(width, hidden)]


def _block(config: ModelConfig, layer: int, used: bool = False) -> int:
    norms = 2 * config.hidden_size
    if config.latent:
        norms += config.q_lora_rank + config.kv_lora_rank
    elif config.qk_norm:
        norms += 2 * config.head_dim
    return norms + sum(p.weights * (p.used if used else p.copies) for p in projections(config, layer))


def _tables(config: ModelConfig) -> int:
    return config.vocab_size * config.hidden_size * (1 if config.tie_word_embeddings else 2)


def _activations(config: ModelConfig, layer: int) -> int:
    """Numbers that a block keeps of a token for the backward pass, roughly."""
    attention = 4 * config.hidden_size + 3 * config.num_attention_heads * (config.query_dim + config.value_dim)
    if not config.sparse(layer):
        return attention + 3 * config.intermediate_size
    visits = config.num_experts_per_tok * (3 * config.moe_intermediate_size + 2 * config.hidden_size)
    return attention + visits + 3 * config.n_shared_experts * config.moe_intermediate_size + 2 * config.num_experts
