"""Asynchronous reinforcement learning of a coding agent, in one file. Read this one first.

    python examples/one_file_rl.py            # some minutes on two cores; --help lists every number

The tasks are tiny: a function is missing its body, and the instruction says in a word what it should return. A model
that knows nothing first imitates demonstrations of somebody who knows the tools and often guesses what the words mean.
Then it learns from hidden tests, by trying. Three things go on at the same time:

    rollouts    the engine samples, tools run in sandboxes, hidden tests grade what the agent left behind
    learning    one optimiser step on groups of finished rollouts, in a thread beside them
    publishing  the new weights are copied into the engine between two of its steps; running rollouts go on with them

This is the loop of `etude rl` without what makes it safe to kill: no journal, no checkpoints, no processes of their
own for engine and learner, no probe of their numerics. docs/rooms/one-step.md walks through the full one.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch

from etude.core.policy import Assistant, Call, Version
from etude.core.settings import AgentLimits, EngineSettings, HarnessSettings, ModelSettings, OptimSettings
from etude.engine.engine import Engine
from etude.engine.inline import InlinePolicy
from etude.learn.learner import Learner
from etude.learn.sft import tokenise
from etude.learn.streams import Batch, Correction, Item, Label, Stream
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder
from etude.policies.scripted import Scripted
from etude.rl.admission import Admission, Waiting
from etude.rl.algorithms.base import BatchShape
from etude.rl.algorithms.table import build_algorithm
from etude.rl.groups import Rollout, compact
from etude.rollout.rollout import GradeCache, RolloutSetup, Scored, build_setup, temporary_host
from etude.rollout.scheduler import JobRunner, RolloutJob
from etude.sandbox.hosts import StoringHost
from etude.tasks.format.config import Facts
from etude.tasks.format.file_tree import Files
from etude.tasks.format.task import TESTS, WORKSPACE, Task
from etude.tokens.native import Native
from etude.tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class Size:
    """How much of everything. The defaults learn; a test runs a smaller one."""

    depth: int = 2  # blocks of the decoder; it is 32 times as wide
    demonstrations: int = 200
    imitation_steps: int = 200
    steps: int = 120  # of reinforcement learning
    groups: int = 5  # tasks in a step
    group: int = 8  # rollouts of each
    staleness: int = 2  # most steps between the weights that began a rollout and those that it trains
    lr: float = 5e-4
    evaluation: int = 4  # rollouts of every task, before and after
    seed: int = 0
    sandbox: str = "local"  # or plain, where there are no user namespaces


# 1. Tasks. A task is a folder of files: what the agent sees, what it never sees, and which tests have to pass.

MEANINGS = {"sum": sum, "largest": max, "smallest": min, "number": len, "order": sorted}
BODIES = {word: f"return {function.__name__}(v)" for word, function in MEANINGS.items()}
NAMES = ("prices", "ages", "weights", "scores")
HOLE = "raise NotImplementedError"
LIMITS = AgentLimits(turns=2, sampled_tokens=64, context_tokens=256, malformed=1, seconds=60.0, sample_seconds=60.0)
HARNESS = HarnessSettings(tools=[{"use": "edit"}, {"use": "finish"}], system="", spec="none", limits=LIMITS)


def make_task(name: str, word: str) -> Task:
    test = f"import unittest\n\nfrom {name} import find\n\n\nclass Hidden(unittest.TestCase):\n"
    for number, v in enumerate(([3, 1, 4, 1, 6], [2, 7, 5], [8, 9, 2, 4])):
        test += f"    def test_{number}(self):\n        self.assertEqual(find({v}), {MEANINGS[word](v)})\n\n"
    hole = f"def find(v):\n    {HOLE}\n"
    files = {f"{WORKSPACE}/{name}.py": hole.encode(), f"{TESTS}/test_hidden.py": test.encode()}
    first, *others = [f"test_hidden.Hidden.test_{number}" for number in range(3)]
    facts = Facts(family=word, suite="unittest", fail_to_pass=[first], held_out=others, allowed_paths=[f"{name}.py"])
    return Task(f"{name}-{word}", f"find in {name}.py should return the {word}", facts=facts, files=Files(files))


TASKS = [make_task(name, word) for name in NAMES for word in MEANINGS]


# 2. Imitation. The learner knows no algorithm. It is given token sequences with streams, which say for each token how
#    much it counts and towards what; here, towards a label: the token that the demonstration has there.


async def demonstrate(size: Size, host: StoringHost, setup: RolloutSetup) -> list[Scored]:
    """Scripted agents in the real harness. They edit the right file, and every other time they guess the body."""
    rng, jobs = random.Random(size.seed), []
    for number in range(size.demonstrations):
        task = TASKS[number % len(TASKS)]
        word = task.facts.family if rng.random() < 0.5 else rng.choice(list(BODIES))
        edit = Call("edit", {"path": next(iter(task.workspace)), "old": HOLE, "new": BODIES[word]})
        jobs.append(RolloutJob(task, policy=Scripted([Assistant(calls=(edit, Call("finish")))], setup.dialect)))
    outcomes = await JobRunner(Scripted(()), host, setup).run_all(jobs, concurrency=8)
    return [outcome for outcome in outcomes if isinstance(outcome, Scored)]


def imitate(size: Size, decoder: Decoder, dialect: Native, demonstrations: Sequence[Scored]) -> None:
    """Supervised fine-tuning on the assistant's own tokens."""
    pieces = tokenise([scored.trajectory.messages for scored in demonstrations], dialect, LIMITS.context_tokens)
    learner = Learner(decoder, OptimSettings(lr=5e-3, muon_lr=2.5e-3), size.imitation_steps, micro_tokens=1024)
    for step in range(size.imitation_steps):
        chosen = random.Random(step).sample(pieces, min(12, len(pieces)))
        counted = np.float32(sum(own_T[1:].sum() for _, own_T in chosen))
        items = [Item(ids_T, [Stream("main", own_T / counted, Label(ids_T))]) for ids_T, own_T in chosen]
        metrics = learner.forward_backward(Batch(items))
        learner.step()
        if (step + 1) % 50 == 0:
            print(f"imitation {step + 1:4d}  loss {metrics['loss']:.3f}", flush=True)


# 3. Reinforcement.


@dataclass(eq=False)
class Group:
    """The rollouts of one task; their mean reward is what each of them is compared with."""

    number: int
    began: int  # the step of the weights that it started with
    rollouts: Sequence[Rollout] = ()
    ready: bool = False


class Loop:
    def __init__(self, size: Size, decoder: Decoder, host: StoringHost, setup: RolloutSetup) -> None:
        self.size, self.host, self.setup = size, host, setup
        optim = OptimSettings(matrices="adamw", lr=size.lr, schedule="constant", weight_decay=0.0)
        self.learner = Learner(decoder, optim, size.steps, micro_tokens=2048)
        served = Decoder(decoder.config)  # weights of its own: the learner's change while these are sampled from
        served.load_state_dict(decoder.state_dict())
        self.engine = Engine(served, EngineSettings(max_running=64, max_length=LIMITS.context_tokens), Version(0, 0))
        self.policy = InlinePolicy(self.engine)
        self.algorithm = build_algorithm({"use": "dr_grpo"})
        self.shape = BatchShape(size.groups, size.group, LIMITS.sampled_tokens)
        self.admission = Admission(size.staleness, size.groups, size.steps)
        self.waiting: dict[int, Group] = {}  # begun and not trained yet
        self.finished = asyncio.Event()
        self.begun = self.taken = self.published = 0  # groups; steps; the step whose weights the engine has
        self.stalest = 0

    async def rollouts(self, task: Task, seeds: Sequence[int]) -> list[Rollout]:
        """Rollouts of one task: fresh sandbox, agent, hidden tests, reward. What the machinery spoiled is left out."""
        jobs = [RolloutJob(task, seed=seed) for seed in seeds]
        outcomes = await JobRunner(self.policy, self.host, self.setup).run_all(jobs, concurrency=len(jobs))
        return [compact(outcome) for outcome in outcomes if isinstance(outcome, Scored)]

    async def play(self, group: Group, task: Task) -> None:
        group.rollouts = await self.rollouts(task, [self.size.group * group.number + i for i in range(self.size.group)])
        group.ready = True
        if len(group.rollouts) < self.size.group - 1:  # a mean over fewer is another one: the group is void
            del self.waiting[group.number]
        self.finished.set()

    def begin(self, running: asyncio.TaskGroup) -> None:
        """Begins as many groups as will certainly be trained before their first tokens are too old."""
        while self.admission.may_begin(len(self.waiting), self.taken, self.published):
            group = self.waiting[self.begun] = Group(self.begun, self.published)
            self.begun += 1
            running.create_task(self.play(group, TASKS[group.number % len(TASKS)]))

    async def next_groups(self, running: asyncio.TaskGroup) -> list[Group]:
        """The groups of the next step, oldest first. Finished work is never dropped for its age."""
        while True:
            self.begin(running)
            waiting = [Waiting(group.number, group.began, group.ready) for group in self.waiting.values()]
            chosen = self.admission.choose(waiting, self.taken)
            if chosen is not None:
                return [self.waiting.pop(number) for number in chosen]
            self.finished.clear()
            await asyncio.wait_for(self.finished.wait(), timeout=300)

    def batch(self, groups: Sequence[Group]) -> Batch:
        """Rewards to streams: a sampled token counts with its rollout's reward minus the group's mean."""
        items: list[Item] = []
        for group in groups:
            rewards = [rollout.reward for rollout in group.rollouts]
            for sequences in self.algorithm.items(group.rollouts, rewards, self.shape):
                items += [item for item in sequences if item.forward_tokens]  # none where all rewards are equal
            steps = [int(trace.version_T2[trace.sampled_T, 1].min()) for r in group.rollouts for trace in r.traces]
            self.stalest = max(self.stalest, self.taken - min(steps))
        # what older weights sampled is corrected by a ratio; each token has the log-probability it was sampled with
        return Batch(items, Correction("truncate", high=2.0))

    def train(self, batch: Batch) -> dict[str, float]:
        return self.learner.forward_backward(batch) | self.learner.step() if batch.items else {}

    def publish(self) -> None:
        """The learner's weights to the engine, between two of its steps. Running rollouts keep their cache."""
        weights = self.learner.decoder.state_dict()
        self.published = self.taken
        self.engine.update(lambda served: served.load_state_dict(weights) and None, Version(0, self.published))

    async def step(self, running: asyncio.TaskGroup) -> float:
        """One step; rollouts go on all the while. Returns the mean reward of what it trained on."""
        groups = await self.next_groups(running)
        batch = self.batch(groups)
        self.taken += 1
        self.begin(running)
        await asyncio.to_thread(self.train, batch)
        self.publish()
        return float(np.mean([rollout.reward for group in groups for rollout in group.rollouts]))

    async def evaluate(self) -> float:
        """Mean reward over all tasks, with the same seeds every time."""
        played = await asyncio.gather(*(self.rollouts(task, range(self.size.evaluation)) for task in TASKS))
        return float(np.mean([rollout.reward for rollouts in played for rollout in rollouts]))


async def learn(size: Size) -> dict[str, float]:
    began = time.monotonic()
    dialect = Native(Tokenizer.train([HOLE, *BODIES.values(), *(task.instruction for task in TASKS)], 400))
    decoder = Decoder(ModelConfig.from_settings(ModelSettings(depth=size.depth), dialect.vocab_size), size.seed)
    setup = replace(build_setup(HARNESS, dialect=dialect), grade_cache=GradeCache())  # equal answers are graded once
    async with temporary_host(size.sandbox) as host:
        await asyncio.to_thread(imitate, size, decoder, dialect, await demonstrate(size, host, setup))
        loop = Loop(size, decoder, host, setup)
        before = await loop.evaluate()
        print(f"reward before: {before:.2f} ({time.monotonic() - began:.0f} s)", flush=True)
        async with asyncio.TaskGroup() as running:
            for step in range(1, size.steps + 1):
                reward = await loop.step(running)
                print(f"step {step:4d}  reward {reward:.2f}  {'#' * round(40 * reward)}", flush=True)
        after = await loop.evaluate()
    print(f"reward {before:.2f} -> {after:.2f} ({time.monotonic() - began:.0f} s)")
    return {"before": before, "after": after, "stalest": loop.stalest, "updates": loop.engine.counts.updates}


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description="asynchronous reinforcement learning in one file")
    for each in fields(Size):
        parser.add_argument(f"--{each.name.replace('_', '-')}", type=type(each.default), default=each.default)
    torch.set_num_threads(1)  # one core for the engine, one for the learner
    return asyncio.run(learn(Size(**vars(parser.parse_args(arguments)))))


if __name__ == "__main__":
    main()
