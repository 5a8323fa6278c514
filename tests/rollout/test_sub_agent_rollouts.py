"""A rollout with a sub-agent from sandbox to reward, and as the learner gets it."""

from __future__ import annotations

import asyncio

from etude.behaviours.base import steps_of
from etude.core.policy import Assistant, Call, Context, Sample, Sampling, User, Version
from etude.core.settings import HarnessSettings
from etude.forge.katas.task_source import katas
from etude.harness.atif import to_atif
from etude.rl.groups import compact, pack, unpack
from etude.rollout.rollout import Scored, build_setup, run_rollout
from etude.sandbox.hosts import StoringHost
from etude.tasks.format.task import Task
from etude.tokens.native import Native
from etude.tokens.tokenizer import Tokenizer


class Pair:
    """An agent that lets a sub-agent read, then writes what the task wants."""

    def __init__(self, task: Task, dialect: Native) -> None:
        self.dialect = dialect
        path = task.facts.deleted[0].partition(":")[0]
        self.turns = [
            Assistant(calls=(Call("agent", {"task": f"Tell what {path} lacks."}),)),
            Assistant(calls=(Call("write", {"path": path, "text": task.solution.text(path)}),)),
            Assistant(calls=(Call("finish", {"message": "mended"}),)),
        ]
        self.sub_turns = [
            Assistant(calls=(Call("read", {"path": path}), Call("read", {"path": "gone.py"}))),
            Assistant(final="a body"),
        ]

    async def sample(self, context: Context, sampling: Sampling) -> Sample:
        first = next(message for message in context.messages if isinstance(message, User))
        turns = self.sub_turns if first.text.startswith("Tell what") else self.turns
        turn = turns[sum(isinstance(message, Assistant) for message in context.messages)]
        ids = tuple(self.dialect.turn_ids(turn, context.messages))
        return Sample("", "stop", ids, (-0.5,) * len(ids), (Version(0, 2),) * len(ids))


def test_a_sub_agents_tokens_are_trained_with_the_rollouts_reward(
    sandboxes: tuple[asyncio.AbstractEventLoop, StoringHost],
) -> None:
    loop, host = sandboxes
    task = next(katas("train", 1, seed=8, levels=[1]))
    dialect = Native(Tokenizer.train([task.instruction, *(task.workspace.text(path) for path in task.workspace)], 400))
    tools = [{"use": name} for name in ("read", "write", "agent", "finish")]
    setup = build_setup(HarnessSettings(tools=tools), dialect=dialect)
    outcome = loop.run_until_complete(run_rollout(task, Pair(task, dialect), host, setup))
    assert isinstance(outcome, Scored) and outcome.passed and outcome.trajectory.trainable
    assert outcome.trajectory.answer == "mended"
    rollout = unpack(pack(compact(outcome)))
    agent, sub_agent = rollout.traces
    assert [agent.cause, sub_agent.cause] == ["start", "sub-agent"] and rollout.reward == 1.0
    # Every token that the policy gave is trained once, those of the sub-agent too.
    said = [*Pair(task, dialect).turns, *Pair(task, dialect).sub_turns]
    given = [len(list(dialect.turn_ids(turn, ()))) for turn in said]
    assert (int(agent.sampled_T.sum()), int(sub_agent.sampled_T.sum())) == (sum(given[:3]), sum(given[3:]))
    assert rollout.tools["read"] == {"calls": 2, "UnexpectedEnvironment": 1} and rollout.turns == 5
    names = [(step.call.name, step.result is not None) for step in steps_of(outcome.trajectory)]
    assert names == [("agent", True), ("write", True), ("finish", False), ("read", True), ("read", True)]
    assert [document["extra"]["cause"] for document in to_atif(outcome.trajectory, "one")] == ["start", "sub-agent"]
