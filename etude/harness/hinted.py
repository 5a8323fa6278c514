"""A hint above one sampled turn, as tokens: what a teacher sees where the student saw none."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Hinted:
    """The teacher's tokens are ids[:at] + inserted + ids[start:end] of one segment's ids."""

    site: int  # place in the rollout's sites
    segment: int
    at: int  # where the hint stands: what is before it is unchanged
    inserted: tuple[int, ...]
    start: int  # the sampled turn
    end: int
