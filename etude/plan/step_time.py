"""How long one optimiser step takes: what a rank computes, what it waits for, and the utilisation that comes of it.

Traffic that goes on beside computing costs only what is longer than that; the rest adds up.
"""

from __future__ import annotations

from dataclasses import dataclass

from etude.learn.parallel.layout import Layout
from etude.plan.activations import kept_by_blocks
from etude.plan.machines import Machine
from etude.plan.memory import slices
from etude.plan.traffic import Flow, traffic
from etude.plan.workload import WEIGHT, Workload, attention_flops, counts

NEWTON_SCHULZ = 5  # steps of Muon, as in model/matrices.py


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step, by part. `hidden` is traffic beside computing: only what outlasts it counts."""

    products: float
    experts: float
    attention: float
    memory: float  # passes over activations and weights, which the device's memory bounds
    optimiser: float
    hidden: float
    exposed: float
    flows: tuple[Flow, ...]
    micro_batches: int
    tokens: int  # of the step
    model_flops: float  # of the step, as utilisation counts them
    peak: float  # FLOP/s of all ranks

    @property
    def computing(self) -> float:
        return self.products + self.experts + self.attention + self.memory

    @property
    def seconds(self) -> float:
        return max(self.computing, self.hidden) + self.exposed + self.optimiser

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    @property
    def mfu(self) -> float:
        return self.model_flops / self.seconds / self.peak

    def waits(self) -> dict[str, float]:
        """What a layout can lose time to, by name."""
        found = {f"{flow.purpose} over {_wire(flow)}": flow.seconds for flow in self.flows if not flow.hidden}
        beside = max((flow for flow in self.flows if flow.hidden), key=lambda flow: flow.seconds, default=None)
        if beside is not None and self.hidden > self.computing:
            found[f"{beside.purpose} over {_wire(beside)}"] = self.hidden - self.computing
        return found | {"computing": self.computing, "the optimiser": self.optimiser}


def _wire(flow: Flow) -> str:
    return "the network" if flow.network else "links"


def step_time(work: Workload, layout: Layout, machine: Machine) -> StepTime:
    shares, config = machine.shares, work.config
    micro_batches = max(1, -(-work.batch_tokens // (work.micro_tokens * layout.data)))
    # Of all micro-batches; the last is full only on some ranks, and the others wait for those.
    tokens = micro_batches * work.micro_tokens / layout.context
    peak = machine.flops[work.precision]
    plain = machine.flops["bfloat16" if work.precision == "fp8" else work.precision]
    # Forward, the input's gradient, the weight's gradient; forward again where blocks are recomputed.
    times = 2 * (2 if work.lora else 3)
    again = 2 if work.recompute else 0
    routed = counts(config).visited
    head = config.vocab_size * config.hidden_size
    blocks = counts(config).active - routed - head * (1 if config.tie_word_embeddings else 2)
    if config.latent and layout.context > 1:
        # Keys and values of the whole sequence are made from its latents on every rank.
        up = config.num_attention_heads * (config.qk_nope_head_dim + config.v_head_dim) * config.kv_lora_rank
        blocks += (layout.context - 1) * up * config.cache_layers
    eight = work.precision == "fp8"
    rate = peak * (shares.products_fp8 if eight else shares.products)
    products = tokens * ((times + again) * blocks / rate + times * head / (plain * shares.products))
    visited = tokens * (times + again) * routed / (plain * shares.grouped)
    attention = tokens * 3 * attention_flops(config, work.sequence) / (plain * shares.attention)
    if work.gpu:  # values are as wide as keys for its kernels (model/attention.py)
        attention *= 2 * config.query_dim / (config.query_dim + config.value_dim)
    flows = traffic(work, layout, machine, micro_batches)
    return StepTime(
        products=products,
        experts=visited,
        attention=attention,
        memory=_passes(work, layout, machine, tokens, micro_batches),
        optimiser=_optimiser(work, layout, machine),
        hidden=sum(flow.seconds for flow in flows if flow.hidden),
        exposed=sum(flow.seconds for flow in flows if not flow.hidden),
        flows=tuple(flows),
        micro_batches=micro_batches,
        tokens=work.batch_tokens,
        model_flops=work.flops * work.batch_tokens,
        peak=plain * layout.ranks,
    )


def _passes(work: Workload, layout: Layout, machine: Machine, tokens: float, micro_batches: int) -> float:
    """What is bound by the device's memory: activations, logits, and weights rounded and gradients added."""
    config, shares = work.config, machine.shares
    numbers = 0.0
    for layer, kept in enumerate(kept_by_blocks(config, work.gpu)):
        visits = 0
        if config.sparse(layer):
            visits = config.num_experts_per_tok * (2 * config.hidden_size + 3 * config.moe_intermediate_size)
        numbers += shares.passes * (kept.whole - visits) + shares.visits * visits
    if work.recompute:
        numbers *= 4 / 3
    logits = 4 * WEIGHT * config.vocab_size  # written, normalised, and their gradient written and read
    # Each rank rounds what it will send; it adds gradients to what it holds of them.
    weights = (WEIGHT + work.number) * work.parameters + (2 * WEIGHT + work.number) * work.trained
    moved = tokens * (work.number * numbers + logits) + micro_batches * weights / layout.sharing
    return moved / (machine.bandwidth * shares.bandwidth)


def _optimiser(work: Workload, layout: Layout, machine: Machine) -> float:
    """Weights, gradients and moments read and written; and Muon's products."""
    shares = machine.shares
    moved = 7 * WEIGHT * work.trained / layout.sharing / (machine.bandwidth * shares.bandwidth)
    if work.lora or work.matrices == "adamw":
        return moved
    plain = machine.flops["bfloat16" if work.gpu else "float32"]
    # Each step of Newton-Schulz: x x', its square, and the product with x.
    shapes = slices(work.config).items()
    flops = sum(NEWTON_SCHULZ * (4 * short + 2 * short * short / long) * count for (short, long), count in shapes)
    return moved + flops / layout.sharing / (plain * shares.products)
