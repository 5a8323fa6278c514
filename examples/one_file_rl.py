"""Asynchronous reinforcement learning of a coding agent, in one file. Read this one first.

    python examples/one_file_rl.py            # a few minutes on two cores
    python examples/one_file_rl.py --help     # every number can be changed

A model that knows nothing imitates a few demonstrations, until it can use the tools and solves some tasks. Then it
learns from its own rollouts. Three things go on at the same time:

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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from itertools import islice

import numpy as np

from etude.core.policy import Sampling, Version
from etude.core.process import prepare
from etude.core.settings import AgentLimits, EngineSettings, HarnessSettings, ModelSettings, OptimSettings
from etude.engine.engine import Engine
from etude.forge.katas.source import katas
from etude.learn.learner import Learner
from etude.learn.sft import tokenise
from etude.learn.streams import Batch, Correction, Item, Label, Stream
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder
from etude.policies.inline import InlinePolicy
from etude.policies.scripted import Habits, Scripted, reference
from etude.rl.admission import Admission, Waiting
from etude.rl.algorithms.base import BatchShape
from etude.rl.algorithms.table import build_algorithm
from etude.rl.groups import Rollout, compact
from etude.rollout.rollout import RolloutSetup, Scored, build_setup, temporary_host
from etude.rollout.scheduler import RolloutJob, run_all
from etude.sandbox.hosts import StoringHost
from etude.tasks.format.task import Task
from etude.tokens.native import Native
from etude.tokens.tokenizer import Tokenizer

LIMITS = AgentLimits(turns=5, sampled_tokens=160, context_tokens=480, malformed=1, seconds=60.0, sample_seconds=60.0)
HARNESS = HarnessSettings(
    tools=[{"use": "read"}, {"use": "edit"}, {"use": "finish"}],
    system="",
    spec="none",  # nobody tells the model of its tools: the demonstrations teach them
    limits=LIMITS,
)
AT_ONCE = 64  # rollouts in flight


@dataclass(frozen=True)
class Size:
    """How much of everything. The defaults learn; a test runs a much smaller one."""

    depth: int = 3  # blocks of the decoder; it is 32 times as wide
    vocabulary: int = 512
    families: str = "each,shorten,clamp"  # of katas: small repositories from which one function was deleted
    demonstrations: int = 300
    imitation_steps: int = 250
    steps: int = 60  # of reinforcement learning
    groups: int = 4  # tasks in a step
    group: int = 8  # rollouts of each
    staleness: int = 2  # most steps between the weights that began a rollout and those that it trains
    lr: float = 1e-3
    evaluation: int = 64  # tasks, before and after
    seed: int = 0
    sandbox: str = "local"  # or plain, where there are no user namespaces


def tasks(size: Size, start: int) -> Iterator[Task]:
    """The stream of tasks from number `start` on. A task follows from its number, so every rollout can be repeated."""
    return katas("train", None, size.seed, (1,), ["plain"], size.families.split(","), start=start)


# 1. Imitation. The learner knows no algorithm: it is given token sequences with streams, which say for each token how
#    much it counts and towards what. Here the target is a label: the token that the demonstration has there.


async def demonstrate(size: Size, host: StoringHost) -> list[Scored]:
    """The reference solutions at work in the real harness: rollouts like any other, of a policy that is a script."""
    habits = Habits(think=0.0, look=0.0, slip=0.0, whole=0.0, check=0.0, report=0.0)
    jobs = [
        RolloutJob(task, policy=Scripted(reference(task, size.seed, habits)))
        for task in islice(tasks(size, 0), size.demonstrations)
    ]
    outcomes = await run_all(jobs, Scripted(()), host, build_setup(HARNESS), concurrency=8)
    return [outcome for outcome in outcomes if isinstance(outcome, Scored) and outcome.passed]


def imitate(size: Size, decoder: Decoder, dialect: Native, demonstrations: Sequence[Scored]) -> None:
    """Supervised fine-tuning on the assistant's own tokens."""
    conversations = [scored.trajectory.messages for scored in demonstrations]
    pieces = tokenise(conversations, dialect, LIMITS.context_tokens)
    optim = OptimSettings(lr=5e-3, muon_lr=2.5e-3)
    learner = Learner(decoder, optim, size.imitation_steps, micro_tokens=1024)
    draw = random.Random(size.seed)
    for step in range(size.imitation_steps):
        chosen = draw.sample(pieces, min(6, len(pieces)))
        counted = sum(float(own_T[1:].sum()) for _, own_T in chosen)
        items = [Item(ids_T, [Stream("main", own_T / np.float32(counted), Label(ids_T))]) for ids_T, own_T in chosen]
        metrics = learner.forward_backward(Batch(items))
        learner.step()
        if step % 50 == 49:
            print(f"imitation {step + 1:4d}  loss {metrics['loss']:.3f}", flush=True)


# 2. Reinforcement.


@dataclass(eq=False)
class Group:
    """The rollouts of one task; its mean reward is what each of them is compared with."""

    number: int
    began: int  # the step of the weights that it started with
    rollouts: list[Rollout] = field(default_factory=list)
    ready: bool = False


class Loop:
    def __init__(self, size: Size, decoder: Decoder, dialect: Native, host: StoringHost) -> None:
        self.size, self.host = size, host
        optim = OptimSettings(matrices="adamw", lr=size.lr, schedule="constant", weight_decay=0.0)
        self.learner = Learner(decoder, optim, size.steps, micro_tokens=2048)
        served = Decoder(decoder.config)  # weights of its own: the learner changes its weights while this one samples
        served.load_state_dict(decoder.state_dict())
        engine = EngineSettings(max_running=AT_ONCE, max_length=LIMITS.context_tokens + 64)
        self.engine = Engine(served, engine, Version(0, 0))
        self.policy = InlinePolicy(self.engine, dialect.decode)
        sampling = Sampling(max_tokens=LIMITS.sampled_tokens, stop_ids=dialect.stop_ids)
        self.setup: RolloutSetup = build_setup(HARNESS, dialect=dialect, sampling=sampling)
        self.algorithm = build_algorithm({"use": "dr_grpo"})
        self.shape = BatchShape(size.groups, size.group, LIMITS.sampled_tokens)
        self.admission = Admission(size.staleness, size.groups, size.steps)
        self.stream = enumerate(tasks(size, size.demonstrations + size.evaluation))
        self.waiting: dict[int, Group] = {}  # begun and not trained yet
        self.running: set[asyncio.Task[None]] = set()
        self.finished = asyncio.Event()
        self.free = asyncio.Semaphore(AT_ONCE)
        self.taken = self.published = 0  # steps begun, steps whose weights the engine has
        self.stalest = 0

    async def rollouts(self, task: Task, seeds: Sequence[int]) -> list[Rollout]:
        """Rollouts of one task: fresh sandbox, agent, hidden tests, reward. What the machinery spoiled is left out."""
        async with self.free:
            jobs = [RolloutJob(task, seed=seed) for seed in seeds]
            outcomes = await run_all(jobs, self.policy, self.host, self.setup, concurrency=len(jobs))
        return [compact(outcome) for outcome in outcomes if isinstance(outcome, Scored)]

    async def play(self, group: Group, task: Task) -> None:
        group.rollouts = await self.rollouts(task, [1000 * group.number + i for i in range(self.size.group)])
        group.ready = True
        if len(group.rollouts) < self.size.group - 1:  # a mean over fewer would be another one: the group is void
            del self.waiting[group.number]
        self.finished.set()

    def begin(self) -> None:
        """Begins as many groups as will certainly be trained before their first tokens are too old."""
        while self.admission.may_begin(len(self.waiting), self.taken, self.published):
            number, task = next(self.stream)
            group = self.waiting[number] = Group(number, self.published)
            playing = asyncio.create_task(self.play(group, task))
            self.running.add(playing)
            playing.add_done_callback(self.running.discard)

    async def next_groups(self) -> list[Group]:
        """The groups of the next step, oldest first. Finished work is never dropped for its age."""
        while True:
            self.begin()
            waiting = [Waiting(group.number, group.began, group.ready) for group in self.waiting.values()]
            chosen = self.admission.choose(waiting, self.taken)
            if chosen is not None:
                return [self.waiting.pop(number) for number in chosen]
            self.finished.clear()
            await asyncio.wait_for(self.finished.wait(), timeout=300)

    def batch(self, groups: Sequence[Group]) -> Batch:
        """Rewards to streams: each sampled token counts with its rollout's reward minus the group's mean.

        Tokens that older weights sampled are corrected by a truncated importance ratio; for that, each has the
        log-probability that it was sampled with.
        """
        items: list[Item] = []
        for group in groups:
            rewards = [rollout.reward for rollout in group.rollouts]
            for sequences in self.algorithm.items(group.rollouts, rewards, self.shape):
                items += [item for item in sequences if item.forward_tokens]  # none where all rewards are equal
            versions = [int(trace.version_T2[trace.sampled_T, 1].min()) for r in group.rollouts for trace in r.traces]
            self.stalest = max(self.stalest, self.taken - min(versions))
        return Batch(items, Correction("truncate", high=2.0))

    def train(self, batch: Batch) -> dict[str, float]:
        return self.learner.forward_backward(batch) | self.learner.step() if batch.items else {}

    def publish(self) -> None:
        """The learner's weights to the engine, between two of its steps. Running rollouts keep their cache."""
        self.published = self.taken
        weights = self.learner.decoder.state_dict()
        self.engine.update(lambda served: served.load_state_dict(weights) and None, Version(0, self.published))

    async def step(self) -> float:
        """One step; rollouts go on all the while. Returns the mean reward of what it trained on."""
        groups = await self.next_groups()
        batch = self.batch(groups)
        self.taken += 1
        self.begin()
        await asyncio.to_thread(self.train, batch)
        self.publish()
        return float(np.mean([rollout.reward for group in groups for rollout in group.rollouts]))

    async def evaluate(self) -> float:
        """Mean reward on tasks that are never trained on; the same tasks and seeds every time."""
        chosen = list(islice(tasks(self.size, self.size.demonstrations), self.size.evaluation))
        played = await asyncio.gather(*(self.rollouts(task, [number]) for number, task in enumerate(chosen)))
        return float(np.mean([rollout.reward for rollouts in played for rollout in rollouts]))

    async def close(self) -> None:
        for playing in self.running:
            playing.cancel()
        await asyncio.gather(*self.running, return_exceptions=True)


async def learn(size: Size) -> dict[str, float]:
    began = time.monotonic()
    async with temporary_host(size.sandbox) as host:
        demonstrations = await demonstrate(size, host)
        texts = [data.decode() for scored in demonstrations for data in scored.task.solution.values()]
        texts += [scored.task.instruction for scored in demonstrations]
        dialect = Native(Tokenizer.train(texts, size.vocabulary))
        decoder = Decoder(ModelConfig.from_settings(ModelSettings(depth=size.depth), dialect.vocab_size), size.seed)
        await asyncio.to_thread(imitate, size, decoder, dialect, demonstrations)
        loop = Loop(size, decoder, dialect, host)
        before = await loop.evaluate()
        print(f"reward before {before:.2f}, after {time.monotonic() - began:.0f} s", flush=True)
        for step in range(1, size.steps + 1):
            reward = await loop.step()
            print(f"step {step:4d}  reward {reward:.2f}  {'#' * round(40 * reward)}", flush=True)
        await loop.close()
        after = await loop.evaluate()
    print(f"reward {before:.2f} -> {after:.2f} on {size.evaluation} new tasks, {time.monotonic() - began:.0f} s")
    return {"before": before, "after": after, "stalest": loop.stalest, "updates": loop.engine.counts.updates}


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description="asynchronous reinforcement learning in one file")
    for each in fields(Size):
        parser.add_argument(f"--{each.name.replace('_', '-')}", type=type(each.default), default=each.default)
    size = Size(**vars(parser.parse_args(arguments)))
    prepare(threads=1)  # a core for the engine's thread, one for the learner's
    return asyncio.run(learn(size))


if __name__ == "__main__":
    main()
