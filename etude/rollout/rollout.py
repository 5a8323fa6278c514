"""One rollout: a task tried once, from a fresh sandbox to a reward. Nothing is tried in any other way.

    sandbox -> agent -> submission -> sandbox closed -> grade in another sandbox -> audit -> reward

The outcome is `Scored`, or `Void` with whose failure it was. What the model does badly (an unreadable turn, a limit
reached, code that hangs, cheats or brings its sandbox down) is a score, a low one; what the machinery does badly never
is. `build_setup` decides what all rollouts of a command share: how they sample, what they are worth, and which of them
are audited. Knows neither how a policy samples nor what is done with an outcome; `store` saves and grades again.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from etude.audit.auditor import RolloutAudit, Rules
from etude.audit.base import Finding, Ruling
from etude.audit.watched import Watch
from etude.behaviours.base import Behaviour, Site
from etude.behaviours.table import find_each, in_order
from etude.core.errors import EtudeError
from etude.core.policy import Policy, Sampling
from etude.core.settings import (
    AgentLimits,
    AuditSettings,
    EngineSettings,
    GraderSettings,
    HarnessSettings,
    RewardSettings,
    SummarySettings,
)
from etude.core.terms import NO_TERMS, Terms, usual_terms
from etude.harness.failures import HarnessFailure, PolicyFailure, SandboxLost
from etude.harness.hinted import Hinted, place_hints
from etude.harness.loop import Event, run_agent
from etude.harness.prompt import system_text, task_text
from etude.harness.tools.base import Tool, schema_of
from etude.harness.tools.table import build_tools
from etude.harness.trajectory import Trajectory
from etude.reward.base import GradedRollout
from etude.reward.compose import Reward, Weighted, build_reward
from etude.reward.hack_penalty import HackPenalty
from etude.rollout.agent_environments import WITHOUT_SANDBOX, AgentEnvironment, build_environments
from etude.rollout.privileged import TEXTS, first_turn
from etude.rollout.prompt_context import earlier_messages, recent_files
from etude.sandbox.base import FailureCause, Layer, Sandbox, SandboxFailure, SandboxLimits
from etude.sandbox.hosts import StoringHost, open_host
from etude.sandbox.sentinel import CAUSED_INSIDE, host_works
from etude.tasks.environment.layers import serve_task
from etude.tasks.environment.network import granted_network
from etude.tasks.environment.shadow_backend import read_backend
from etude.tasks.format.task import Task
from etude.tasks.grade import grade
from etude.tasks.grading.grader import RUNNER, GraderFailure
from etude.tasks.grading.submission import MOST_HELD, Submission
from etude.tasks.grading.verdict import Grade
from etude.tasks.kinds.base import SandboxStart
from etude.tasks.kinds.table import kind_of
from etude.tokens.dialect import Dialect

Cause = Literal["sandbox", "policy", "grader", "harness"]

# Trying again helps against a bad moment, not against a host that is gone or a disk that is full.
RETRIED: dict[FailureCause, bool] = {
    "start": True,
    "died": True,
    "deadline": True,
    "protocol": True,
    "host": True,  # on another machine
    "launcher": False,
    "store": False,
    "closed": False,
}


_Key = tuple[int, Submission, str]


@dataclass(frozen=True)
class RolloutSetup:
    """What all rollouts of a command share."""

    tools: dict[str, Tool]
    reward: Reward
    audit: RolloutAudit
    dialect: Dialect | None = None  # None: the policy speaks text, and nothing can be trained on
    limits: AgentLimits = field(default_factory=AgentLimits)
    summary: SummarySettings = field(default_factory=SummarySettings)
    terms: Terms = NO_TERMS  # of rollouts that belong to no group
    sampling: Sampling = field(default_factory=Sampling)  # but for the seed, which is the rollout's own
    system: str = ""
    recent_files: int = 0  # that the prompt shows, at most
    history: int = 0  # earlier messages that it shows, at most
    strict: bool = True  # whether a call that is nearly right is refused
    environments: Mapping[str, AgentEnvironment] = field(default_factory=dict)  # of some tasks: other tools
    grader: GraderSettings = field(default_factory=GraderSettings)
    sandbox: SandboxLimits = field(default_factory=SandboxLimits)
    allowed_hosts: tuple[str, ...] = ()  # that tasks may open to their agents
    grade_cache: GradeCache | None = None  # None grades every rollout, equal ones too
    taught: tuple[Behaviour, ...] = ()  # whose hints are wanted above their turns
    watched: tuple[Behaviour, ...] = ()  # whose sites are only counted
    context: Literal["turn", "errors", "solution"] = "turn"  # where hints stand, as in rl.feedback

    def at_temperature(self, temperature: float) -> RolloutSetup:
        return replace(self, sampling=replace(self.sampling, temperature=temperature))

    @property
    def behaviours(self) -> list[Behaviour]:
        """All whose sites somebody asks for: hints, rates and rewards."""
        return [*(self.taught if self.context == "turn" else ()), *self.watched, *self.reward.behaviours]

    @property
    def every_limits(self) -> dict[str, AgentLimits]:
        """Those of all tasks, and those of environments that have their own, by where a recipe sets them."""
        own = {f"harness.environments.{name}.limits": each.limits for name, each in self.environments.items()}
        return {"harness.limits": self.limits} | {where: limits for where, limits in own.items() if limits is not None}

    def for_task(self, task: Task) -> RolloutSetup:
        """With the tools and limits of the task's environment: that of its family, of its category, or of all tasks."""
        facts = task.facts
        names = (facts.family, facts.category, *(() if facts.sandbox else (WITHOUT_SANDBOX,)))
        found = next((self.environments[name] for name in names if name in self.environments), None)
        if found is None:
            return self
        own = replace(self, tools=found.tools, system=found.system, strict=found.strict, environments={})
        if found.limits is None:
            return own
        sampling = replace(self.sampling, max_tokens=found.limits.sampled_tokens)
        return replace(own, limits=found.limits, sampling=sampling)


class GradeCache:
    """The newest grades by task, submission and, where it counts, answer: rollouts of a group often end in the same
    file, and that is graded once.

    Whoever comes while the first is being graded waits for it. A failure of the machinery is nobody's grade and is
    forgotten, so that the next rollout is graded anew.
    """

    # 512 grades took an hour to fill and looked like a leak; groups in flight need no more than these.
    def __init__(self, most: int = 128) -> None:
        self.most = most
        self.asked = self.reused = 0
        self._grades: OrderedDict[_Key, tuple[Task, asyncio.Task[Grade]]] = OrderedDict()

    async def grade(
        self, task: Task, host: StoringHost, changes: Submission, settings: GraderSettings, *, answer: str = ""
    ) -> Grade:
        # Most kinds grade files alone: for those, other last words are still the same submission.
        counted = answer if kind_of(task).reads_answer else ""
        key = (id(task), changes, counted)  # the task is kept beside its grade, so its id is nobody else's
        self.asked += 1
        if key in self._grades:
            self.reused += 1
        else:
            self._grades[key] = task, asyncio.create_task(grade(task, host, changes, settings, answer=counted))
            self._grades[key][1].add_done_callback(lambda done: self._forget_failure(key, done))
            held = sum(changes.size for _, changes, _ in self._grades)
            while len(self._grades) > 1 and (len(self._grades) > self.most or held > MOST_HELD):
                (_, oldest, _), _ = self._grades.popitem(last=False)
                held -= oldest.size
        # shielded: one that is cancelled must not take the grade away from the others who wait for it
        return await asyncio.shield(self._grades[key][1])

    async def close(self) -> None:
        """Ends the grading under way: those who asked have left, and the host is about to close."""
        under_way = [grading for _, grading in self._grades.values() if not grading.done()]
        for grading in under_way:
            grading.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)

    def _forget_failure(self, key: _Key, done: asyncio.Task[Grade]) -> None:
        if done.cancelled() or done.exception() is not None:
            self._grades.pop(key, None)


def build_setup(
    harness: HarnessSettings | None = None,
    reward: RewardSettings | None = None,
    grader: GraderSettings | None = None,
    audit: AuditSettings | None = None,
    *,
    dialect: Dialect | None = None,
    temperature: float = 1.0,
    sandbox: SandboxLimits | None = None,
    native_calls: bool = False,
) -> RolloutSetup:
    """A setup from the sections of a recipe. With `native_calls` the policy itself shows the tools to the model."""
    harness = harness or HarnessSettings()
    worth, audited = reward_and_audit(reward or RewardSettings(), audit or AuditSettings())
    setup = RolloutSetup(
        tools={},
        reward=worth,
        audit=audited,
        dialect=dialect,
        limits=harness.limits,
        summary=harness.summary,
        terms=usual_terms(harness),
        # a turn may take all that the whole rollout may sample; the harness counts
        sampling=Sampling(harness.limits.sampled_tokens, temperature),
        recent_files=harness.recent_files,
        history=harness.history,
        strict=harness.strict,
        grader=grader or GraderSettings(),
        sandbox=sandbox or SandboxLimits(),
        allowed_hosts=tuple(harness.allowed_hosts),
    )
    return with_tools(setup, harness, native_calls=native_calls)


def with_tools(setup: RolloutSetup, harness: HarnessSettings, *, native_calls: bool = False) -> RolloutSetup:
    """A setup with the tools that these settings name, and what the prompt says of them."""
    tools, dialect = build_tools(harness.tools), setup.dialect
    spec = "none" if native_calls or (dialect is not None and dialect.shows_tools) else harness.spec
    text_form = dialect is None and not native_calls
    return replace(
        setup,
        tools=tools,
        system=system_text(harness.system, tools, spec, text_form=text_form),
        environments=build_environments(harness, tools, spec, text_form=text_form),
    )


def reward_and_audit(reward: RewardSettings, audit: AuditSettings) -> tuple[Reward, RolloutAudit]:
    """The recipe's reward, and which rollouts are audited: those of tasks made from repositories always are.

    What a hack costs there is `audit.penalty`, unless the recipe names the part `hack_penalty` itself.
    """
    found = build_reward(reward.parts)
    penalties = [each.part for each in found.parts if isinstance(each.part, HackPenalty)]
    if not penalties:
        penalties = [HackPenalty(HackPenalty.Settings.model_validate({"tasks": "made"}))]
        found = Reward((*found.parts, Weighted("hack_penalty", audit.penalty, penalties[0])))
    every_task = any(part.settings.tasks == "all" for part in penalties)
    return found, RolloutAudit(Rules(penalties[0].detectors), every_task, Watch() if audit.watch else None)


def check_lengths(setup: RolloutSetup, engine: EngineSettings) -> None:
    """Refuses an engine that could not answer the longest rollouts."""
    for where, limits in setup.every_limits.items():
        if limits.context_tokens > engine.max_length:
            raise EtudeError(
                f"{where}.context_tokens is {limits.context_tokens}, more than engine.max_length = "
                f"{engine.max_length}: the engine would refuse the longest rollouts; lower the first or raise the other"
            )


@asynccontextmanager
async def temporary_host(backend: str) -> AsyncIterator[StoringHost]:
    """Sandboxes for one command, with the grader's runner warm; nothing of them is left afterwards."""
    with tempfile.TemporaryDirectory(prefix="etude-store-") as store:
        async with await open_host(backend, Path(store), preload=(RUNNER,)) as host:
            yield host


@dataclass(frozen=True)
class Scored:
    """A rollout and what it is worth."""

    task: Task
    trajectory: Trajectory
    changes: Submission
    grade: Grade
    reward: float
    parts: dict[str, float]  # before their weights
    seconds: float = 0.0
    ruling: Ruling | None = None  # None: rollouts of this task are not audited
    sites: tuple[Site, ...] = ()  # where behaviours happened
    hints: tuple[Hinted, ...] = ()  # those of the sites that could be put above their turn
    starting: float = 0.0  # of the seconds, those until its sandbox was there

    @property
    def passed(self) -> bool:
        return self.grade.passed


@dataclass(frozen=True)
class Void:
    """A rollout that the machinery spoiled: it says nothing about the policy."""

    task: Task
    cause: Cause
    retry: bool  # whether trying again makes sense
    message: str
    trajectory: Trajectory | None = None  # as far as it came
    seconds: float = 0.0


Outcome = Scored | Void


async def run_rollout(
    task: Task,
    policy: Policy,
    host: StoringHost,
    setup: RolloutSetup,
    *,
    policy_name: str = "",
    seed: int = 0,
    terms: Terms = NO_TERMS,
    on_event: Callable[[Event], None] | None = None,
    save: Callable[[Outcome], None] | None = None,
) -> Outcome:
    """Lets a policy try a task once, on the terms of its group or, without any, on the setup's own.

    `save` keeps the outcome; where it cannot, nothing was gained: Void.
    """
    started = time.monotonic()
    outcome = await _run(task, policy, host, setup, policy_name, seed, terms, on_event, started)
    if save is not None:
        try:
            save(outcome)
        except (OSError, EtudeError) as error:
            why = f"the rollout could not be saved: {error}"
            return Void(task, "harness", False, why, outcome.trajectory, time.monotonic() - started)
    return outcome


async def _run(
    task: Task,
    policy: Policy,
    host: StoringHost,
    setup: RolloutSetup,
    policy_name: str,
    seed: int,
    terms: Terms,
    on_event: Callable[[Event], None] | None,
    started: float,
) -> Outcome:
    setup = setup.for_task(task)
    trajectory: Trajectory | None = None
    layers: Sequence[Layer] | None = None  # of the sandbox that the agent works in, while it does

    def void(cause: Cause, retry: bool, error: Exception, seen: Trajectory | None) -> Void:
        if seen is not None:
            seen.task, seen.policy = task.name, policy_name
        return Void(task, cause, retry, str(error), seen, time.monotonic() - started)

    try:
        backend = read_backend(task)
    except EtudeError as broken:  # the task's fault: it costs this rollout, not the run
        return void("harness", False, broken, None)
    try:
        kind = kind_of(task)
        async with _place(task, host, setup) as (sandbox, start):
            layers, starting = start.layers, time.monotonic() - started
            trajectory = await run_agent(
                task_text(task.instruction, recent_files(task, setup.recent_files)),
                sandbox,
                policy,
                dialect=setup.dialect,
                tools=setup.tools,
                limits=setup.limits,
                sampling=replace(setup.sampling, seed=seed),
                system=setup.system,
                history=earlier_messages(task, setup.history),
                terms=setup.terms if terms == NO_TERMS else terms,
                summary=setup.summary,
                on_event=on_event,
                root=start.workdir,
                strict=setup.strict,
                backend=backend,
            )
            trajectory.task, trajectory.policy = task.name, policy_name
            changes = Submission() if sandbox is None else await kind.collect(task, sandbox, start.workdir)
        layers = None
        # Behind the `async with`: every process of the agent is gone before the grade begins.
        return replace(await score(task, trajectory, changes, host, setup, started), starting=starting)
    except SandboxFailure as failure:
        seen = failure.trajectory if isinstance(failure, SandboxLost) else trajectory
        # Never sampled again because of what ran inside: only a host that is broken makes this nobody's score.
        if (
            seen is not None
            and layers is not None
            and failure.cause in CAUSED_INSIDE
            and await host_works(host, layers)
        ):
            seen.task, seen.policy = task.name, policy_name
            why = f"the agent's sandbox did not live to be graded, and others of its host do: {failure}"
            return await _scored(task, seen, Submission(), Grade(False, "crash", why), setup, started)
        return void("sandbox", RETRIED[failure.cause], failure, seen)
    except PolicyFailure as failure:
        return void("policy", failure.retry, failure, failure.trajectory)
    except HarnessFailure as failure:
        return void("harness", False, failure, failure.trajectory)
    except GraderFailure as failure:
        return void("grader", True, failure, trajectory)


@asynccontextmanager
async def _place(
    task: Task, host: StoringHost, setup: RolloutSetup
) -> AsyncIterator[tuple[Sandbox | None, SandboxStart]]:
    """The sandbox that the agent works in, with the task's services; none where the task is only a question."""
    if not task.facts.sandbox:
        yield None, SandboxStart((), {})
        return
    start = await kind_of(task).start(task, host)
    async with await host.start(
        start.layers,
        limits=setup.sandbox,
        network=granted_network(start.network, setup.allowed_hosts),
        env=start.env,
        workdir=start.workdir,
    ) as sandbox:
        await serve_task(task, host, sandbox)
        yield sandbox, start


async def score(
    task: Task,
    trajectory: Trajectory,
    changes: Submission,
    host: StoringHost,
    setup: RolloutSetup,
    started: float | None = None,
) -> Scored:
    """Grades, audits and rewards what an agent left behind. Raises what the machinery did wrong."""
    started = time.monotonic() if started is None else started
    grade_once = setup.grade_cache.grade if setup.grade_cache is not None else grade
    graded = await grade_once(task, host, changes, setup.grader, answer=trajectory.last_words)
    watched = await setup.audit.watched(task, host, changes, setup.grader, passed=graded.passed)
    return await _scored(task, trajectory, changes, graded, setup, started, watched)


async def _scored(
    task: Task,
    trajectory: Trajectory,
    changes: Submission,
    graded: Grade,
    setup: RolloutSetup,
    started: float,
    watched: Sequence[Finding] = (),
) -> Scored:
    # on the event loop, as it is short: 0.9 ms for most rollouts, 7.9 for those that rewrite the right files (medians)
    ruling = setup.audit.ruling(task, trajectory, changes, watched)
    found = await find_each(setup.behaviours, trajectory)
    total, parts = setup.reward.score(GradedRollout(task, trajectory, changes, graded, ruling, found))
    sites, hints = hints_of(task, trajectory, setup, found)
    seconds = time.monotonic() - started
    return Scored(task, trajectory, changes, graded, total, parts, seconds, ruling, sites, hints)


def hints_of(
    task: Task, trajectory: Trajectory, setup: RolloutSetup, found: Mapping[Behaviour, Sequence[Site]]
) -> tuple[tuple[Site, ...], tuple[Hinted, ...]]:
    """Where behaviours happened, and the hints that can stand above their turns.

    Only sites of taught behaviours have a hint; the others, and those that a reward counts, are there for their rates.
    With a context of the whole rollout there is one hint, above all of it, and no other.
    """
    by_turn = setup.context == "turn"
    taught = in_order(found[each] for each in setup.taught) if by_turn else _whole(task, trajectory, setup)
    known = {(site.message, site.kind) for site in taught}
    counted = [site for each in (*setup.watched, *setup.reward.behaviours) for site in found[each]]
    others = {replace(site, hint="") for site in counted if (site.message, site.kind) not in known}
    sites = tuple(sorted((*taught, *others), key=lambda site: (site.message, site.kind)))
    if not taught or setup.dialect is None:
        return sites, ()
    schemas = [schema_of(tool) for tool in setup.for_task(task).tools.values()]
    wanted = [(site.message, site.hint) for site in sites]
    hints = place_hints(trajectory, wanted, setup.dialect, schemas)
    if setup.context != "turn":  # it holds for every turn of the segment
        hints = [replace(hint, end=len(trajectory.segments[hint.segment].ids)) for hint in hints]
    return sites, tuple(hints)


def _whole(task: Task, trajectory: Trajectory, setup: RolloutSetup) -> tuple[Site, ...]:
    """The one site of a context above the whole rollout, if there is anything to say."""
    turn, text = first_turn(trajectory), TEXTS[setup.context](task, trajectory)
    return (Site(turn, f"privileged.{setup.context}", text),) if turn is not None and text else ()
