"""Finished rollouts that wait for the learner: in memory up to a budget, the others only where the journal keeps them.

Every finished rollout is on the disk anyway, as a row of the journal or as a file. When those in memory take more than
the budget, the youngest groups' are let go of first, since they are trained last, and read again when their group is
taken. Of one that was let go of only the reward stays, by which groups without signal are found.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Sequence

from etude.core.errors import EtudeError
from etude.rl.groups import Rollout, RolloutGroup, Slot, unpack
from etude.rl.rollout_files import RolloutFile, RolloutFiles

Place = tuple[int, int]  # number of a group, and slot


class ReadyRollouts:
    """`find` says where the journal has a rollout: its bytes, or a file."""

    def __init__(
        self, budget: int, files: RolloutFiles, find: Callable[[int, int], bytes | RolloutFile | None]
    ) -> None:
        self.budget, self._files, self._find = budget, files, find
        self.bytes = 0  # of those in memory
        self.spilled = 0  # how many were let go of so far
        self._held: dict[Place, tuple[Slot, int]] = {}
        self._youngest: list[Place] = []  # a heap of negative numbers; entries of rollouts that left are passed over

    def hold(self, number: int, index: int, slot: Slot) -> None:
        """One more, which is in the journal already."""
        assert slot.rollout is not None
        size = size_of(slot.rollout)
        self._held[number, index] = slot, size
        self.bytes += size
        heapq.heappush(self._youngest, (-number, -index))
        while self.bytes > self.budget and self._youngest:
            latest, place = heapq.heappop(self._youngest)
            if (gone := self._leave((-latest, -place))) is not None and gone.rollout is not None:
                gone.reward, gone.rollout = gone.rollout.reward, None
                self.spilled += 1

    async def take(self, groups: Sequence[RolloutGroup]) -> None:
        """These are the learner's from now on: all of their rollouts are in memory."""
        for group in groups:
            for index, slot in enumerate(group.slots):
                self._leave((group.number, index))
                if slot.state == "ready" and slot.rollout is None:
                    slot.rollout = await self._read(group.number, index)

    def drop(self, group: RolloutGroup) -> None:
        """It will not be trained."""
        for index in range(len(group.slots)):
            self._leave((group.number, index))

    def _leave(self, place: Place) -> Slot | None:
        slot, size = self._held.pop(place, (None, 0))
        self.bytes -= size
        return slot

    async def _read(self, number: int, index: int) -> Rollout:
        kept = self._find(number, index)
        if kept is None:
            raise EtudeError(f"the journal has lost rollout {index} of group {number}")
        if isinstance(kept, bytes):
            return unpack(kept)
        try:
            # In a thread: a file may have 190 MB.
            return await asyncio.to_thread(lambda: unpack(self._files.read(kept)))
        except EtudeError as damaged:
            again = "run the same command again, which samples it anew"
            raise EtudeError(f"rollout {index} of group {number} waited on the disk: {damaged}; {again}") from None


def size_of(rollout: Rollout) -> int:
    """Bytes of its arrays, which are nearly all of it."""
    columns = ("ids_T", "sampled_T", "logprob_T", "version_T2", "experts_TBK", "spans_S5")
    arrays = (getattr(trace, name) for trace in rollout.traces for name in columns)
    return sum(array.nbytes for array in arrays if array is not None)
