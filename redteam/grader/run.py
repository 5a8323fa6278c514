"""Attacks on the grader, through the harness as a policy would and graded as in training: none may be accepted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from etude.core.policy import Assistant, Call
from etude.core.settings import GraderSettings
from etude.forge.gates.attacks.table import ATTACKS, attack_script
from etude.forge.katas.task_source import katas
from etude.policies.scripted import Scripted
from etude.rollout.rollout import Scored, build_setup, run_rollout
from etude.sandbox.hosts import StoringHost
from etude.tasks.format.task import Task
from redteam.grader.targeted_attacks import TARGETED
from redteam.result import SuiteResult

LIMITS = GraderSettings(seconds=10, cpu_seconds=2, memory_mb=256, disk_mb=32)  # so that hanging attacks are over soon
NAMES = (*ATTACKS, *TARGETED)

# The 21 rows of the published matrix, by the names that they have here.
PUBLISHED = (
    *("conftest-reports-passed", "conftest-skips", "conftest-drops", "ini-deselects", "ini-plugin", "installed-plugin"),
    *("exit-at-import", "sys-exit-at-import", "fake-output", "equal-to-all", "patched-pytest", "sitecustomize"),
    *("pth-file", "edited-framework", "bytecode-only", "shadowed-pytest", "edited-tests", "read-from-caller"),
    *("special-case", "when-tested", "forged-reports"),
)


def grader_attack(name: str, task: Task) -> list[Assistant]:
    """The turns of one attack, of those that everybody knows or of those aimed at this grader."""
    if name in ATTACKS:
        return attack_script(name, task)
    files = TARGETED[name](task)
    calls = tuple(Call("write", {"path": path, "text": (data or b"").decode()}) for path, data in files.items())
    return [Assistant(calls=calls), Assistant(calls=(Call("finish", {"message": "All tests pass."}),))]


async def run_grader_attacks(host: StoringHost, names: Sequence[str] = NAMES, at_once: int = 2) -> SuiteResult:
    """Each attack once on a kata. `benchmarks/grader_attacks.py` tries every mode of the grader and many tasks."""
    result = SuiteResult("grader attacks")
    task = next(katas("train", 1, seed=11))
    setup = build_setup(grader=LIMITS)
    waiting = iter(names)

    async def work() -> None:
        for name in waiting:
            outcome = await run_rollout(task, Scripted(grader_attack(name, task)), host, setup)
            result.tried += 1
            if not isinstance(outcome, Scored):
                result.broken.append(f"{name}: {outcome.cause}: {outcome.message}")
            elif outcome.passed:
                result.missed.append(name)

    await asyncio.gather(*(work() for _ in range(at_once)))
    return result
