"""The optimiser of learn/optim.py over rows: each rank moves those that it holds.

AdamW acts on every entry by itself, so rows are enough. Muon needs whole matrices: each is put together from all ranks,
one at a time, and every rank takes its own rows of the update.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from etude.core.settings import OptimSettings
from etude.learn.optim import Optimiser
from etude.learn.parallel.hsdp import Shard
from etude.model.lora_linear import ADAPTER
from etude.model.matrices import fast, is_matrix, orthogonal, slices


class ShardOptimiser:
    """`parameters` are the rows of each trained weight on this rank, whose `grad` the caller sets before a step."""

    def __init__(self, shards: Mapping[str, Shard], settings: OptimSettings, heads: Mapping[str, int]) -> None:
        self.shards, self.heads = dict(shards), heads
        self.parameters = {name: nn.Parameter(held.local) for name, held in shards.items()}
        matrices = [name for name, p in self.parameters.items() if is_matrix(name, p)]
        self.muon = [n for n in matrices if settings.matrices == "muon" and not n.endswith(ADAPTER)]
        self.momentum = {name: torch.zeros_like(self.parameters[name].data) for name in self.muon}
        others = {name: p for name, p in self.parameters.items() if name not in self.momentum}
        self.rowwise = Optimiser(others, replace(settings, matrices="adamw"), heads)
        self._settings = settings

    @property
    def settings(self) -> OptimSettings:
        return self._settings

    @settings.setter
    def settings(self, settings: OptimSettings) -> None:
        self._settings, self.rowwise.settings = settings, replace(settings, matrices="adamw")

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """One update from the gradients, at `rate` times the peak learning rates; together with all other ranks."""
        self.rowwise.step(rate)
        lr, momentum = self.settings.muon_lr * rate, self.settings.momentum
        for name in self.muon:
            gradient, held, mean = self.parameters[name].grad, self.shards[name], self.momentum[name]
            if gradient is None:
                continue
            mean.lerp_(gradient, 1 - momentum)
            update = held.whole(gradient.lerp(mean, momentum))  # Nesterov
            parts_BMN = slices(name, update, self.heads)
            longer = parts_BMN.shape[-1]
            parts_BMN.copy_(orthogonal(fast(parts_BMN)))
            weight = self.parameters[name].data
            weight.mul_(1 - lr * self.settings.weight_decay)
            # as in optim.py: an RMS of 0.2 whatever the shape
            weight.add_(update[held.start : held.stop], alpha=-lr * 0.2 * longer**0.5)

    def state(self) -> dict[str, Tensor]:
        """As that of one rank's optimiser, with this rank's rows of each tensor."""
        return {f"momentum.{name}": tensor for name, tensor in self.momentum.items()} | self.rowwise.state()
