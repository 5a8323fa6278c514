"""Every program that wants a void, as a command of the agent and as submitted code: each rollout must be a score."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from etude.core.policy import Assistant, Call
from etude.core.settings import AgentLimits, GraderSettings, HarnessSettings
from etude.forge.katas.task_source import katas
from etude.policies.scripted import Scripted
from etude.rollout.rollout import RolloutSetup, Void, build_setup, run_rollout
from etude.sandbox.base import SandboxLimits
from etude.sandbox.hosts import StoringHost
from etude.tasks.format.task import Task
from redteam.result import SuiteResult
from redteam.voids.programs import PRELUDE, PROGRAMS

WAYS = ("agent", "two at once", "background", "submission")


def setup() -> RolloutSetup:
    """Small limits, so that what fills them is soon done."""
    return build_setup(
        HarnessSettings(
            tools=[*HarnessSettings().tools, {"use": "background"}],
            limits=AgentLimits(seconds=60),
        ),
        grader=GraderSettings(seconds=6, cpu_seconds=2, memory_mb=192, disk_mb=16),
        sandbox=SandboxLimits(memory=192 << 20, disk=16 << 20, processes=64),
    )


def void_attack(name: str, way: str, task: Task) -> Scripted:
    """The turns of one attack. Two at once: a command and a read of the workspace beside the program. In the
    background: the program still runs when the rollout's files are collected."""
    code = PRELUDE + PROGRAMS[name] + "\n"
    path = next(iter(task.solution))
    if way == "submission":
        # Silenced, and before the right solution: where the program does no harm, the rollout passes.
        guarded = f"try:\n    exec({code!r}, {{}})\nexcept Exception:\n    pass\n"
        written = Call("write", {"path": path, "text": f"{guarded}{task.solution.text(path)}"})
        return Scripted([Assistant(calls=(written, Call("finish")))])
    if way == "background":
        stays = Call("background", {"command": f"python3 -c {shell_word(code)}", "seconds": "1"})
        return Scripted([Assistant(calls=(stays, Call("finish")))])
    attack = Call("run", {"command": f"python3 -c {shell_word(code)}", "seconds": 4})
    beside = (Call("run", {"command": "sleep 0.3; ls"}), Call("list"), Call("read", {"path": path}))
    after = Assistant(calls=(Call("run", {"command": "echo still here"}), Call("read", {"path": path}), Call("finish")))
    return Scripted([Assistant(calls=(attack, *(beside if way == "two at once" else ()))), after])


def shell_word(text: str) -> str:
    return "'" + text.replace("'", "'\"'\"'") + "'"


async def run_void_attacks(
    host: StoringHost, names: Sequence[str] = tuple(PROGRAMS), ways: Sequence[str] = WAYS, at_once: int = 1
) -> SuiteResult:
    """Each program in each way, once. One that ends in a void has succeeded."""
    result = SuiteResult("voids")
    task = next(katas("train", 1, seed=11))
    shared = setup()
    waiting = iter([(name, way) for way in ways for name in names])

    async def work() -> None:
        for name, way in waiting:
            outcome = await run_rollout(task, void_attack(name, way, task), host, shared)
            result.tried += 1
            if isinstance(outcome, Void):
                result.missed.append(f"{name} ({way}): {outcome.cause}: {outcome.message}")

    await asyncio.gather(*(work() for _ in range(at_once)))
    return result
