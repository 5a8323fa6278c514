"""Do learner and engine agree? A probe at every publish, in two processes, while the weights really change.

    python benchmarks/numerics.py --publishes 50 --probe 2048 [--json]

The learner (this process) trains a 1M-parameter model on the sources of the running Python's standard library, byte by
byte, and publishes after every step through shared memory. At each version the engine (a child process) samples at
least `--probe` tokens the hard way: groups with a common prompt, prompts and answers of many lengths, two temperatures,
several turns, and a cache so small that requests are preempted. The learner scores the same ids with attention over
whole sequences. Printed is |sampler's log-probability - learner's| over all sampled tokens. Bars: mean below 1e-5, max
below 1e-3; every token must carry the version that was just published. Exits 1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import numpy as np

from etude.core.policy import Context, Sampling, Version
from etude.core.settings import EngineSettings, OptimSettings
from etude.learn.learner import Learner
from etude.learn.streams import Batch, Item, Label, Stream
from etude.model import torch_process
from etude.model.checkpoint.directory import save_model
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder
from etude.model.weight_transfer.shared_memory import WeightBoard
from etude.policies.engine_client import EngineClient, launch

MEAN_BAR, MAX_BAR = 1e-5, 1e-3
SHAPE = ModelConfig(2048, 128, 384, 4, 4, 2, 32)
SMALL_CACHE = EngineSettings(max_running=16, cache_tokens=1024, block_tokens=8, max_length=1024, prefill_tokens=256)
TEMPERATURES = (1.0, 0.7)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--publishes", type=int, default=50)
    parser.add_argument("--probe", type=int, default=2048, help="sampled tokens at each version, at least")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch_process.prepare(1)
    begin = time.perf_counter()
    result = asyncio.run(compare(options.publishes, options.probe, options.seed))
    result["seconds"] = time.perf_counter() - begin
    passed = result["mean"] < MEAN_BAR and result["max"] < MAX_BAR and result["preemptions"] and result["cached_tokens"]
    print(
        f"{result['tokens']} tokens at {options.publishes} versions in {result['seconds']:.0f} s: "
        f"mean {result['mean']:.2e} (bar {MEAN_BAR:g}), max {result['max']:.2e} (bar {MAX_BAR:g}); "
        f"{result['preemptions']} preemptions, {result['cached_tokens']} prompt tokens from the cache, "
        f"loss {result['first_loss']:.2f} -> {result['last_loss']:.2f}"
    )
    if options.json:
        print(json.dumps({"passed": bool(passed), **result}))
    return 0 if passed else 1


async def compare(publishes: int, probe: int, seed: int) -> dict[str, float]:
    rng = random.Random(seed)
    text = standard_library(rng)
    decoder = Decoder(SHAPE, seed)
    learner = Learner(decoder, OptimSettings(schedule="constant"), publishes, micro_tokens=4096)
    differences: list[float] = []
    losses: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder) / "model", decoder)
        board = WeightBoard.create(Path(folder) / "board", decoder)
        async with await launch(Path(folder) / "model", SMALL_CACHE, board=board.path) as client:
            for step in range(1, publishes + 1):
                losses.append(train(learner, text, rng))
                version = Version(0, step)
                learner.publish(board, version)
                await client.update(version)
                differences += await one_probe(client, learner, text, version, probe, rng)
            stats = await client.stats()
    return {
        "publishes": publishes,
        "tokens": len(differences),
        "mean": float(np.mean(differences)),
        "max": float(np.max(differences)),
        "preemptions": stats["preemptions"],
        "cached_tokens": stats["cached_tokens"],
        "first_loss": losses[0],
        "last_loss": losses[-1],
    }


def train(learner: Learner, text: bytes, rng: random.Random) -> float:
    pieces = [np.frombuffer(piece(text, rng, 512), np.uint8).astype(np.int64) for _ in range(8)]
    weight = np.full(512, 1 / (8 * 511), np.float32)
    metrics = learner.forward_backward(Batch([Item(ids, [Stream("main", weight, Label(ids))]) for ids in pieces]))
    learner.step()
    return metrics["loss"]


async def one_probe(
    client: EngineClient, learner: Learner, text: bytes, version: Version, tokens: int, rng: random.Random
) -> list[float]:
    """Rollouts together until enough tokens are sampled; then the difference for each of them."""
    asks = []
    planned = 0
    while planned < tokens:
        prompt = tuple(piece(text, rng, rng.choice((1, 7, 40, 133, 300))))
        temperature = rng.choice(TEMPERATURES)
        for _ in range(rng.choice((1, 1, 4, 8))):
            turns = [rng.randrange(5, 150) for _ in range(rng.choice((1, 1, 2)))]
            asks.append(rollout(client, prompt, turns, temperature, text, rng))
            planned += sum(turns)
    rollouts = await asyncio.gather(*asks)
    items = [Item(np.array(ids), [], temperature) for ids, _, temperature in rollouts]
    scores = await asyncio.to_thread(learner.score, items)
    out = []
    for (_, sampled, _), scored in zip(rollouts, scores, strict=True):
        for place, (logprob, seen) in sampled.items():
            if seen != version:
                raise SystemExit(f"a token sampled after version {version} was published says {seen}")
            out.append(abs(logprob - float(scored[place])))
    return out


async def rollout(
    client: EngineClient, prompt: tuple[int, ...], turns: list[int], temperature: float, text: bytes, rng: random.Random
) -> tuple[list[int], dict[int, tuple[float, Version]], float]:
    """Turns of sampled tokens with a piece of text after each: ids, facts by place, temperature."""
    ids, sampled = list(prompt), {}
    for count in turns:
        sampling = Sampling(max_tokens=count, temperature=temperature, seed=rng.getrandbits(48))
        sample = await client.sample(Context(ids=tuple(ids)), sampling)
        facts = zip(sample.logprobs or (), sample.versions or (), strict=True)
        sampled.update({len(ids) + i: fact for i, fact in enumerate(facts)})
        ids += [*(sample.ids or ()), *piece(text, rng, 10)]
    return ids, sampled, temperature


def standard_library(rng: random.Random) -> bytes:
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return b"\n".join(path.read_bytes() for path in rng.sample(files, 40))


def piece(text: bytes, rng: random.Random, length: int) -> bytes:
    start = rng.randrange(len(text) - length)
    return text[start : start + length]


if __name__ == "__main__":
    sys.exit(main())
