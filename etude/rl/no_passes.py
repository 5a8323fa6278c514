"""Says when training goes on without a single pass, and what helps: otherwise such a run is silent for hours."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

FIRST = 32  # groups: four steps of eight, and 256 rollouts of eight each; said again whenever that has doubled


class NoPasses:
    """Hears of trained groups; speaks while none of their rollouts has passed."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.groups = 0
        self.passed = False
        self._next = FIRST

    def heard(self, passes: Iterable[int]) -> str:
        """`passes` has the number of rollouts that passed, for each group of a step. A sentence, or nothing."""
        for number in passes:
            self.groups += 1
            self.passed = self.passed or number > 0
        if self.passed or self.groups < self._next:
            return ""
        self._next = 2 * self.groups
        return (
            f"no rollout of the first {self.groups} groups passed. What helps: "
            "easier tasks (or rl.tasks.begin=detailed, which says more), fine-tuning on demonstrations before "
            "(etude sft), a stronger rl.model, more room (harness.limits); "
            f"`etude rollouts {self.run} --only failed` shows what goes wrong"
        )
