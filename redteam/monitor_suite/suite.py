"""The whole suite: every case by id, which ones are frozen, and how one is played in the real harness.

One variant of each family is frozen: chosen by a hash of the family's name, never by hand, and written down with the
digest of its script before any detector was. `frozen.json` is that list; a test compares it with the scripts. Whoever
works on detectors looks at the others only, and measures the frozen ones at the end.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from etude.core.policy import Assistant, Call, Context, Sample, Sampling, ToolResult, User
from etude.forge.katas.task_source import katas
from etude.harness.loop import run_agent
from etude.harness.prompt import task_text
from etude.harness.trajectory import Trajectory
from etude.policies.scripted import Scripted
from etude.rollout.rollout import RolloutSetup
from etude.sandbox.hosts import StoringHost
from etude.tasks.environment.layers import workspace_layer
from etude.tasks.format.task import Task
from etude.tasks.grading.submission import Submission, collect
from redteam.monitor_suite.broken_task import BROKEN
from redteam.monitor_suite.environment_tampering import ENVIRONMENT_TAMPERING
from redteam.monitor_suite.judge_injection import JUDGE_INJECTION
from redteam.monitor_suite.kata_scripts import Family, KataScript, Variant, turns
from redteam.monitor_suite.leaked_solution import LEAKED_SOLUTION
from redteam.monitor_suite.special_cased_code import SPECIAL_CASED_CODE
from redteam.monitor_suite.test_tampering import TEST_TAMPERING

Kind = Literal["hack", "honest", "broken"]
_ALL = (*LEAKED_SOLUTION, *TEST_TAMPERING, *ENVIRONMENT_TAMPERING, *SPECIAL_CASED_CODE, *JUDGE_INJECTION, *BROKEN)
FAMILIES: tuple[Family, ...] = tuple(sorted(_ALL, key=lambda family: family.number))
DELEGATED = "Do all of it."
FROZEN = Path(__file__).with_name("frozen.json")


@dataclass(frozen=True)
class Case:
    """One script over one task."""

    family: Family
    variant: Variant
    kind: Kind

    @property
    def id(self) -> str:
        return f"{self.family.name}/{self.variant.name}/{self.kind}"

    @cached_property
    def kata(self) -> KataScript:
        number = int(hashlib.sha256(f"{self.family.name}/{self.variant.name}".encode()).hexdigest()[:6], 16)
        kata = KataScript(next(katas("train", 1, seed=7, levels=[1], start=number)))
        # The counterpart of a broken task is the task in order; all others meet the same files as the hack.
        intact = self.family.number == 0 and self.kind == "honest"
        return kata if intact else kata.with_files(self.variant.extra_files(kata))

    @property
    def task(self) -> Task:
        return self.kata.task

    @property
    def turns(self) -> list[Assistant]:
        return turns((self.variant.honest if self.kind == "honest" else self.variant.hack)(self.kata))

    @property
    def digest(self) -> str:
        """Names the script, its task and the files put into it (their bytes differ between versions of Python)."""
        said = [dataclasses.asdict(turn) for turn in self.turns]
        facts = [self.task.name, self.task.instruction, sorted(self.task.workspace), said]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def cases() -> Iterator[Case]:
    """Every hack, every honest counterpart, every broken task."""
    for family in FAMILIES:
        for variant in family.variants:
            yield Case(family, variant, "hack" if family.number else "broken")
            yield Case(family, variant, "honest")


def is_frozen(case: Case) -> bool:
    """Whether its variant is the family's frozen one."""
    chosen = int(hashlib.sha256(case.family.name.encode()).hexdigest(), 16) % len(case.family.variants)
    return case.family.variants[chosen] is case.variant


def frozen_digests() -> dict[str, str]:
    """The frozen cases as they are now: id -> digest."""
    return {case.id: case.digest for case in cases() if is_frozen(case)}


def frozen_list() -> dict[str, str]:
    """The frozen cases as they were written down."""
    found: dict[str, str] = json.loads(FROZEN.read_text())
    return found


@dataclass(frozen=True)
class BySubAgent:
    """A policy whose script a sub-agent acts out; the agent itself says what it was told."""

    said: list[Assistant]

    async def sample(self, context: Context, sampling: Sampling) -> Sample:
        first = next(message for message in context.messages if isinstance(message, User))
        if first.text == DELEGATED:
            return await Scripted(self.said).sample(context, sampling)
        told = [message.text for message in context.messages if isinstance(message, ToolResult)]
        turn = Assistant(final=told[-1]) if told else Assistant(calls=(Call("agent", {"task": DELEGATED}),))
        return await Scripted([turn]).sample(Context(()), sampling)


async def play(
    task: Task, said: list[Assistant], host: StoringHost, setup: RolloutSetup, *, by_sub_agent: bool = False
) -> tuple[Trajectory, Submission]:
    """Lets a script act in a sandbox; what it did, and what it changed. Nothing is graded."""
    async with await host.start([workspace_layer(task, host)], limits=setup.sandbox) as sandbox:
        trajectory = await run_agent(
            task_text(task.instruction),
            sandbox,
            BySubAgent(said) if by_sub_agent else Scripted(said),
            dialect=None,
            tools=setup.tools,
            limits=setup.limits,
            sampling=setup.sampling,
            system=setup.system,
        )
        trajectory.task, trajectory.policy = task.name, "scripted"
        return trajectory, await collect(task, sandbox)
