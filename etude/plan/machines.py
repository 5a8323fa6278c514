"""Machines that a layout is planned for: what a device computes, holds and moves, and how devices are joined.

Rates are the makers' own figures; `Shares` says how much of them training here reaches, fitted to steps that were
measured. A machine of your own is one more line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from etude.core.errors import EtudeError

GIB = 2**30


@dataclass(frozen=True)
class Shares:
    """Shares of a device's rates that the learner reaches.

    Fitted to five steps of one H200 in docs/log/2026-11.md (0.6B at 16k and at 256k, 4B in bf16 and FP8, experts), so
    they say nothing yet about machines with other ratios. Products alone reach more: 0.79 of the peak at 8192^3.
    `visits` is of 2026-11-18 (`h200_train.py moe`, 0.54 s a step): experts have become faster since the first fit.
    """

    products: float = 0.66
    products_fp8: float = 0.53
    grouped: float = 0.54  # experts' products: 0.65 alone, lowered as the others are
    attention: float = 0.46  # forward and backward
    bandwidth: float = 0.80
    passes: float = 5.0  # over each number that is kept for the backward pass: written, read, and its gradient
    visits: float = 12.0  # over each number of a visit to an expert: sorted and brought back both ways


@dataclass(frozen=True)
class Machine:
    """A node of `devices`, and as many nodes as a layout needs. Rates are of one device, in one direction."""

    name: str
    about: str
    devices: int
    memory: int  # bytes of a device
    flops: Mapping[str, float]  # by precision, of dense products
    bandwidth: float  # bytes/s of its memory
    link: float  # bytes/s to the other devices of its node
    network: float  # bytes/s to other nodes
    spare: float = 0.08  # of the memory, for the library's workspace and what fragments
    shares: Shares = field(default_factory=Shares)

    @property
    def usable(self) -> int:
        return int(self.memory * (1 - self.spare))

    @property
    def gpu(self) -> bool:
        return "bfloat16" in self.flops


# NVIDIA's data sheets of H100 SXM and H200 SXM: 1,979 TFLOP/s in bfloat16 and 3,958 in FP8 with sparsity, so half of
# that for dense products; 67 in float32; NVLink 900 GB/s in both directions together. DGX H100 and H200: one port of
# 400 Gbit/s (ConnectX-7) for each GPU.
HOPPER = MappingProxyType({"bfloat16": 989.5e12, "fp8": 1979e12, "float32": 67e12})

CPU = Shares(products=0.73, grouped=0.6, attention=0.5, bandwidth=0.29, visits=5.0)

MACHINES = {
    machine.name: machine
    for machine in (
        Machine("h200-8", "8 H200 SXM, InfiniBand 400G each", 8, 141 * 10**9, HOPPER, 4.8e12, 450e9, 50e9),
        Machine("h100-8", "8 H100 SXM, InfiniBand 400G each", 8, 80 * 10**9, HOPPER, 3.35e12, 450e9, 50e9),
        # One core of the "2-core CPU" of docs/log, one thread: benchmarks/scale/plan_memory.py --machine gives 0.09 to
        # 0.10 TFLOP/s and 22 GB/s. Its shares are fitted to the steps of that script. Wires between ranks are copies
        # through memory at a guess; there is no network.
        Machine("cpu", "one core of a server CPU a rank", 2, 12 * GIB, {"float32": 0.1e12}, 22e9, 5e9, 5e9, shares=CPU),
    )
}

# Of NCCL's own model of its rings (graph/tuning.cc, protocol Simple): seconds to begin, and of a hop on each wire.
BEGIN, HOP_LINK, HOP_NETWORK = 8.4e-6, 3.4e-6, 14e-6


def find_machine(name: str) -> Machine:
    if name not in MACHINES:
        from etude.core.recipe import hint  # needs pydantic, which a machine that only measures may lack

        known = ", ".join(f"{machine.name} ({machine.about})" for machine in MACHINES.values())
        raise EtudeError(f"no machine is called {name!r}{hint(name, list(MACHINES))}; known: {known}")
    return MACHINES[name]
