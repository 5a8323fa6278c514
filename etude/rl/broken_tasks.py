"""What becomes of a task that the monitor calls broken: the source gives it no more, unless the reference solves it.

The monitor goes by what an agent did and saw, and an agent can be wrong, or make things look so; a reference that the
grader accepts shows that the task can be solved as asked. Knows neither the monitor nor the grader.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from etude.forge.curriculum.sources import Quarantines, TaskSource
from etude.rollout.rollout import Scored
from etude.tasks.format.task import Task


class BrokenTasks:
    def __init__(
        self, source: TaskSource, solvable: Callable[[Task], Awaitable[bool | None]], say: Callable[[str], None]
    ) -> None:
        self.source, self.solvable, self.say = source, solvable, say
        self.settled: set[str] = set()  # tasks of which it is known

    async def __call__(self, number: int, outcome: Scored) -> None:
        """An attempt at the source's task `number` was ruled to show that it is broken."""
        name, ruling = outcome.task.name, outcome.ruling
        if ruling is None or name in self.settled:
            return
        why = next(finding.message for finding in ruling.findings if finding.level == "broken task")
        fine = await self.solvable(outcome.task)
        if fine is None or name in self.settled:  # nobody knows, or another attempt settled it meanwhile
            return
        self.settled.add(name)
        if fine:
            self.say(f"rl: the task {name} looked broken ({why}), but its reference solves it")
            return
        if isinstance(self.source, Quarantines):
            self.source.broken(number, why)
        self.say(f"rl: the task {name} is broken and asked no more: {why}")
