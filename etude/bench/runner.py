"""A checkpoint in, a result out: its own engine, the tasks of the recipe, real sandboxes, every rollout graded.

Tasks, their order and the seed of each sample follow from the recipe alone, so two checkpoints meet the same ones and
can be compared in pairs. Knows nothing of training. What the machinery spoils is counted, and too much of it is an
error instead of a figure.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from etude.bench.result import BenchResult, Counts, Shown, TaskRow, TaskSet, Turn, save_result
from etude.bench.trained_on import count_trained, tasks_trained_on
from etude.core.errors import EtudeError
from etude.core.policy import Assistant, Policy, System, ToolResult, User
from etude.core.process import available_cores
from etude.core.progress import track
from etude.core.recipe import Recipe
from etude.core.settings import BenchSettings
from etude.forge.curriculum.sources import open_source
from etude.harness.metrics import measure
from etude.harness.summary import estimated_tokens
from etude.harness.trajectory import MessageRecord, Trajectory
from etude.policies.engine_client import launch
from etude.policies.scripted import Scripted
from etude.policies.table import hosted_policy, is_hosted, make_policy
from etude.rollout.rollout import RolloutSetup, Scored, Void, build_setup, check_lengths, temporary_host
from etude.rollout.scheduler import JobRunner, RolloutJob, sample_seed
from etude.rollout.trained_tasks import task_identity
from etude.rollout.view import printable
from etude.sandbox.hosts import StoringHost
from etude.tasks.format.task import Task
from etude.tokens.dialect import Dialect, open_dialect

LOST = 0.1  # share of the rollouts that may stay void
LONGEST = 8000  # characters of one message that are kept to be shown

Progress = Callable[[int, int], None]  # rollouts done, rollouts in all


def setup_of(recipe: Recipe, dialect: Dialect | None, hosted: bool = False) -> RolloutSetup:
    """What rollouts of a recipe share wherever an agent is measured or used: in benchmarks, chats, single rollouts."""
    return build_setup(
        recipe.harness,
        recipe.reward,
        recipe.grader,
        recipe.audit,
        dialect=dialect,
        temperature=recipe.bench.temperature,
        # With a dialect, calls are parsed from the sampled ids, as in training.
        native_calls=hosted and dialect is None and recipe.endpoint.form == "tools",
    )


def bench_checkpoint(
    model: Path, recipe: Recipe, *, backend: str, save: Path | None = None, label: str = "benchmark"
) -> BenchResult:
    """`run_bench` with sandboxes of its own, all cores and a line of progress."""
    threads, tasks = recipe.run.threads or available_cores(), bench_tasks(recipe.bench)

    async def work() -> BenchResult:
        async with temporary_host(backend) as host:
            with _tracked(label, len(tasks) * recipe.bench.samples) as advance:
                return await run_bench(
                    model, recipe, host=host, threads=threads, save=save, on_progress=advance, tasks=tasks
                )

    return asyncio.run(work())


def bench_hosted(
    policy: str, recipe: Recipe, *, backend: str, save: Path | None = None
) -> tuple[BenchResult, dict[str, float]]:
    """A hosted model on the same tasks, and what it spent."""
    if not is_hosted(policy):
        raise EtudeError(f"a benchmark takes a hosted model such as openai:https://host/v1?model=NAME, not {policy!r}")
    setup = setup_of(recipe, None, hosted=True)
    hosted = hosted_policy(policy, recipe.endpoint, setup.tools)
    tasks = bench_tasks(recipe.bench)

    async def work() -> BenchResult:
        async with hosted, temporary_host(backend) as host:
            with _tracked("benchmark", len(tasks) * recipe.bench.samples) as advance:
                return await bench_policy(
                    hosted, tasks, recipe.bench, host=host, setup=setup, name=policy, on_progress=advance
                )

    result = asyncio.run(work())
    if save is not None:
        save_result(result, save)
    return result, hosted.spent


def bench_scripted(policy: str, recipe: Recipe, *, backend: str, save: Path | None = None) -> BenchResult:
    """A script (`reference`, `null`, `stub`, `attack:NAME`) on the same tasks, made anew for each of them."""
    setup = build_setup(recipe.harness, recipe.reward, recipe.grader, recipe.audit, temperature=0.0)
    tasks = bench_tasks(recipe.bench)

    def script(task: Task) -> Policy:
        return make_policy(policy, task, None, recipe.bench.seed)

    async def work() -> BenchResult:
        async with temporary_host(backend) as host:
            with _tracked("benchmark", len(tasks) * recipe.bench.samples) as advance:
                return await bench_policy(
                    Scripted(()),
                    tasks,
                    recipe.bench,
                    host=host,
                    setup=setup,
                    name=policy,
                    script=script,
                    on_progress=advance,
                )

    result = asyncio.run(work())
    if save is not None:
        save_result(result, save)
    return result


@contextmanager
def _tracked(label: str, rollouts: int) -> Iterator[Progress]:
    with track(label, rollouts, "rollouts") as bar:
        yield lambda done, _: bar.advance(done - bar.done)


async def run_bench(
    model: Path,
    recipe: Recipe,
    *,
    host: StoringHost,
    threads: int = 1,
    log: Path | None = None,
    save: Path | None = None,
    on_progress: Progress | None = None,
    tasks: Sequence[tuple[TaskSet, Task]] | None = None,
) -> BenchResult:
    """Benchmarks the checkpoint at `model` as `recipe.bench` says. `log` is the engine's; `save` gets the result."""
    dialect = open_dialect(model, recipe.harness.template)
    setup = setup_of(recipe, dialect)
    check_lengths(setup, recipe.engine)
    tasks = bench_tasks(recipe.bench) if tasks is None else tasks
    engine = await launch(
        model, recipe.engine, device=recipe.run.device, threads=threads, log=log, decode=dialect.decode
    )
    async with engine:
        result = await bench_policy(
            engine, tasks, recipe.bench, host=host, setup=setup, name=str(model), on_progress=on_progress
        )
        stats = await engine.stats()
    numbers = {name: float(value) for name, value in stats.items() if isinstance(value, int | float)}
    trained = count_trained(result.tasks, tasks_trained_on(model))
    result = dataclasses.replace(result, engine=numbers, trained_on=trained)
    if save is not None:
        save_result(result, save)
    return result


def bench_tasks(settings: BenchSettings) -> list[tuple[TaskSet, Task]]:
    """The tasks of a benchmark in their order, the unseen ones last."""
    sources: list[tuple[TaskSet, str, dict[str, Any], int]] = [
        ("held_out", "bench.tasks", settings.tasks, settings.count),
        ("unseen", "bench.unseen", settings.unseen, settings.unseen_count),
    ]
    found: list[tuple[TaskSet, Task]] = []
    for which, where, spec, count in sources:
        if which == "unseen" and not count:
            continue
        source = open_source(spec, where)
        if not count and not hasattr(source, "found"):  # the tasks of a folder end, others may not
            raise EtudeError(f"bench.count is 0, which means all tasks of a folder: {where} is none; give a number")
        tasks = list(islice(source.tasks(), count or None))
        if len(tasks) < count:
            raise EtudeError(f"{where} has only {len(tasks)} tasks where the benchmark asks for {count}")
        found += [(which, task) for task in tasks]
    # Two results are paired task by task, by name.
    names = Counter(task.name for _, task in found)
    if twice := [name for name, times in names.items() if times > 1]:
        raise EtudeError(f"the task {twice[0]} is twice in the benchmark; give every task a name of its own")
    return found


async def bench_policy(
    policy: Policy,
    tasks: Sequence[tuple[TaskSet, Task]],
    settings: BenchSettings,
    *,
    host: StoringHost,
    setup: RolloutSetup,
    name: str = "",
    script: Callable[[Task], Policy] | None = None,
    on_progress: Progress | None = None,
) -> BenchResult:
    """Benchmarks a policy; `script` makes another one for each task, which then takes its place."""
    began = time.monotonic()
    total = len(tasks) * settings.samples
    kept: dict[int, _Kept] = {}
    spoiled: list[Void] = []
    retried: list[Void] = []
    runner = JobRunner(policy, host, setup, policy_name=name, on_retry=lambda job, void: retried.append(void))
    async with aclosing(runner.run_each(_jobs(tasks, settings, script), settings.concurrency)) as each:
        async for number, _, outcome in each:
            if isinstance(outcome, Void):
                spoiled.append(outcome)
                # A figure over what is left would hide that the machine is broken.
                if len(spoiled) > max(1, LOST * total):
                    raise EtudeError(
                        f"the benchmark of {name} was given up: {len(spoiled)} of {total} rollouts were spoiled, "
                        f"the last by the {outcome.cause}: {outcome.message}"
                    )
            else:
                kept[number] = _keep(outcome)
            if on_progress is not None:
                on_progress(len(kept) + len(spoiled), total)
    rows: list[TaskRow] = []
    rollouts: dict[TaskSet, list[_Kept]] = {}
    for place, (which, task) in enumerate(tasks):
        mine = [kept.get(place * settings.samples + sample) for sample in range(settings.samples)]
        rows.append(_row(which, task, mine))
        rollouts.setdefault(which, []).extend(one for one in mine if one is not None)
    return BenchResult(
        model=name,
        samples=settings.samples,
        seed=settings.seed,
        temperature=setup.sampling.temperature,
        backend=next((one.backend for one in kept.values()), ""),
        seconds=time.monotonic() - began,
        tasks=rows,
        counts={which: _count(some) for which, some in rollouts.items()},
        void=len(spoiled),
        retried=len(retried),
        void_causes=dict(Counter(void.cause for void in (*spoiled, *retried))),
        agent=_agent(setup),
        audited=dict(Counter(one.verdict for one in kept.values() if one.passed and one.verdict)),
    )


def _agent(setup: RolloutSetup) -> dict[str, Any]:
    """What the policy acted with, as far as it changes what it can do."""
    limits = {f"limits.{name}": value for name, value in dataclasses.asdict(setup.limits).items()}
    prompt = hashlib.sha256(setup.system.encode()).hexdigest()[:8]
    return limits | {"tools": ", ".join(setup.tools), "system prompt": prompt, "summary": setup.summary.use}


def _jobs(
    tasks: Sequence[tuple[TaskSet, Task]], settings: BenchSettings, script: Callable[[Task], Policy] | None
) -> Iterator[RolloutJob]:
    for _, task in tasks:
        own = script(task) if script is not None else None
        for sample in range(settings.samples):
            # The seed follows from task and sample alone, so that two checkpoints are compared in pairs.
            yield RolloutJob(task, sample, sample_seed(settings.seed, task.name, sample), own)


@dataclass(frozen=True)
class _Kept:
    """What is needed of a graded rollout; its tokens are not, and they are most of its memory."""

    trajectory: Trajectory
    passed: bool
    reason: str
    backend: str
    tokens: int
    verdict: str = ""  # of the audit, where this task is audited
    summary_tokens: int = 0


def _keep(scored: Scored) -> _Kept:
    trajectory, grade = scored.trajectory, scored.grade
    effort = trajectory.effort
    estimate = effort.thinking_tokens + effort.call_tokens + effort.final_tokens
    tokens = trajectory.sampled_tokens if effort.exact else estimate
    text = dataclasses.replace(trajectory, segments=[])
    verdict = scored.ruling.verdict if scored.ruling is not None else ""
    return _Kept(text, scored.passed, grade.reason, grade.backend, tokens, verdict, summary_tokens(trajectory))


def summary_tokens(trajectory: Trajectory) -> int:
    """All tokens of the turns that summed up; estimated where nobody has their ids.

    Not of their words alone: who answers the request with a call in place of words has taken some, too.
    """
    turns = {number: entry for number, entry in enumerate(trajectory.entries) if entry.purpose == "summary"}
    if not trajectory.segments:
        return sum(estimated_tokens([entry.message]) for entry in turns.values())
    return sum(
        span.end - span.start
        for number, segment in enumerate(trajectory.segments)
        for span in segment.rendered.spans
        if span.own and span.message < len(segment.messages)
        if (entry := turns.get(segment.messages[span.message])) is not None and entry.segment == number
    )


def _count(rollouts: Sequence[_Kept]) -> Counts:
    found = count([one.trajectory for one in rollouts])
    return dataclasses.replace(found, summary_tokens=sum(one.summary_tokens for one in rollouts))


def _row(which: TaskSet, task: Task, rollouts: Sequence[_Kept | None]) -> TaskRow:
    first = rollouts[0]
    return TaskRow(
        name=task.name,
        digest=task.digest,
        set=which,
        family=task.facts.family,
        level=task.facts.level,
        passed=[one.passed if one is not None else None for one in rollouts],
        tokens=[one.tokens if one is not None else None for one in rollouts],
        shown=_show(first) if first is not None else None,
        identity=task_identity(task),
    )


def _show(kept: _Kept) -> Shown:
    turns = [turn_of(entry) for entry in kept.trajectory.entries]
    return Shown(turns, kept.passed, kept.trajectory.stop, _text(kept.reason), kept.tokens)


def turn_of(entry: MessageRecord) -> Turn:
    """A message as it is shown to people."""
    message = entry.message
    error = _text(entry.note) or entry.error or ""
    match message:
        case Assistant():
            calls = [
                (_text(call.name), {_text(key): _text(value) for key, value in call.arguments.items()})
                for call in message.calls
            ]
            return Turn("assistant", _text(message.final), _text(message.thinking), calls, error=error)
        case ToolResult():
            return Turn("tool", _text(message.text), name=_text(message.name), error=error)
        case System():
            return Turn("system", _text(message.text))
        case User():
            return Turn("user", _text(message.text))


def _text(text: str) -> str:
    """Bytes that are no text become escapes: no reader of the file has to expect them."""
    return printable(text if len(text) <= LONGEST else f"{text[:LONGEST]} ...")


def count(trajectories: Sequence[Trajectory]) -> Counts:
    """What the rollouts did, in numbers."""
    metrics = measure(trajectories)
    everything = metrics.total
    return Counts(
        rollouts=len(trajectories),
        turns=metrics.turns,
        malformed_turns=metrics.malformed_turns,
        cut_turns=metrics.cut_turns,
        calls=everything.calls,
        parallel_turns=metrics.parallel_turns,
        tool_errors={str(error): number for error, number in sorted(everything.errors.items())},
        tools={
            tool or "unknown": {"calls": counts.calls, **{str(error): n for error, n in sorted(counts.errors.items())}}
            for tool, counts in sorted(metrics.tools.items())
        },
        stops=dict(sorted(metrics.stops.items())),
        summaries=metrics.summaries,
    )
