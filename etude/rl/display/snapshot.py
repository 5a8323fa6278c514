"""How things stand between two steps: rollouts by state, voids, evaluations.

Only reads what the loop has anyway; knows no terminal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from etude.rl.groups import RolloutGroup


@dataclass(frozen=True)
class Snapshot:
    states: Mapping[str, int] = field(default_factory=dict)  # rollouts of groups that are not yet trained
    in_flight: int = 0
    places: int = 0  # most rollouts in flight
    voids: Mapping[str, int] = field(default_factory=dict)  # by whose failure it was, and "group"
    evaluations: tuple[tuple[int, float], ...] = ()  # (step, pass rate), in order
    stopping: bool = False


class Dispatching(Protocol):
    """What of the dispatcher is looked at."""

    groups: dict[int, RolloutGroup]
    voids: Counter[str]

    @property
    def in_flight(self) -> int: ...


def snapshot(
    dispatcher: Dispatching, places: int, evaluations: Mapping[str, Mapping[str, float]], stopping: bool
) -> Snapshot:
    states: Counter[str] = Counter(slot.state for group in dispatcher.groups.values() for slot in group.slots)
    rates = sorted((int(step), row["pass_rate"]) for step, row in evaluations.items())
    return Snapshot(states, dispatcher.in_flight, places, dict(dispatcher.voids), tuple(rates), stopping)
