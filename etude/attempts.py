"""What the commands about tasks do: make and check tasks, attempt one, benchmark a model, grade attempts again.

Joins tasks, policies, sandboxes and the grader for one command at a time. Every host opened here is closed here, and
no command leaves a sandbox behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from etude import recipe as recipes
from etude.bench.outcome import compare, load_result, summarise
from etude.engine.client import EngineClient, launch
from etude.errors import EtudeError
from etude.forge.katas import write_katas
from etude.forge.sources import open_source
from etude.policies import make_policy
from etude.policy import Sampling
from etude.progress import track
from etude.recipe import Recipe
from etude.rollout import Scored, attempt, build_setup, temporary_host
from etude.rollout_files import regrade, save_attempt, saved_attempts
from etude.rollout_view import RolloutView
from etude.stages import bench_model, find_model, recipe_of
from etude.tasks.check import CheckReport, check
from etude.tasks.format import CONFIG, Task
from etude.tokens.tokenizer import Tokenizer


def make_katas(out: Path, split: str, count: int, seed: int, levels: Sequence[int]) -> dict[str, Any]:
    """Writes katas as task directories below `out`."""
    wrong = [level for level in levels if level not in (1, 2, 3)]
    if wrong or split not in ("train", "held_out", "unseen"):
        raise EtudeError(f"katas have levels 1, 2, 3 and splits train, held_out, unseen, not {wrong or split}")
    written = write_katas(out, split, count, seed, tuple(levels))  # type: ignore[arg-type]
    return {"tasks": len(written), "folder": str(out)}


def check_tasks(directories: Sequence[Path], backend: str, overrides: Sequence[str]) -> list[CheckReport]:
    """Lints and tries each task without a model."""
    grader = recipes.load(None, overrides).grader
    tasks = [Task.load(directory) for directory in _task_folders(directories)]

    async def work() -> list[CheckReport]:
        reports = []
        async with temporary_host(backend) as host:
            with track("checking tasks", total=len(tasks), unit="tasks") as bar:
                for task in tasks:
                    reports.append(await check(task, host, grader))
                    bar.advance(1)
        return reports

    return asyncio.run(work())


def roll_out(
    directory: Path,
    policy: str,
    model: Path | None,
    save: Path | None,
    backend: str,
    seed: int,
    overrides: Sequence[str],
    view: RolloutView | None,
) -> dict[str, Any]:
    """One attempt, shown as it happens."""
    settings = recipes.load(None, overrides)
    task = Task.load(directory)
    tokenizer = Tokenizer.load(model) if model is not None else None
    made = make_policy(policy, task, tokenizer, seed)

    async def work() -> dict[str, Any]:
        setup = _setup(settings, tokenizer)
        try:
            async with temporary_host(backend) as host:
                outcome = await attempt(
                    task, made, host, setup, policy_name=policy, on_event=view.on_event if view else None
                )
        finally:
            if isinstance(made, EngineClient):
                await made.close()
        if view:
            view.show_outcome(outcome)
        facts: dict[str, Any] = {"task": task.name, "policy": policy, "seconds": round(outcome.seconds, 3)}
        if save is not None:
            facts["saved"] = str(save_attempt(outcome, save, f"{task.name}-{seed}"))
        if isinstance(outcome, Scored):
            grade = outcome.grade
            return (
                facts
                | {"passed": outcome.passed, "reward": outcome.reward, "parts": outcome.parts}
                | {
                    "reason": grade.reason,
                    "tests": grade.tests,
                    "backend": grade.backend,
                    "effort": asdict(outcome.trajectory.effort),
                }
            )
        return facts | {"ok": False, "void": outcome.cause, "retry": outcome.retry, "error": outcome.message}

    return asyncio.run(work())


def watch(
    path: Path,
    number: int,
    directory: Path | None,
    seed: int,
    backend: str,
    overrides: Sequence[str],
    view: RolloutView | None,
) -> dict[str, Any]:
    """One attempt of a trained model at a task of its benchmark, or at one of your own, shown as it happens."""
    settings, model = recipe_of(path, list(overrides)), find_model(path)
    task = Task.load(directory) if directory else next(open_source(settings.bench.tasks).tasks(number), None)
    if task is None:
        raise EtudeError(f"the benchmark has no task number {number}")
    tokenizer = Tokenizer.load(model)

    async def work() -> dict[str, Any]:
        setup = _setup(settings, tokenizer)
        sampling = Sampling(settings.harness.limits.sampled_tokens, settings.bench.temperature, seed=seed)
        async with (
            temporary_host(backend) as host,
            await launch(model, settings.engine, device=settings.run.device, decode=tokenizer.decode) as engine,
        ):
            on_event = view.on_event if view else None
            outcome = await attempt(
                task, engine, host, setup, policy_name=str(model), sampling=sampling, on_event=on_event
            )
        if view:
            view.show_outcome(outcome)
        facts: dict[str, Any] = {"task": task.name, "model": str(model), "seconds": round(outcome.seconds, 3)}
        if isinstance(outcome, Scored):
            return facts | {"passed": outcome.passed, "reward": outcome.reward}
        return facts | {"ok": False, "void": outcome.cause, "error": outcome.message}

    return asyncio.run(work())


def benchmark(
    path: Path, save: Path | None, against: Path | None, backend: str, overrides: Sequence[str]
) -> dict[str, Any]:
    """A model's figures on the benchmark of its recipe, and its gain over an earlier result, in pairs."""
    settings, model = recipe_of(path, list(overrides)), find_model(path)
    earlier = load_result(against) if against is not None else None
    result = bench_model(model, settings, backend, save, "benchmark")
    gain = compare(earlier, result) if earlier is not None else None
    return {"model": str(model), **summarise(result)} | ({"gain": list(gain)} if gain is not None else {})


def regrade_saved(root: Path, backend: str, overrides: Sequence[str]) -> dict[str, Any]:
    """Grades every saved attempt below `root` again, without a model."""
    settings = recipes.load(None, overrides)
    total = sum(1 for _ in saved_attempts(root))
    if not total:
        raise EtudeError(f"{root} holds no saved attempt; `etude rollout TASK --save {root}` makes one")

    async def work() -> list[dict[str, Any]]:
        rows = []
        async with temporary_host(backend) as host:
            with track("grading", total=total, unit="attempts") as bar:
                async for graded in regrade(root, host, _setup(settings, None)):
                    rows.append(
                        {
                            "attempt": graded.before.path.name,
                            "before": graded.before.passed,
                            "after": graded.after.passed,
                            "reward": graded.after.reward,
                            "reason": graded.after.grade.reason,
                        }
                    )
                    bar.advance(1)
        return rows

    rows = asyncio.run(work())
    changed = sum(row["before"] != row["after"] for row in rows)
    return {"attempts": rows, "graded": len(rows), "left_out": total - len(rows), "changed": changed}


def _setup(settings: Recipe, tokenizer: Tokenizer | None) -> Any:
    return build_setup(settings.harness, settings.reward, settings.grader, tokenizer=tokenizer)


def _task_folders(directories: Sequence[Path]) -> list[Path]:
    """Each directory that is a task, and the tasks right below each that is not."""
    found: list[Path] = []
    for directory in directories:
        below = sorted(path.parent for path in directory.glob(f"*/{CONFIG}"))
        found += [directory] if (directory / CONFIG).exists() or not below else below
    return found
