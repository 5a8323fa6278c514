"""RLOO: each rollout against the mean of the others, so that its own reward is no part of its baseline."""

from __future__ import annotations

from collections.abc import Sequence

from etude.rl.algorithms.base import Algorithm


class Rloo(Algorithm):
    def advantages(self, rewards: Sequence[float]) -> list[float]:
        if min(rewards) == max(rewards):
            return [0.0] * len(rewards)
        others = len(rewards) - 1
        return [reward - (sum(rewards) - reward) / others for reward in rewards]
