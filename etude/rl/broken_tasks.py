"""What becomes of a task that the audit calls broken: the source gives it no more, unless the reference solves it.

The audit goes by what an agent did and saw, and an agent can be wrong, or make things look so; a reference that the
grader accepts shows that the task can be solved as asked. Knows neither the audit nor the grader.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from etude.forge.curriculum.sources import Quarantines, TaskSource
from etude.rollout.rollout import Scored
from etude.tasks.format.task import Task


@dataclass(frozen=True)
class BrokenTasks:
    source: TaskSource
    log: Callable[[str], None]
    settled: set[str] = field(default_factory=set)  # tasks of which it is known

    async def check(self, number: int, scored: Scored, solvable: Callable[[Task], Awaitable[bool | None]]) -> None:
        """A rollout of the source's task `number` was ruled to show that the task is broken."""
        if scored.ruling is not None:
            await self.settle(number, scored.task, broken_because(scored), solvable)

    async def settle(
        self, number: int, task: Task, why: str, solvable: Callable[[Task], Awaitable[bool | None]]
    ) -> None:
        """The source's task `number` seems to be broken."""
        name = task.name
        if name in self.settled:
            return
        fine = await solvable(task)
        if fine is None or name in self.settled:  # nobody knows, or another rollout settled it meanwhile
            return
        self.settled.add(name)
        if fine:
            self.log(f"rl: the task {name} looked broken ({why}), but its reference solves it")
            return
        if isinstance(self.source, Quarantines):
            self.source.broken(number, why)
        self.log(f"rl: the task {name} is broken and asked no more: {why}")


def broken_because(scored: Scored) -> str:
    """Why a rollout's audit calls its task broken; empty if it does not."""
    findings = scored.ruling.findings if scored.ruling is not None else ()
    return next((finding.message for finding in findings if finding.level == "broken task"), "")
