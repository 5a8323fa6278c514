"""Rollouts with injected faults: each must be mended or become a Void with the right cause, and none a reward.

    python benchmarks/rollout_faults.py [--rollouts 1000] [--json]

Faults of the machinery are mixed with sound rollouts and with trouble that is the model's own doing, which must stay
a score. Processes are really killed and policies really late; a full disk is an error at the place where it would
come from.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pydantic

from etude.core.policy import Assistant, Call, Context, Sample, Sampling
from etude.core.settings import AgentLimits, GraderSettings, HarnessSettings
from etude.forge.katas.task_source import katas
from etude.harness.tools.base import Observation, Tool
from etude.policies.scripted import Scripted, reference
from etude.rollout.rollout import Outcome, RolloutSetup, Scored, Void, build_setup, run_rollout
from etude.sandbox.base import CommandResult, SandboxFailure, SandboxLimits
from etude.sandbox.local.host import LocalHost
from etude.sandbox.local.sandbox import LocalSandbox
from etude.tasks.format.task import Task
from etude.tasks.grading.grader import RUNNER

SAMPLE_SECONDS = 0.3


@dataclass(frozen=True)
class Fault:
    """What is done to a rollout, and what must come of it: a cause, or a score."""

    name: str
    wanted: str  # a Void's cause, or "passed", "failed"
    share: int  # of all rollouts, relative


FAULTS = (
    Fault("none", "passed", 12),
    Fault("sandbox start fails", "sandbox", 8),
    # graded again from the same submission
    Fault("grading sandbox start fails", "passed", 8),
    # the host works, so it is the rollout's own: nobody is sampled again because of what ran inside
    Fault("sandbox dies during the agent's work", "failed", 5),
    Fault("store disk full", "sandbox", 8),
    Fault("grader killed", "passed", 8),
    Fault("grader's report cut", "passed", 6),
    Fault("grader's report forged", "passed", 6),
    Fault("policy times out", "policy", 8),
    Fault("policy raises", "policy", 6),
    Fault("policy aborts", "policy", 6),
    # The model made the call: it sees an error, goes on, and is graded.
    Fault("tool raises", "passed", 6),
    Fault("disk full while saving", "harness", 6),
    # the model's own doing
    Fault("model: unreadable turns", "failed", 4),
    Fault("model: code that hangs", "failed", 1),
    Fault("model: sandbox disk filled", "failed", 2),
    Fault("model: grader killed from inside", "failed", 4),
    Fault("model: memory used up", "failed", 2),
)


class FaultyHost:
    """A host whose `start`, store and grading runs can be made to fail."""

    def __init__(self, host: LocalHost) -> None:
        self._host = host
        self.fail_start_number = 0  # counted from 1; 0 never
        self.starts = 0
        self.on_report: Callable[[LocalSandbox, dict[str, Any]], Any] | None = None
        self.disk_full = False

    @property
    def capabilities(self) -> Any:
        return self._host.capabilities

    @property
    def preload(self) -> tuple[str, ...]:
        return self._host.preload

    @property
    def store(self) -> Any:
        if self.disk_full:
            return _FullStore()
        return self._host.store

    async def start(self, *given: Any, **named: Any) -> Any:
        self.starts += 1
        if self.starts == self.fail_start_number:
            raise SandboxFailure("start", "a sandbox did not start: injected")
        sandbox = await self._host.start(*given, **named)
        return _FaultySandbox(sandbox, self.on_report) if self.on_report is not None and self.starts == 2 else sandbox

    async def close(self) -> None:
        pass


class _FullStore:
    def add_files(self, *given: Any, **named: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    add = add_files


class _FaultySandbox:
    """A grading sandbox: everything is the real one's but how a run apart ends."""

    def __init__(self, sandbox: LocalSandbox, change: Callable[[LocalSandbox, dict[str, Any]], Any]) -> None:
        self._sandbox, self._change = sandbox, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sandbox, name)

    async def run_apart(self, program: Any, **named: Any) -> CommandResult:
        found: CommandResult = await self._change(self._sandbox, {"program": program, **named})
        return found

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._sandbox.close()


# What is done


async def cut_report(sandbox: LocalSandbox, run: dict[str, Any]) -> CommandResult:
    result = await sandbox.run_apart(**run)
    return replace(result, stdout=result.stdout[:-10])


async def forged_report(sandbox: LocalSandbox, run: dict[str, Any]) -> CommandResult:
    result = await sandbox.run_apart(**run)
    return replace(result, stdout=b"0" * 32 + result.stdout[32:])


def kill_runner(launcher: int) -> Callable[[LocalSandbox, dict[str, Any]], Any]:
    """Kills the grader's one process from outside as soon as it is there. The host has no other sandbox."""

    async def run(sandbox: LocalSandbox, given: dict[str, Any]) -> CommandResult:
        grading = asyncio.ensure_future(sandbox.run_apart(**given))
        while not grading.done():
            for init in _children(launcher):
                for supervisor in _children(init):
                    for runner in _children(supervisor):
                        with suppress(OSError):
                            os.kill(runner, signal.SIGKILL)
            await asyncio.sleep(0.0005)
        return await grading

    return run


def _children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


class Late:
    async def sample(self, context: Context, sampling: Sampling) -> Sample:
        await asyncio.sleep(SAMPLE_SECONDS + 30)
        raise AssertionError("nobody waits this long")


class Broken:
    async def sample(self, context: Context, sampling: Sampling) -> Sample:
        raise ConnectionResetError("the engine went away")


class Aborting:
    async def sample(self, context: Context, sampling: Sampling) -> Sample:
        return Sample("", "abort")


class Unreadable:
    async def sample(self, context: Context, sampling: Sampling) -> Sample:
        return Sample("<call>{not json</call>", "stop")


class KillsItsSandbox:
    """Solves the task, but its sandbox is killed from outside before the second turn."""

    def __init__(self, task: Task, launcher: int) -> None:
        self._script, self._launcher, self._turns = Scripted(reference(task)), launcher, 0

    async def sample(self, context: Context, sampling: Sampling) -> Sample:
        self._turns += 1
        if self._turns == 2:
            for init in _children(self._launcher):
                os.kill(init, signal.SIGKILL)
        return await self._script.sample(context, sampling)


class Raising(Tool):
    class Settings(pydantic.BaseModel):
        pass

    name = "read"
    description = "read a file"

    async def call(self, arguments: Any, context: Any) -> Observation:
        raise RuntimeError("a bug of ours")


def writes(task: Task, code: str) -> Scripted:
    """Puts code into the deleted functions' module and finishes."""
    path = next(iter(task.solution))
    text = f"{code}\n{task.solution.text(path)}"
    return Scripted([Assistant(calls=(Call("write", {"path": path, "text": text}), Call("finish")))])


def full_disk(outcome: Outcome) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


async def play(fault: Fault, task: Task, hosts: dict[str, LocalHost], setup: RolloutSetup) -> Outcome | None:
    """One rollout. None: the fault came too late to do anything."""
    alone = fault.name in ("grader killed", "sandbox dies during the agent's work")
    real = hosts["alone" if alone else "shared"]
    host = FaultyHost(real)
    policy: Any = Scripted(reference(task))
    save = None
    match fault.name:
        case "sandbox start fails":
            host.fail_start_number = 1
        case "grading sandbox start fails":
            host.fail_start_number = 2
        case "sandbox dies during the agent's work":
            policy = KillsItsSandbox(task, real.launcher_pid)
            if len(policy._script.turns) < 2:
                return None
        case "store disk full":
            host.disk_full = True
        case "grader killed":
            host.on_report = kill_runner(real.launcher_pid)
        case "grader's report cut":
            host.on_report = cut_report
        case "grader's report forged":
            host.on_report = forged_report
        case "policy times out":
            policy = Late()
        case "policy raises":
            policy = Broken()
        case "policy aborts":
            policy = Aborting()
        case "tool raises":
            setup = replace(setup, tools={**setup.tools, "read": Raising(None)})
            policy = Scripted([Assistant(calls=(Call("read"),)), *reference(task)])
        case "disk full while saving":
            save = full_disk
        case "model: unreadable turns":
            policy = Unreadable()
        case "model: code that hangs":
            policy = writes(task, "while True: pass")
        case "model: sandbox disk filled":
            fill = "head -c 100000000 /dev/zero > full; true"
            policy = Scripted([Assistant(calls=(Call("run", {"command": fill}), Call("finish")))])
        case "model: grader killed from inside":
            policy = writes(task, "import os\nfor p in (1, os.getppid()):\n    os.kill(p, 9)\nos.kill(-1, 9)")
        case "model: memory used up":
            policy = writes(task, "hog = []\nwhile True: hog.append(bytearray(1 << 24))")
    return await run_rollout(task, policy, host, setup, save=save)


def got(outcome: Outcome) -> str:
    return outcome.cause if isinstance(outcome, Void) else "passed" if outcome.passed else "failed"


async def measure(rollouts: int, at_once: int, seed: int) -> dict[str, Any]:
    started = time.monotonic()
    rng = random.Random(seed)
    order = rng.choices(FAULTS, [fault.share for fault in FAULTS], k=rollouts)
    setup = build_setup(
        HarnessSettings(limits=AgentLimits(sample_seconds=SAMPLE_SECONDS)),
        grader=GraderSettings(seconds=60, cpu_seconds=1, memory_mb=128, disk_mb=32),  # a busy machine may need them
        sandbox=SandboxLimits(disk=32 << 20),
    )
    tasks = list(katas("train", 60, seed=3, levels=[1, 2]))
    counts: dict[str, Counter[str]] = {fault.name: Counter() for fault in FAULTS}
    wrong: list[str] = []
    rewarded = missed = 0
    alone = asyncio.Lock()

    async def one(number: int, fault: Fault) -> None:
        nonlocal rewarded, missed
        outcome: Outcome | None
        if fault.name in ("grader killed", "sandbox dies during the agent's work"):
            async with alone:
                outcome = await play(fault, tasks[number % len(tasks)], hosts, setup)
        else:
            outcome = await play(fault, tasks[number % len(tasks)], hosts, setup)
        if outcome is None:
            missed += 1
            return
        found = got(outcome)
        counts[fault.name][found] += 1
        if found != fault.wanted:
            wrong.append(f"{fault.name}: {found}: {getattr(outcome, 'message', '')}")
        if fault.wanted not in ("passed", "failed") and isinstance(outcome, Scored):
            rewarded += 1

    with tempfile.TemporaryDirectory() as folder:
        async with (
            await LocalHost.open(Path(folder) / "one", [RUNNER]) as shared,
            await LocalHost.open(Path(folder) / "two", [RUNNER]) as lonely,
        ):
            hosts = {"shared": shared, "alone": lonely}
            jobs = iter(list(enumerate(order)))

            async def work() -> None:
                for number, fault in jobs:
                    await one(number, fault)

            await asyncio.gather(*(work() for _ in range(at_once)))
    return {
        "rollouts": rollouts - missed,
        "faults": sum(counts[f.name].total() for f in FAULTS if f.name != "none" and not f.name.startswith("model:")),
        "rewarded": rewarded,
        "wrong": wrong,
        "counts": {fault.name: {"wanted": fault.wanted, **counts[fault.name]} for fault in FAULTS},
        "seconds": round(time.monotonic() - started, 1),
        "ok": not wrong and not rewarded,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=1000)
    parser.add_argument("--at-once", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = asyncio.run(measure(options.rollouts, options.at_once, options.seed))
    if options.json:
        print(json.dumps(result))
    else:
        for name, counts in result["counts"].items():
            print(f"{name:40} {counts}")
        for line in result["wrong"][:20]:
            print(f"WRONG {line}")
        print(f"{result['faults']} faults in {result['rollouts']} rollouts, {result['rewarded']} rewarded")
        print("ok" if result["ok"] else "NOT ok")
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
