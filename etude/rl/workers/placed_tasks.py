"""Where rollout workers find the tasks that they are asked for: tasks that have no folder of their own get one.

A folder stays while a rollout of its task is under way, however long that takes: a worker that is started again reads
it once more. Of the others the ones used last are kept, and no more than a run needs. Knows no worker and no rollout.
"""

from __future__ import annotations

import shutil
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from etude.rl.workers.messages import TaskPlace
from etude.rollout.store import TASKS, keep_task
from etude.tasks.format.task import Task

KEPT = 1024  # tasks: those of groups that wait for a retry or an evaluation, and far more


class PlacedTasks:
    def __init__(self, root: Path, most: int = KEPT) -> None:
        self.root, self.most = root, most
        self._places: OrderedDict[str, TaskPlace] = OrderedDict()
        self._users: Counter[str] = Counter()

    @contextmanager
    def use(self, task: Task) -> Iterator[TaskPlace]:
        digest = task.digest
        if digest not in self._places:
            self._places[digest] = TaskPlace(**keep_task(task, self.root).model_dump())
        # A source may give a task again just before it would be the oldest one.
        self._places.move_to_end(digest)
        self._users[digest] += 1
        try:
            yield self._places[digest]
        finally:
            self._users[digest] -= 1
            if not self._users[digest]:
                del self._users[digest]
            self._trim()

    def _trim(self) -> None:
        unused = (digest for digest in list(self._places) if digest not in self._users)
        while len(self._places) > self.most and (digest := next(unused, "")):
            if self._places.pop(digest).directory is None:
                shutil.rmtree(self.root / TASKS / digest, ignore_errors=True)
