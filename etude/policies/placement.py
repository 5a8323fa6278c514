"""Which of several engines samples a rollout: its group's, unless that has much more to do than another or is leaving.

What the rollouts of a group share is in one engine's prefix cache, so they stay together; a new group goes where fewest
rollouts are. Engines may come and go. Knows names and counts only: the simulator of `etude plan` runs this code too.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from etude.core.errors import EtudeError

N = TypeVar("N", bound=Hashable)  # what an engine is called

UNEVEN = 2.0  # times the mean of rollouts in flight, from which on a group's next rollout goes elsewhere
SPARE = 16  # rollouts more than the mean that are never too many: a group must not be torn apart
KEPT = 65_536  # groups that are remembered, more than are in flight


class Placement(Generic[N]):
    def __init__(self, names: Iterable[N]) -> None:
        self.in_flight: dict[N, int] = dict.fromkeys(names, 0)
        self._leaving: Counter[N] = Counter()  # rollouts that are still with engines that get no others
        self._of_group: OrderedDict[str, N] = OrderedDict()
        # Engines by how many rollouts they have: the emptiest of thousands is found without a look at all of them.
        self._levels: dict[int, OrderedDict[N, None]] = {}
        for name in self.in_flight:
            self._levels.setdefault(0, OrderedDict())[name] = None
        self._least = 0
        self._total = 0

    def begin(self, group: str) -> N:
        """The engine of one more rollout of `group`, which `end` has to be told of."""
        if not self.in_flight:
            raise EtudeError("no engine is left to sample from")
        name = self._of_group.get(group)
        if name is None or name not in self.in_flight or self._too_many(name):
            name = self._emptiest()
        self._of_group[group] = name
        self._of_group.move_to_end(group)
        if len(self._of_group) > KEPT:
            self._of_group.popitem(last=False)
        self._move(name, 1)
        return name

    def end(self, name: N) -> None:
        if name in self.in_flight:
            self._move(name, -1)
        elif self._leaving[name] > 1:
            self._leaving[name] -= 1
        else:
            del self._leaving[name]

    def moved(self, name: N, group: str) -> N:
        """Where a rollout goes on that was with `name`: there, or elsewhere if that engine is leaving."""
        if name in self.in_flight:
            return name
        other = self.begin(group)
        self.end(name)
        return other

    def add(self, name: N) -> None:
        """An engine more. The next groups go to it, as it has nothing to do."""
        if name in self.in_flight:
            raise EtudeError(f"engine {name} is there already")
        self.in_flight[name] = self._leaving.pop(name, 0)
        self._total += self.in_flight[name]
        self._levels.setdefault(self.in_flight[name], OrderedDict())[name] = None
        self._least = min(self._least, self.in_flight[name])

    def remove(self, name: N) -> None:
        """No further turn goes to this engine; rollouts leave it at their next one."""
        if name not in self.in_flight:
            raise EtudeError(f"there is no engine {name}")
        if len(self.in_flight) == 1:
            raise EtudeError(f"engine {name} is the only one, and nobody could sample without it")
        count = self.in_flight.pop(name)
        del self._levels[count][name]
        self._total -= count
        if count:
            self._leaving[name] = count

    def leaving(self, name: N) -> int:
        """How many rollouts are still with an engine that was removed."""
        return self._leaving[name]

    # Inside

    def _too_many(self, name: N) -> bool:
        mean = self._total / len(self.in_flight)
        return self.in_flight[name] > max(UNEVEN * mean, mean + SPARE)

    def _emptiest(self) -> N:
        while not self._levels.get(self._least):
            self._levels.pop(self._least, None)
            self._least += 1
        return next(iter(self._levels[self._least]))

    def _move(self, name: N, change: int) -> None:
        count = self.in_flight[name]
        del self._levels[count][name]
        self.in_flight[name] = count + change
        self._levels.setdefault(count + change, OrderedDict())[name] = None
        self._total += change
        self._least = min(self._least, count + change)
