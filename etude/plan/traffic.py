"""Bytes that one rank moves over each wire in a step, for what, and how long that takes.

A wire is a link inside a node or the network between nodes. Ranks are numbered with those that compute one sequence
together innermost, then those that share a copy, then copies; experts are divided over neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass

from etude.learn.parallel.layout import Layout
from etude.plan.machines import BEGIN, HOP_LINK, HOP_NETWORK, Machine
from etude.plan.memory import slices
from etude.plan.workload import WEIGHT, Workload


@dataclass(frozen=True)
class Flow:
    """One kind of traffic of a rank in a step."""

    purpose: str
    link: float  # bytes inside the node
    network: float  # bytes between nodes
    seconds: float
    hidden: bool  # whether it goes on while the rank computes


@dataclass(frozen=True)
class RankGroup:
    """Ranks that talk to each other: how many, and how far apart their numbers are."""

    size: int
    stride: int

    def in_node(self, machine: Machine) -> int:
        return min(self.size, max(1, machine.devices // self.stride))

    def nodes(self, machine: Machine) -> int:
        return -(-self.size // self.in_node(machine))


def gather(group: RankGroup, whole: float, times: int, machine: Machine) -> tuple[float, float, float]:
    """Every rank gets `whole` bytes put together from all, or sums of them the other way: (link, network, seconds)."""
    if group.size == 1 or not whole:
        return 0.0, 0.0, 0.0
    inside, nodes = group.in_node(machine), group.nodes(machine)
    link = whole * (group.size - 1) / group.size if inside > 1 else 0.0
    # What comes from other nodes enters once, divided over the ports of the node's members.
    network = whole * (nodes - 1) / nodes / inside
    hops = BEGIN + (group.size - nodes) * HOP_LINK + (nodes - 1) * HOP_NETWORK
    seconds = max(link / machine.link, network / machine.network) + hops
    return times * link, times * network, times * seconds


def exchange(group: RankGroup, sent: float, times: int, machine: Machine) -> tuple[float, float, float]:
    """Every rank sends each other one its own part of `sent` bytes: (link, network, seconds)."""
    if group.size == 1 or not sent:
        return 0.0, 0.0, 0.0
    inside, nodes = group.in_node(machine), group.nodes(machine)
    link, network = sent * (inside - 1) / group.size, sent * (group.size - inside) / group.size
    hops = BEGIN + (HOP_NETWORK if nodes > 1 else HOP_LINK)
    return times * link, times * network, times * (max(link / machine.link, network / machine.network) + hops)


def traffic(work: Workload, layout: Layout, machine: Machine, micro_batches: int) -> list[Flow]:
    config, blocks = work.config, work.config.cache_layers
    sharing, owners = RankGroup(layout.sharing, 1), RankGroup(layout.sharing // layout.expert, layout.expert)
    copies = RankGroup(layout.replicate, layout.sharing)
    sparse = len([n for n in range(blocks) if config.sparse(n)])
    dense, experts = work.parameters - work.expert_parameters, work.expert_parameters
    tokens = -(-work.micro_tokens // layout.context)
    flows = []

    def add(purpose: str, moved: tuple[float, float, float], hidden: bool) -> None:
        if moved[2]:
            flows.append(Flow(purpose, *moved, hidden))

    # Weights of a block are put together for the forward pass, and again for the backward pass, as float32 masters.
    rounds = 2 * micro_batches
    add("weights", gather(sharing, WEIGHT * dense / blocks, rounds * blocks, machine), True)
    own = WEIGHT * experts / layout.expert / max(1, sparse)
    add("experts' weights", gather(owners, own, rounds * sparse, machine), True)
    if not work.lora:
        add("gradients", gather(sharing, WEIGHT * dense / blocks, micro_batches * blocks, machine), True)
        add("experts' gradients", gather(owners, own, micro_batches * sparse, machine), True)
    # Sums over the copies of the model: out and back, once a step.
    add("gradients of copies", gather(copies, WEIGHT * work.trained / layout.sharing, 2, machine), False)
    if layout.expert > 1 and sparse:
        # To the experts and back; the same backward; to them once more where blocks are computed again.
        visits = work.number * tokens * config.num_experts_per_tok * config.hidden_size
        times = (6 if work.recompute else 4) * sparse * micro_batches
        add("tokens to experts", exchange(RankGroup(layout.expert, 1), visits, times, machine), False)
    if layout.context > 1:
        planes, heads, dims = config.cache_shape
        state = work.number * tokens * layout.context * planes * heads * dims
        times = (3 if work.recompute else 2) * blocks * micro_batches
        add("keys and values", gather(RankGroup(layout.context, 1), state, times, machine), False)
    if work.matrices == "muon" and not work.lora:
        # Each matrix goes to the rank that moves it, and its update back, in bfloat16 on a GPU. Experts lie whole.
        number = 2 if work.gpu else WEIGHT
        matrices = number * (sum(slices(config).values()) - experts) / layout.sharing
        add("matrices for Muon", exchange(sharing, matrices, 2, machine), False)
    return flows
