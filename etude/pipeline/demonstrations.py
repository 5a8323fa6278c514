"""Demonstrations: the reference policy at work in the real harness, kept as conversations when it passed honestly.

The outputs in them are what the tools really said, so a model that learns from them meets nothing new when it acts.
Knows nothing of training.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice

from etude.audit.auditor import RolloutAudit, Rules
from etude.core.errors import EtudeError
from etude.core.policy import Message
from etude.core.settings import DemosSettings
from etude.forge.curriculum.sources import open_source, refuse_held_out
from etude.policies.scripted import Habits, Scripted, reference
from etude.rollout.rollout import RolloutSetup, Scored
from etude.rollout.scheduler import JobRunner, RolloutJob
from etude.sandbox.hosts import StoringHost


@dataclass(frozen=True)
class Demos:
    conversations: list[tuple[Message, ...]]  # in the order of the tasks
    failed: int  # the reference did not pass: they are left out
    hacked: int  # it passed by what the audit calls a hack: likewise
    void: int


async def make_demos(
    settings: DemosSettings,
    seed: int,
    host: StoringHost,
    setup: RolloutSetup,
    on_done: Callable[[], None],
) -> Demos:
    """Solves `settings.count` tasks of the source, each once."""
    habits = Habits(**settings.habits)
    source = open_source(settings.tasks, "demos.tasks")
    tasks = map(refuse_held_out, islice(source.tasks(), settings.count))
    # a model learns how as well as what, so every demonstration is audited, whatever its task
    setup = replace(setup, audit=RolloutAudit(Rules(), every_task=True))
    jobs = [RolloutJob(task, policy=Scripted(reference(task, seed, habits), setup.dialect)) for task in tasks]
    outcomes = await JobRunner(Scripted(()), host, setup).run_all(jobs, settings.concurrency, lambda *_: on_done())
    scored = [outcome for outcome in outcomes if isinstance(outcome, Scored)]
    passed = [outcome for outcome in scored if outcome.passed]
    failed, void = len(scored) - len(passed), len(outcomes) - len(scored)
    honest = [outcome.trajectory.messages for outcome in passed if outcome.ruling and outcome.ruling.verdict != "hack"]
    hacked = len(passed) - len(honest)
    if not honest:
        raise EtudeError(
            f"none of {len(outcomes)} demonstrations passed honestly ({void} of them void, {hacked} hacks); try one "
            "with `etude rollout TASK reference`, and see whether the harness has the tools that the reference uses"
        )
    return Demos(honest, failed, hacked, void)
