"""A group's terms: what every rollout of a group is told alike, fixed when the group is admitted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Terms:
    """Written to the journal with the group and to every rollout file of it."""

    effort: str = ""  # a level of `harness.effort`; empty: the prompt states none
    edition: int = 0  # of the run's settings that may change while it runs (`live.toml`)


NO_TERMS = Terms()  # of a rollout that belongs to no group
