"""How many numbers a block keeps of one token for the backward pass, counted operation by operation from the shape.

Counted for the two ways that a block is computed here: as torch runs it on a CPU, and as the compiler runs it on a GPU,
which computes the cheap product inside SwiGLU a second time. A test holds the first against what autograd really saves.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from etude.model.config import ModelConfig

# As in model/cpu_causal_attention.py, which needs torch; a test holds them equal.
QUERIES = 64  # of one block of attention on a CPU
MOST_PROBABILITIES = 32 << 20  # of a micro-batch that are kept on a CPU; more are computed again


@dataclass(frozen=True)
class Kept:
    """Numbers of one token in one block: until attention, of attention itself, and after it."""

    before: int
    attention: int
    after: int

    @property
    def whole(self) -> int:
        return self.before + self.attention + self.after


def kept(config: ModelConfig, layer: int, compiled: bool) -> Kept:
    width, latent = config.hidden_size, config.latent
    query, value = config.num_attention_heads * config.query_dim, config.num_attention_heads * config.value_dim
    key_heads = config.num_attention_heads if latent else config.num_key_value_heads
    keys, values = key_heads * config.query_dim, key_heads * config.value_dim
    before = 2 * width  # what the norm and the projections read
    if latent:
        # Latents before and after their norms; the rotated part of the key lies beside the latent.
        before += 2 * config.q_lora_rank + 2 * config.kv_lora_rank + config.qk_rope_head_dim
    elif config.qk_norm:
        before += query + keys  # as the norms read them
    # Queries, keys, values, what came out, and one float32 normaliser a head, which a CPU does without.
    attention = query + keys + values + value + (2 * config.num_attention_heads if compiled else 0)
    if compiled and config.value_dim < config.query_dim:
        # A GPU's kernels want values as wide as keys; what came out is kept as wide, and once more without the rest.
        attention += config.num_attention_heads * (2 * config.query_dim - config.value_dim)
    return Kept(before, attention, 2 * width + _feed_forward(config, layer, compiled))


@cache
def kept_by_blocks(config: ModelConfig, compiled: bool) -> tuple[Kept, ...]:
    return tuple(kept(config, layer, compiled) for layer in range(config.cache_layers))


def _feed_forward(config: ModelConfig, layer: int, compiled: bool) -> int:
    hidden = 3 if compiled else 4  # gate, up, their product; on a CPU the gate after its nonlinearity too
    if not config.sparse(layer):
        return hidden * config.intermediate_size
    # Of each visit the expert's input and its output; and the places that tokens are sorted to (int64).
    visit = 2 * config.hidden_size + hidden * config.moe_intermediate_size
    places = 6 * config.num_experts_per_tok
    shared = hidden * config.n_shared_experts * config.moe_intermediate_size
    scores = config.num_experts + (2 * config.hidden_size if compiled else 0)  # the router reads float32
    return config.num_experts_per_tok * visit + places + shared + scores


def probabilities(config: ModelConfig, tokens: int, sequence: int) -> int:
    """Attention probabilities that one block keeps on a CPU: those of short sequences."""
    sequence = min(sequence, tokens)
    if tokens * config.num_attention_heads * sequence > MOST_PROBABILITIES:
        return 0
    rounds = range(QUERIES, sequence + QUERIES, QUERIES)
    seen = sum(min(end, sequence) * (min(end, sequence) - end + QUERIES) for end in rounds)
    return config.num_attention_heads * seen * (tokens // sequence)
