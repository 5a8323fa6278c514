"""What steps of the engine took, as sums from which least squares find the parts of a step.

A row of metrics is of a hundred steps or more, whose means hardly differ from one row to the next: they do not say what
a step takes beside its rows. The steps themselves do, as a batch is sometimes full and sometimes nearly empty.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class StepCosts:
    """Sums over all steps: of seconds, and of products of seconds, rows that sampled and tokens of prompts."""

    step_seconds: float = 0.0
    seconds_rows: float = 0.0
    seconds_prompts: float = 0.0
    rows_rows: int = 0
    rows_prompts: int = 0
    prompts_prompts: int = 0

    def add(self, seconds: float, rows: int, prompts: int) -> None:
        """One step, in processor seconds of its thread."""
        self.step_seconds += seconds
        self.seconds_rows += seconds * rows
        self.seconds_prompts += seconds * prompts
        self.rows_rows += rows * rows
        self.rows_prompts += rows * prompts
        self.prompts_prompts += prompts * prompts
