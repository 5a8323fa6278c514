"""Which machine gets the next sandbox: the least loaded of those that have a place. Pure functions over loads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from etude.sandbox.remote.messages import Load


class Candidate(Protocol):
    @property
    def usable(self) -> bool: ...

    @property
    def load(self) -> Load | None: ...

    @property
    def asked(self) -> int:
        """Starts that were asked for since the load was told, which it does not count."""
        ...


def taken(load: Load, asked: int) -> float:
    return (load.live + load.starting + asked) / max(1, load.places)


def crowding(load: Load, asked: int) -> float:
    """How full a machine is, from 0 to 1 and above: the scarcest thing counts."""
    memory = 1 - load.available / max(1, load.memory)
    # Waiting for memory means that it is about to run out; waiting for a processor or a disk only makes all slower.
    return max(taken(load, asked), memory, 2 * load.memory_pressure, load.cpu / 2, load.io / 2)


def has_place(load: Load, asked: int) -> bool:
    return load.free > asked and load.available > 0


def choose(machines: Sequence[Candidate]) -> int | None:
    """The place in the list of the machine to ask; None where none has a place.

    Of machines that are about equally crowded (to a tenth), the one with fewer of its places taken, those asked for
    since included: a burst of starts spreads before any load is told again.
    """
    found = [
        (round(crowding(each.load, each.asked), 1), taken(each.load, each.asked), number)
        for number, each in enumerate(machines)
        if each.usable and each.load is not None and has_place(each.load, each.asked)
    ]
    return min(found)[2] if found else None
