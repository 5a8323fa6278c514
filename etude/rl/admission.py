"""Who may begin and who is trained next, so that no token is ever more than so many steps old when it is trained.

Steps are counted by the learner: `begun` is how many it has begun, so the next batch trains the weights of step
`begun`. A group that began with the weights of step b may be trained at any step up to b + staleness. Work is never
dropped: a group begins only where even the last place in the queue is early enough, and the learner waits for an old
group rather than let it grow too old. Pure arithmetic; knows no rollout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Waiting:
    """A group that is not yet trained."""

    number: int
    began: int
    ready: bool


@dataclass(frozen=True)
class Admission:
    staleness: int  # most steps between the weights that began a group and those that it trains
    groups: int  # in a step
    steps: int  # in all

    def may_begin(self, waiting: int, begun: int, published: int) -> bool:
        """Whether one more group may begin with the `published` weights while so many are `waiting` to be trained."""
        # No more groups than the remaining steps can train: nothing that was finished is dropped.
        missing = self.groups * (self.steps - begun)
        # Places in the queue that are trained before a group that begins now would be too old.
        in_time = self.groups * (published + self.staleness - begun + 1)
        return waiting < min(missing, in_time)

    def choose(self, waiting: Sequence[Waiting], begun: int, *, last: bool = False) -> list[int] | None:
        """The numbers of the groups that the next step trains, or None while it has to wait.

        `last`: nobody else will come, so the rest is trained as soon as all of it is ready.
        """
        ordered = sorted(waiting, key=_age)
        ready = [group for group in ordered if group.ready]
        if len(ready) < self.groups and not (last and ready and len(ready) == len(ordered)):
            return None
        batch = ready[: self.groups]
        chosen = {group.number for group in batch}
        rest = [group for group in ordered if group.number not in chosen]
        # An older group is left behind. If it could not be trained in time after that, the step waits for it.
        passed_over = any(not group.ready and _age(group) < _age(batch[-1]) for group in rest)
        if passed_over and not self._in_time(rest, begun + 1):
            return None
        return [group.number for group in batch]

    def youngest(self, waiting: Sequence[Waiting]) -> tuple[int, int] | None:
        """The age of the last group that the next step would train; None where fewer are ready than a step has.

        While a step waits although enough are ready, only an older group than this that becomes ready, or one that
        leaves, can end the wait.
        """
        ready = sorted(_age(group) for group in waiting if group.ready)
        return ready[self.groups - 1] if len(ready) >= self.groups else None

    def _in_time(self, ordered: Sequence[Waiting], first: int) -> bool:
        """Whether all of these can be trained, oldest first from step `first` on, before they are too old."""
        return all(first + place // self.groups <= group.began + self.staleness for place, group in enumerate(ordered))


def _age(group: Waiting) -> tuple[int, int]:
    return group.began, group.number
