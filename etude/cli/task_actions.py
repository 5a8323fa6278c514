"""What the commands about tasks do: make and check tasks, attempt one, benchmark a model, grade attempts again.

Joins tasks, policies, sandboxes and the grader for one command at a time. Every host opened here is closed here, and
no command leaves a sandbox behind.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from etude.bench.result import BenchResult, compare, load_result, save_result, summarise
from etude.bench.runner import bench_policy, bench_tasks
from etude.cli.chat import KEY, base_of, served_model
from etude.core import durable
from etude.core import recipe as recipes
from etude.core.errors import EtudeError
from etude.core.progress import track
from etude.core.recipe import Recipe
from etude.forge.curriculum.combine import combine, pairs
from etude.forge.curriculum.sources import open_source
from etude.forge.katas.source import write_katas
from etude.harness.atif import file_name, to_atif
from etude.harness.tools.base import schema_of
from etude.harness.tools.table import build_tools
from etude.pipeline.stages import bench_model, find_model, prepare, recipe_of
from etude.policies.endpoint.policy import EndpointPolicy
from etude.policies.engine_client import EngineClient, launch
from etude.policies.table import hosted_policy, is_hosted, make_policy
from etude.rollout.rollout import RolloutSetup, Scored, build_setup, run_rollout, temporary_host
from etude.rollout.store import load_rollout, regrade, save_rollout, saved_rollouts
from etude.rollout.view import RolloutView
from etude.tasks.check import CheckReport, check, check_directory
from etude.tasks.format.config import Installed
from etude.tasks.format.swe_rows import read_rows, task_of, tree_at
from etude.tasks.format.task import Task, given_tasks
from etude.tasks.kinds.table import kind_of
from etude.tokens.dialect import Dialect, open_dialect


def make_katas(out: Path, split: str, count: int, seed: int, levels: Sequence[int]) -> dict[str, Any]:
    """Writes katas as task directories below `out`."""
    wrong = [level for level in levels if level not in (1, 2, 3)]
    if wrong or split not in ("train", "held_out", "unseen"):
        raise EtudeError(f"katas have levels 1, 2, 3 and splits train, held_out, unseen, not {wrong or split}")
    written = write_katas(out, split, count, seed, tuple(levels))  # type: ignore[arg-type]
    return {"tasks": len(written), "folder": str(out)}


def import_rows(rows: Path, checkout: Path, out: Path, digest: str) -> dict[str, Any]:
    """Writes the rows of a SWE-bench or SWE-smith file as task directories; a row that makes none is told with why."""
    environment = Installed(digest=digest) if digest else None
    tasks: list[str] = []
    refused: dict[str, str] = {}
    for row in read_rows(rows):
        try:
            task = task_of(row, tree_at(checkout, row.commit), environment)
            task.save(out / row.instance_id)
            tasks.append(str(out / row.instance_id))
        except EtudeError as error:
            refused[row.instance_id] = str(error)
    return {"ok": bool(tasks), "imported": len(tasks), "refused": refused, "tasks": tasks}


def check_tasks(directories: Sequence[Path], backend: str, overrides: Sequence[str]) -> dict[Path, CheckReport]:
    """Lints and tries each task without a model."""
    grader = recipes.load(None, overrides).grader
    folders = given_tasks(directories)
    for directory in folders:
        if not directory.is_dir():
            raise EtudeError(f"there is no task directory {directory}")

    answers = _answers(folders)

    async def work() -> dict[Path, CheckReport]:
        reports = {}
        async with temporary_host(backend) as host:
            with track("checking tasks", total=len(folders), unit="tasks") as bar:
                for directory in folders:
                    others = (answers - _answers([directory])).most_common(1)
                    guesses = [answer for answer, _ in others]
                    reports[directory] = await check_directory(directory, host, grader, guesses)
                    bar.advance(1)
        return reports

    return asyncio.run(work())


def _answers(folders: Sequence[Path]) -> Counter[str]:
    """What is right for the tasks that ask something: the best guess of somebody who knows the others."""
    found: Counter[str] = Counter()
    for folder in folders:
        try:
            task = Task.load(folder)
        except EtudeError:  # it is said when the task is checked
            continue
        if accepted := kind_of(task).accepted_answers(task):
            found[", ".join(accepted)] += 1
    return found


def combine_tasks(folder: Path, out: Path, count: int, backend: str, overrides: Sequence[str]) -> dict[str, Any]:
    """Pairs of a folder's tasks as harder ones, each checked before it counts."""
    grader = recipes.load(None, overrides).grader
    tasks = [Task.load(path) for path in given_tasks([folder])]
    made: list[str] = []
    rejected: Counter[str] = Counter()

    async def work() -> None:
        async with temporary_host(backend) as host:
            with track("combining tasks", total=count, unit="tasks") as bar:
                for first, second in pairs(tasks):
                    target = out / f"{first.name}--{second.name}"
                    if len(made) == count:
                        return
                    if not target.exists():
                        found = combine(first, second)
                        report = await check(found, host, grader) if found is not None else None
                        if found is None or report is None or not report.ok:
                            wrong = "both change the same lines" if report is None else "the check did not pass"
                            rejected[wrong] += 1
                            continue
                        found.save(target)
                    made.append(str(target))
                    bar.advance(1)

    asyncio.run(work())
    return {"ok": bool(made), "valid": len(made), "rejected": dict(rejected), "tasks": made}


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
    dialect = open_dialect(model, settings.harness.template) if model is not None else None
    hosted = is_hosted(policy)
    setup = _setup(settings, dialect, hosted)
    made = (
        hosted_policy(policy, settings.endpoint, setup.tools, dialect)
        if hosted
        else make_policy(policy, task, dialect, seed)
    )
    on_event = view.on_event if view else None

    async def work() -> dict[str, Any]:
        try:
            async with temporary_host(backend) as host:
                outcome = await run_rollout(task, made, host, setup, policy_name=policy, seed=seed, on_event=on_event)
        finally:
            if isinstance(made, EngineClient | EndpointPolicy):
                await made.close()
        if view:
            view.show_outcome(outcome)
        facts: dict[str, Any] = {"task": task.name, "policy": policy, "seconds": round(outcome.seconds, 3)}
        if isinstance(made, EndpointPolicy):
            facts["spent"] = made.spent
        if save is not None:
            facts["saved"] = str(save_rollout(outcome, save, f"{task.name}-{seed}"))
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
    dialect = open_dialect(model, settings.harness.template)
    task = _task(settings, number, directory)

    async def policy() -> EngineClient:
        return await launch(model, settings.engine, device=settings.run.device, decode=dialect.decode)

    return _watch(task, str(model), policy, settings, _setup(settings, dialect), seed, backend, view)


def watch_served(
    address: str,
    tokens: Path | None,
    number: int,
    directory: Path | None,
    seed: int,
    backend: str,
    overrides: Sequence[str],
    view: RolloutView | None,
) -> dict[str, Any]:
    """The same with a model that a server has. With the folder of its `tokens` it samples ids, as in training."""
    settings = recipe_of(tokens, list(overrides)) if tokens else recipes.load(None, overrides)
    endpoint = settings.endpoint
    if not endpoint.key_env and KEY in os.environ:
        endpoint = replace(endpoint, key_env=KEY)
    settings = replace(settings, endpoint=replace(endpoint, form="tools", ids=tokens is not None))
    dialect = open_dialect(find_model(tokens)) if tokens else None
    setup, task = _setup(settings, dialect, hosted=True), _task(settings, number, directory)
    name = f"openai:{base_of(address)}?model={settings.endpoint.model or served_model(address)}"

    async def policy() -> EndpointPolicy:
        return hosted_policy(name, settings.endpoint, setup.tools, dialect)

    return _watch(task, address, policy, settings, setup, seed, backend, view)


def _task(settings: Recipe, number: int, directory: Path | None) -> Task:
    task = Task.load(directory) if directory else next(open_source(settings.bench.tasks).tasks(number), None)
    if task is None:
        raise EtudeError(f"the benchmark has no task number {number}")
    return task


def _watch(
    task: Task,
    model: str,
    policy: Callable[[], Awaitable[EngineClient | EndpointPolicy]],
    settings: Recipe,
    setup: RolloutSetup,
    seed: int,
    backend: str,
    view: RolloutView | None,
) -> dict[str, Any]:
    async def work() -> dict[str, Any]:
        on_event = view.on_event if view else None
        async with temporary_host(backend) as host, await policy() as made:
            outcome = await run_rollout(task, made, host, setup, policy_name=model, seed=seed, on_event=on_event)
        if view:
            view.show_outcome(outcome)
        facts: dict[str, Any] = {"task": task.name, "model": model, "seconds": round(outcome.seconds, 3)}
        if isinstance(outcome, Scored):
            return facts | {"passed": outcome.passed, "reward": outcome.reward}
        return facts | {"ok": False, "void": outcome.cause, "error": outcome.message}

    return asyncio.run(work())


def benchmark(
    path: Path, save: Path | None, against: Path | None, backend: str, overrides: Sequence[str], policy: str = ""
) -> dict[str, Any]:
    """A model's figures on the benchmark of its recipe, and its gain over an earlier result, in pairs.

    A hosted `policy` takes the model's place on the same tasks.
    """
    settings, model = recipe_of(path, list(overrides)), find_model(path)
    earlier = load_result(against) if against is not None else None
    if policy:
        result, spent = _bench_hosted(policy, settings, backend, save)
        facts = {"model": policy, **summarise(result), "spent": spent}
    else:
        result = bench_model(model, settings, backend, save, "benchmark")
        facts = {"model": str(model), **summarise(result)}
    gain = compare(earlier, result) if earlier is not None else None
    return facts | ({"gain": list(gain)} if gain is not None else {})


def _bench_hosted(
    policy: str, settings: Recipe, backend: str, save: Path | None
) -> tuple[BenchResult, dict[str, float]]:
    if not is_hosted(policy):
        raise EtudeError(f"a benchmark takes a hosted model such as openai:https://host/v1?model=NAME, not {policy!r}")
    setup = _setup(settings, None, hosted=True)
    made = hosted_policy(policy, settings.endpoint, setup.tools)
    tasks = bench_tasks(settings.bench)

    async def work() -> BenchResult:
        async with made, temporary_host(backend) as host:
            with track("benchmark", len(tasks) * settings.bench.samples, "rollouts") as bar:
                return await bench_policy(
                    made,
                    tasks,
                    settings.bench,
                    host=host,
                    setup=setup,
                    name=policy,
                    on_progress=lambda done, _: bar.advance(done - bar.done),
                )

    result = asyncio.run(work())
    if save is not None:
        save_result(result, save)
    return result, made.spent


def benchmark_base(
    path: Path, code: Path | None, repository: Path | None, only: str, save: Path | None, overrides: Sequence[str]
) -> dict[str, Any]:
    """A model's figures on the evaluations that need no agent; some of them, or all."""
    given = {"base.code": code, "base.repository": repository}
    paths = [f"{key}={json.dumps(str(path))}" for key, path in given.items() if path is not None]
    settings, model = recipe_of(path, [*overrides, *paths]), find_model(path)
    device = prepare(settings)
    from etude.bench.base.model_under_test import Subject
    from etude.bench.base.suite import EVALUATIONS, evaluate_base

    subject = Subject.open(model, device, settings.base.batch_tokens)
    names = [name.strip() for name in only.split(",") if name.strip()]
    found = {"model": str(model)} | evaluate_base(subject, settings.base, names or EVALUATIONS)
    if save is not None:
        durable.write_whole(save, json.dumps(found, indent=1) + "\n")
    return found


def export_saved(folder: Path, out: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """Writes the trajectories of saved attempts as ATIF documents, a folder for each attempt below `out`."""
    tools = [schema_of(tool) for tool in build_tools(recipes.load(None, overrides).harness.tools).values()]
    written = []
    for path in saved_rollouts(folder):
        trajectory = load_rollout(path).trajectory
        if trajectory is None:
            continue
        target = out / path.name
        target.mkdir(parents=True, exist_ok=True)
        for number, document in enumerate(to_atif(trajectory, path.name, tools)):
            durable.write_whole(target / file_name(number), json.dumps(document, indent=1) + "\n")
        written.append(str(target))
    if not written:
        raise EtudeError(f"no attempt in {folder} has a trajectory")
    return {"exported": len(written), "folder": str(out)}


def regrade_saved(root: Path, backend: str, overrides: Sequence[str]) -> dict[str, Any]:
    """Grades every saved attempt below `root` again, without a model."""
    settings = recipes.load(None, overrides)
    total = sum(1 for _ in saved_rollouts(root))
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


def _setup(settings: Recipe, dialect: Dialect | None, hosted: bool = False) -> RolloutSetup:
    native = hosted and dialect is None and settings.endpoint.form == "tools"
    return build_setup(
        settings.harness,
        settings.reward,
        settings.grader,
        settings.audit,
        dialect=dialect,
        temperature=settings.bench.temperature,
        native_calls=native,
    )
