"""The optimiser of learn/optim.py over rows: each rank moves those that it holds.

AdamW acts on every entry by itself, so rows are enough. Muon needs whole matrices, which owners put together (muon.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from etude.core.settings import OptimSettings
from etude.learn.optim import Optimiser
from etude.learn.parallel.hsdp import Shard
from etude.learn.parallel.muon import ShardedMuon, division


class ShardOptimiser(Optimiser):
    """`parameters` are the rows of each trained weight on this rank, whose `grad` the caller sets before a step.

    A step is taken together with all other ranks.
    """

    def __init__(self, shards: Mapping[str, Shard], settings: OptimSettings, heads: Mapping[str, int]) -> None:
        self.shards = dict(shards)
        rows = {name: nn.Parameter(held.local) for name, held in shards.items()}
        divisions = {name: division(held.parameter) for name, held in shards.items()}
        super().__init__(rows, settings, heads, ShardedMuon(divisions, heads))
