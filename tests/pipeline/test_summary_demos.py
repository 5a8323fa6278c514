"""Demonstrations of summaries and of effort, on chains of katas: what is shown is what the harness will ask for."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Any

import numpy as np
import pytest

from etude.core.policy import Assistant, Call, System, User
from etude.core.settings import AgentLimits, DemosSettings, HarnessSettings, SummarySettings
from etude.forge.curriculum.sources import open_source
from etude.harness.summary import REQUEST
from etude.pipeline.demonstrations import make_demos
from etude.policies.script_summaries import summary_words, turns_before
from etude.policies.scripted import Habits, Scripted, reference
from etude.rl.algorithms.base import BatchShape
from etude.rl.algorithms.table import build_algorithm
from etude.rl.groups import compact
from etude.rollout.rollout import Scored, build_setup, run_rollout
from etude.sandbox.hosts import StoringHost
from etude.tasks.check import check
from etude.tasks.format.task import Task
from etude.tokens.native import Native
from etude.tokens.tokenizer import Tokenizer

CHAINS = {"use": "kata_chains", "pieces": 4, "levels": [1], "prompt_styles": ["terse"], "seed": 5}
PLAIN = Habits(think=0, look=0, together=0, slip=0, whole=0, check=0, report=0, one_by_one=1)
TOOLS = [{"use": name} for name in ("read", "edit", "finish")]


def harness(context: int, rollout: int, **more: Any) -> HarnessSettings:
    limits = AgentLimits(turns=20, sampled_tokens=2000, context_tokens=context, rollout_tokens=rollout)
    summary = SummarySettings(max_tokens=80, at=context - 150)
    return HarnessSettings(tools=TOOLS, system="", spec="none", limits=limits, summary=summary, **more)


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    return list(islice(open_source(CHAINS).tasks(), 3))


@pytest.fixture(scope="module")
def dialect(tasks: list[Task]) -> Native:
    texts = [task.files.text(path) for task in tasks for path in task.files if path.endswith(".py")]
    return Native(Tokenizer.train(texts, 700))


def test_a_chain_is_a_sound_task_and_the_same_again(
    tasks: list[Task], sandboxes: tuple[asyncio.AbstractEventLoop, StoringHost]
) -> None:
    loop, host = sandboxes
    again = next(open_source(CHAINS).tasks(2))
    assert (again.name, again.instruction, dict(again.files)) == (
        tasks[2].name,
        tasks[2].instruction,
        dict(tasks[2].files),
    )
    assert len(tasks[0].facts.deleted) == 4 and len({task.name for task in tasks}) == 3
    assert tasks[0].instruction.count("\n") == 3
    assert loop.run_until_complete(check(tasks[0], host)).ok


def test_a_script_goes_on_from_its_own_summary() -> None:
    turns = [Assistant(calls=(Call(name, {"path": path}),)) for path in ("a", "b") for name in ("read", "edit")]
    turns.append(Assistant(calls=(Call("finish"),)))
    said = [summary_words(turns, number) for number in range(5)]
    assert said == ["Next: a.", "Next: a.", "Next: b.", "Next: b.", "Next: nothing."]
    resumed = [turns_before(turns, [User(f"Do it.\n\nSummary 1:\n{words}")]) for words in said]
    assert resumed == [0, 0, 2, 2, 4]  # what was read before is read again
    assert turns_before(turns, [User("Do it.")]) == 0


def test_a_chain_longer_than_its_context_is_solved_with_summaries_only(
    tasks: list[Task], dialect: Native, sandboxes: tuple[asyncio.AbstractEventLoop, StoringHost]
) -> None:
    loop, host = sandboxes

    def run(settings: HarnessSettings) -> list[Scored]:
        found = []
        for task in tasks:
            policy = Scripted(reference(task, 0, PLAIN), dialect)
            setup = build_setup(settings, dialect=dialect)
            outcome = loop.run_until_complete(run_rollout(task, policy, host, setup))
            assert isinstance(outcome, Scored)
            found.append(outcome)
        return found

    whole = [len(one.trajectory.segments[0].ids) for one in run(harness(4000, 0))]
    short = run(harness(500, 6000))
    assert [one.trajectory.stop for one in short] == ["finish"] * 3 and all(one.passed for one in short), whole
    assert all(one.trajectory.summaries for one in short)
    assert min(whole) > 500 and not any(one.passed for one in run(harness(500, 0)))


def test_a_trail_is_a_sound_task_that_needs_summaries_in_half_its_length(
    dialect: Native, sandboxes: tuple[asyncio.AbstractEventLoop, StoringHost]
) -> None:
    loop, host = sandboxes
    trail = {"use": "kata_trails", "hops": 5, "levels": [1], "prompt_styles": ["terse"], "seed": 5}
    task = next(open_source(trail).tasks(2))
    assert loop.run_until_complete(check(task, host)).ok
    first, *_, last = [*task.facts.parameters["trail"], task.facts.deleted[0].partition(":")[0]]
    assert first in task.instruction and last not in task.instruction and len(task.facts.parameters["trail"]) == 5

    def run(context: int, rollout: int) -> Scored:
        setup = build_setup(harness(context, rollout), dialect=dialect)
        policy = Scripted(reference(task, 0, PLAIN), dialect)
        outcome = loop.run_until_complete(run_rollout(task, policy, host, setup))
        assert isinstance(outcome, Scored)
        return outcome

    whole = run(4000, 0)
    half = len(whole.trajectory.segments[0].ids) // 2
    short = run(half, 4000)
    assert whole.passed and short.passed and short.trajectory.summaries >= 2
    assert not run(half, 0).passed


def test_demonstrations_hold_a_conversation_for_each_context_and_both_ways_of_a_task(
    dialect: Native, sandboxes: tuple[asyncio.AbstractEventLoop, StoringHost]
) -> None:
    loop, host = sandboxes
    settings = harness(700, 4000, effort={"low": 1, "high": 1})
    habits = {"look": 0.0, "slip": 0.0, "check": 0.0, "one_by_one": 1.0, "summary": 0.5, "together": 0.0, "whole": 0.0}
    asked = DemosSettings(tasks=CHAINS, count=6, habits=habits)
    setup = build_setup(settings, dialect=dialect)
    made = loop.run_until_complete(make_demos(asked, 0, host, setup, lambda: None, settings))
    assert made.failed == made.void == 0 and len(made.conversations) > 6
    low, high = (
        [talk for talk in made.conversations if talk[0] == System(f"Effort: {level}.")] for level in ("low", "high")
    )
    assert low and high and len(low) + len(high) == len(made.conversations)
    assert not any(turn.thinking for talk in low for turn in talk if isinstance(turn, Assistant))
    assert all(turn.thinking for talk in high for turn in talk if isinstance(turn, Assistant) and turn.calls)
    asks = [(talk[-2], talk[-1]) for talk in made.conversations if User(REQUEST) in talk]
    assert asks and all(asked == User(REQUEST) and said.final.startswith("Next: ") for asked, said in asks)  # type: ignore[union-attr]
    goes_on = [talk for talk in made.conversations if "Summary " in talk[1].text]  # type: ignore[union-attr]
    assert len(goes_on) == len(asks)


def test_the_final_reward_reaches_every_sampled_token_of_the_chain(
    tasks: list[Task], dialect: Native, sandboxes: tuple[asyncio.AbstractEventLoop, StoringHost]
) -> None:
    """One baseline for each rollout, whatever its number of contexts; summaries are trained like turns."""
    loop, host = sandboxes

    class Sampled(Scripted):
        async def sample(self, context: Any, sampling: Any) -> Any:
            from dataclasses import replace

            from etude.core.policy import Version

            sample = await super().sample(context, sampling)
            tokens = len(sample.ids or ())
            return replace(sample, logprobs=(-0.5,) * tokens, versions=(Version(0, 0),) * tokens)

    setup = build_setup(harness(700, 4000), dialect=dialect)
    turns = reference(tasks[0], 0, PLAIN)
    scripts = [turns, [Assistant(calls=(Call("finish"),))]]
    rollouts = []
    for script in scripts:
        outcome = loop.run_until_complete(run_rollout(tasks[0], Sampled(script, dialect), host, setup))
        assert isinstance(outcome, Scored)
        rollouts.append(compact(outcome))
    assert [rollout.reward for rollout in rollouts] == [1.0, 0.0] and len(rollouts[0].traces) > 1
    algorithm = build_algorithm({"use": "dr_grpo"})
    shape = BatchShape(groups=1, group=2, longest=100)
    found = algorithm.items(rollouts, [rollout.reward for rollout in rollouts], shape)
    for rollout, items, advantage in zip(rollouts, found, (0.5, -0.5), strict=True):
        assert len(items) == len(rollout.traces)
        for trace, item in zip(rollout.traces, items, strict=True):
            (stream,) = item.streams
            assert np.array_equal(stream.weight_T != 0, trace.sampled_T)
            assert np.allclose(stream.target.advantage_T[trace.sampled_T], advantage)  # type: ignore[union-attr]
    assert sum(int(trace.sampled_T.sum()) for trace in rollouts[0].traces) > sum(
        len(dialect.turn_ids(turn)) for turn in turns
    )
