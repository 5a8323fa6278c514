"""Learning rate 0: an RL loop in which nothing may drift, so every difference is a fault of the machinery.

    python benchmarks/lr_zero.py --steps 20 [--json]

The engine (a child process) samples without pause: groups of rollouts of two turns with text in between, at two
temperatures, over a small cache. The learner (this process) trains on them in the order in which they began, with
learning rate 0, publishes a new version after every step, and the engine swaps it in under the running requests. Beside
the next batch at most `--staleness` batches are open, so no trained token is older than that. As the weights never
change, every token must have in training the log-probability with which it was sampled: wrong offsets, a cache of other
weights, a wrong temperature or a torn swap would show. Bars: mean below 1e-5, max below 1e-3. Exits 1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter, deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from etude.core.policy import Context, Sampling, Version
from etude.core.settings import EngineSettings, OptimSettings
from etude.learn.learner import Learner
from etude.learn.streams import Batch, Correction, Item, Sampled, Stream
from etude.model import torch_process
from etude.model.checkpoint.directory import save_model
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder
from etude.model.weight_transfer.shared_memory import WeightBoard
from etude.policies.engine_client import EngineClient, launch

MEAN_BAR, MAX_BAR = 1e-5, 1e-3
SHAPE = ModelConfig(2048, 128, 384, 4, 4, 2, 32)
SMALL_CACHE = EngineSettings(max_running=16, cache_tokens=2048, block_tokens=8, max_length=512, prefill_tokens=256)
GROUP = 4


@dataclass(frozen=True)
class Rollout:
    ids: list[int]
    logprobs: dict[int, float]  # of the sampled tokens, by place
    versions: dict[int, Version]
    temperature: float


@dataclass
class Totals:
    tokens: int = 0
    sum: float = 0.0
    max: float = 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--staleness", type=int, default=4, help="steps")
    parser.add_argument("--batch", type=int, default=16, help="rollouts in one step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch_process.prepare(1)
    begin = time.perf_counter()
    result = asyncio.run(train(options.steps, options.staleness, options.batch, options.seed))
    result["seconds"] = time.perf_counter() - begin
    result["passed"] = bool(
        result["mean"] < MEAN_BAR
        and result["max"] < MAX_BAR
        and result["stalest"] <= options.staleness
        and result["mixed_rollouts"]  # otherwise no update met a running request
    )
    print(
        f"{result['tokens']} trained tokens in {options.steps} steps, {result['seconds']:.0f} s: "
        f"mean {result['mean']:.2e} (bar {MEAN_BAR:g}), max {result['max']:.2e} (bar {MAX_BAR:g}); "
        f"tokens by staleness {result['by_staleness']}, {result['mixed_rollouts']} rollouts of several versions, "
        f"{result['preemptions']} preemptions, {result['cached_tokens']} prompt tokens from the cache"
    )
    if options.json:
        print(json.dumps(result))
    return 0 if result["passed"] else 1


async def train(steps: int, staleness: int, batch: int, seed: int) -> dict[str, Any]:
    rng = random.Random(seed)
    decoder = Decoder(SHAPE, seed)
    with torch.no_grad():  # sharp distributions, as after training
        for parameter in decoder.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)
    learner = Learner(decoder, OptimSettings(lr=0.0, muon_lr=0.0), steps, micro_tokens=4096)
    totals, ages, mixed = Totals(), Counter[int](), 0
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder) / "model", decoder)
        board = WeightBoard.create(Path(folder) / "board", decoder)
        async with await launch(Path(folder) / "model", SMALL_CACHE, board=board.path) as client:
            rollouts: deque[asyncio.Task[Rollout]] = deque()
            for step in range(steps):
                while len(rollouts) < batch * (staleness + 1):
                    prompt = random_ids(rng, rng.choice((5, 24, 90)))
                    rollouts += [asyncio.create_task(attempt(client, prompt, rng)) for _ in range(GROUP)]
                done = await asyncio.gather(*(rollouts.popleft() for _ in range(batch)))
                mixed += sum(len(set(rollout.versions.values())) > 1 for rollout in done)
                ages.update(step - version.step for rollout in done for version in rollout.versions.values())
                metrics = await asyncio.to_thread(learn, learner, done, rng)
                totals.tokens += int(metrics["sampled_tokens"])
                totals.sum += metrics["drift_mean"] * metrics["sampled_tokens"]
                totals.max = max(totals.max, metrics["drift_max"])
                learner.publish(board, Version(0, step + 1))
                await client.update(Version(0, step + 1))
            for task in rollouts:
                task.cancel()
            await asyncio.gather(*rollouts, return_exceptions=True)
            stats = await client.stats()
    return {
        "steps": steps,
        "tokens": totals.tokens,
        "mean": totals.sum / totals.tokens,
        "max": totals.max,
        "stalest": max(ages),
        "by_staleness": {str(age): ages[age] for age in sorted(ages)},
        "mixed_rollouts": mixed,
        "preemptions": stats["preemptions"],
        "cached_tokens": stats["cached_tokens"],
    }


async def attempt(client: EngineClient, prompt: list[int], rng: random.Random) -> Rollout:
    ids = list(prompt)
    logprobs: dict[int, float] = {}
    versions: dict[int, Version] = {}
    temperature = rng.choice((1.0, 0.8))
    for _ in range(2):
        sampling = Sampling(max_tokens=rng.randrange(8, 120), temperature=temperature, seed=rng.getrandbits(48))
        sample = await client.sample(Context(ids=tuple(ids)), sampling)
        logprobs |= {len(ids) + i: value for i, value in enumerate(sample.logprobs or ())}
        versions |= {len(ids) + i: version for i, version in enumerate(sample.versions or ())}
        ids += [*(sample.ids or ()), *random_ids(rng, 6)]  # what an environment would say
    return Rollout(ids, logprobs, versions, temperature)


def learn(learner: Learner, rollouts: list[Rollout], rng: random.Random) -> dict[str, float]:
    """One step of policy gradient on the sampled tokens, with random advantages."""
    items = []
    for rollout in rollouts:
        weight, logprob = np.zeros(len(rollout.ids), np.float32), np.zeros(len(rollout.ids), np.float32)
        for place, value in rollout.logprobs.items():
            weight[place], logprob[place] = 1 / 1024, value
        advantage = np.full(len(rollout.ids), rng.choice((-1.0, 1.0)), np.float32)
        stream = Stream("main", weight, Sampled(advantage, logprob))
        items.append(Item(np.array(rollout.ids), [stream], rollout.temperature))
    metrics = learner.forward_backward(Batch(items, Correction("truncate", high=2.0)))
    learner.step()
    assert int(metrics["sampled_tokens"]) == sum(len(rollout.logprobs) for rollout in rollouts)
    return metrics


def random_ids(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(SHAPE.vocab_size) for _ in range(count)]


if __name__ == "__main__":
    sys.exit(main())
