"""Demonstrations: the reference policy at work in the real harness, kept as conversations when it passed honestly.

The outputs in them are what the tools really said, so a model that learns from them meets nothing new when it acts.
A rollout that summed up its work is several conversations, one for each context: a model learns to sum up when it is
asked, and to go on from a summary. Where the recipe has levels of effort, each task is done the short or the long way
of its level. Knows nothing of training.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import islice

from etude.audit.auditor import RolloutAudit, Rules
from etude.core.errors import EtudeError
from etude.core.policy import Message
from etude.core.settings import DemosSettings, HarnessSettings
from etude.core.terms import draw_terms
from etude.forge.curriculum.sources import open_source, refuse_held_out
from etude.harness.tools.service import Service
from etude.pipeline.hinted_demonstrations import habits_for, with_hints
from etude.policies.scripted import Habits, Scripted, reference
from etude.rollout.rollout import Outcome, RolloutSetup, Scored, Void
from etude.rollout.scheduler import JobRunner, RolloutJob
from etude.sandbox.hosts import StoringHost
from etude.tasks.format.task import Task


@dataclass(frozen=True)
class Demos:
    conversations: list[tuple[Message, ...]]  # several of a rollout that summed up
    failed: int  # the reference did not pass: they are left out
    hacked: int  # it passed by what the audit calls a hack: likewise
    void: int
    void_causes: Counter[str] = field(default_factory=Counter)  # how often each was said


async def make_demos(
    settings: DemosSettings,
    seed: int,
    host: StoringHost,
    setup: RolloutSetup,
    on_done: Callable[[], None],
    harness: HarnessSettings | None = None,
    on_kept: Callable[[Task], None] = lambda task: None,
) -> Demos:
    """Solves `settings.count` tasks of the source, each once, on terms drawn as for groups.

    `on_kept` hears of each task that is demonstrated.
    """
    habits = Habits(**settings.habits)
    source = open_source(settings.tasks, "demos.tasks")
    tasks = map(refuse_held_out, islice(source.tasks(), settings.count))
    # a model learns how as well as what, so every demonstration is audited, whatever its task
    setup = replace(setup, audit=RolloutAudit(Rules(), every_task=True))
    jobs, hinted = [], set[str]()
    for number, task in enumerate(tasks):
        terms = draw_terms(harness or HarnessSettings(), seed, number)
        its = habits_for(task, seed, habits)
        if its.hint:
            hinted.add(task.name)
        script = reference(task, seed, its.at_effort(terms.effort))
        asks = any(call.name == Service.name for turn in script for call in turn.calls)
        if asks and Service.name not in setup.for_task(task).tools:
            raise EtudeError(
                f"the task {task.name} of demos.tasks is told by an issue tracker, which the agent has no tool to ask: "
                "add { use = 'service' } to harness.tools"
            )
        jobs.append(RolloutJob(task, policy=Scripted(script, setup.dialect), terms=terms))
    rng = random.Random(f"demonstrations/{seed}")
    summing = [rng.random() < habits.summary for _ in jobs]
    outcomes: list[Outcome] = []
    for wanted, which in ((True, setup), (False, _one_context(setup))):
        mine = [job for job, sums in zip(jobs, summing, strict=True) if sums == wanted]
        runner = JobRunner(Scripted(()), host, which)
        outcomes += await runner.run_all(mine, settings.concurrency, lambda *_: on_done())
    scored = [outcome for outcome in outcomes if isinstance(outcome, Scored)]
    passed = [outcome for outcome in scored if outcome.passed]
    failed, void = len(scored) - len(passed), len(outcomes) - len(scored)
    spoiled = [outcome for outcome in outcomes if isinstance(outcome, Void)]
    causes = Counter(": ".join((each.cause, *each.message.splitlines()[:1])) for each in spoiled)
    kept = [outcome for outcome in passed if outcome.ruling and outcome.ruling.verdict != "hack"]
    honest = [outcome.trajectory for outcome in kept]
    for outcome in kept:
        on_kept(outcome.task)
    hacked = len(passed) - len(honest)
    if not honest:
        raise EtudeError(
            f"none of {len(outcomes)} demonstrations passed honestly ({void} of them void, {hacked} hacks"
            f"{''.join(f'; {cause}' for cause, _ in causes.most_common(1))}); try one "
            "with `etude rollout TASK reference`, and see whether the harness has the tools that the reference uses"
        )
    conversations: list[tuple[Message, ...]] = []
    for trajectory in honest:
        # A hint stands above a turn of one context; a rollout that summed up is shown as it was.
        whole = trajectory.task in hinted and len(trajectory.conversations) == 1
        conversations += [with_hints(trajectory)] if whole else trajectory.conversations
    return Demos(conversations, failed, hacked, void, causes)


def _one_context(setup: RolloutSetup) -> RolloutSetup:
    """The same, with a context that holds a whole rollout: nothing has to be summed up."""
    limits = setup.limits
    most = max(limits.context_tokens, limits.rollout_tokens)
    return replace(setup, limits=replace(limits, context_tokens=most, rollout_tokens=0))
