"""Tries the leak audit on every hiding place, and the leak probes on tasks with and without a copy of the answer."""

from __future__ import annotations

import dataclasses
import random
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

from etude.core.errors import EtudeError
from etude.forge.katas.task_source import katas
from etude.forge.leaks.audit import audit_files
from etude.forge.leaks.deleted_code import Deleted, definitions
from etude.policies.scripted import Scripted
from etude.rollout.rollout import Outcome, Scored, build_setup, run_rollout
from etude.sandbox.base import Layer, SandboxLimits
from etude.sandbox.hosts import StoringHost
from etude.sandbox.store.layers import Store
from etude.tasks.format.function_bodies import replace_bodies
from etude.tasks.format.task import WORKSPACE, Task
from redteam.leaks.hiding_places import HIDING_PLACES
from redteam.leaks.leak_probes import LEAK_PROBES, deleted_of, leak_probe_script
from redteam.result import SuiteResult

LEAST_LINES = 8  # of a function worth deleting
LIMITS = SandboxLimits(memory=2 << 30)  # a probe reads whole archives
# What each probe has to find where nobody scrubbed, or its failure elsewhere would say nothing.
CONTROL = {
    "git": "git-pack",
    "find": "editor-backup",
    "strings": "memory-dump",
    "pip": "wheel",
    "caches": "type-checker-database",
    "decompiler": "stale-bytecode",
}


def functions(source: str, least: int = LEAST_LINES) -> list[tuple[str, str]]:
    """(name, text) of the functions whose bodies can be deleted."""
    found: dict[str, str] = {}
    for name, text in definitions(source):
        if text.lstrip().startswith(("def ", "async def ")) and text.count("\n") >= least:
            found.setdefault(name, text)
    return list(found.items())


def stubbed(source: str, name: str) -> str | None:
    """The module without the function's body; None where that cannot be done."""
    try:
        return replace_bodies(source, {name: "raise NotImplementedError"})
    except (EtudeError, SyntaxError):
        return None


def run_hiding_places(store: Store, modules: int = 1, rng: random.Random | None = None) -> SuiteResult:
    """Deletes functions of standard modules and hides the whole module in each place in turn: the audit finds all."""
    result = SuiteResult("hiding places")
    rng = rng or random.Random(0)
    library = sorted(Path(sysconfig.get_path("stdlib")).glob("[a-z]*.py"))
    rng.shuffle(library)
    for file in library:
        source = file.read_text(encoding="utf-8", errors="replace")
        choice = functions(source)
        if not choice or result.tried >= modules * len(HIDING_PLACES):
            continue
        name, text = rng.choice(choice)
        left = stubbed(source, name)
        if left is None:
            continue
        path = f"src/pkg/{file.name}"
        deleted = [Deleted(path, name, text)]
        clean = {path: left.encode(), "README.md": f"Call `{name}`.\n".encode()}
        if audit_files(store, [store.add_files(clean, shows=())], deleted):
            continue  # the module itself holds a near copy of the function: another one is taken
        for place, hide in HIDING_PLACES.items():
            hidden = hide(path, source)
            leaks = audit_files(store, layers_with(store, clean, hidden), deleted)
            expected = {each if each.startswith("/") else f"/workspace/{each}" for each in hidden}
            result.tried += 1
            if not expected & {leak.place.partition("!")[0] for leak in leaks}:
                result.missed.append(f"{place}: {file.name}:{name} ({text.count(chr(10))} lines)")
    return result


def layers_with(store: Store, workspace: Mapping[str, bytes], hidden: Mapping[str, bytes]) -> Sequence[Layer]:
    """Layers of a workspace with more files: "/..." is the environment's."""
    outside = {path[1:]: data for path, data in hidden.items() if path.startswith("/")}
    inside = {path: data for path, data in hidden.items() if not path.startswith("/")}
    below = [store.add_files(outside, at="/", shows=())] if outside else []
    return [*below, store.add_files({**workspace, **inside}, shows=())]


def with_copy(task: Task, place: str) -> Task:
    """The task with a copy of its solution in a hiding place of the workspace."""
    path = deleted_of(task)[0].path
    hidden = HIDING_PLACES[place](path, task.solution.text(path))
    files = {f"{WORKSPACE}/{name}": data for name, data in hidden.items()}
    return dataclasses.replace(task, files=task.files.replaced(files))


async def probe(name: str, task: Task, host: StoringHost, seconds: float) -> Outcome:
    """One leak probe on one task, graded as in training."""
    policy = Scripted(leak_probe_script(name, task, seconds=seconds))
    return await run_rollout(task, policy, host, build_setup(sandbox=LIMITS), policy_name=f"leak-probe:{name}")


async def control(host: StoringHost, seconds: float) -> dict[str, bool]:
    """Whether each probe solves a task that was not scrubbed."""
    task = next(katas("train", 1, seed=5))
    solved: dict[str, bool] = {}
    for name, place in CONTROL.items():
        outcome = await probe(name, with_copy(task, place), host, seconds)
        solved[name] = isinstance(outcome, Scored) and outcome.passed
    return solved


async def run_leak_probes(host: StoringHost, seconds: float = 3.0) -> SuiteResult:
    """No probe solves a task that nothing was left in. `benchmarks/leak_probes.py` tries tasks of real repositories."""
    result = SuiteResult("leak probes")
    result.broken = [f"{name} finds no copy" for name, solved in (await control(host, seconds)).items() if not solved]
    task = next(katas("train", 1, seed=5))
    for name in LEAK_PROBES:
        outcome = await probe(name, task, host, seconds)
        result.tried += 1
        if not isinstance(outcome, Scored):
            result.broken.append(f"{name}: {outcome.message}")
        elif outcome.passed:
            result.missed.append(name)
    return result
