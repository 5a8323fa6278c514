"""What feedback costs the learner: a step with hints against the same step without, one hint for each two rollouts.

    python benchmarks/learning/feedback_cost.py [--device cpu] [--width 128 --layers 4] [--rounds 7] [--json]

Sequences as nano samples them: a prompt with a file, an edit, an end. Arms take turns within each round, and the figure
is the median over rounds of the ratio of processor time (on a GPU: wall time, synchronised). The bar is for the live
teacher, which computes only hint and turn again; averaged and frozen ones compute their whole context.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time

import numpy as np
import torch

from etude.core.settings import OptimSettings
from etude.learn.learner import Learner
from etude.learn.streams import Batch, Correction, Item, Sampled, Stream, Twin
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder
from etude.model.torch_process import prepare

BAR = 1.15
ARMS = ("none", "live", "ema", "frozen")


def batch(options: argparse.Namespace, teacher: str) -> Batch:
    """Rollouts of which every second has a hint above its edit."""
    rng = np.random.default_rng(0)
    items = []
    for number in range(options.rollouts):
        length = int(rng.normal(options.length, options.length / 8))
        ids, begin = rng.integers(0, options.vocabulary, length), length - options.turn - 10
        sampled_T = np.zeros(length, np.float32)
        sampled_T[begin:] = 1e-4
        noise = rng.normal(size=(2, length)).astype(np.float32)
        streams = [Stream("main", sampled_T, Sampled(noise[0], noise[1] - 3))]
        if teacher != "none" and number % 2 == 0:
            turn = slice(begin, begin + options.turn)
            hint = rng.integers(0, options.vocabulary, options.hint)
            weight_T, align_T = np.zeros(length, np.float32), np.full(length, -1)
            weight_T[turn], align_T[turn] = 1e-4, np.arange(turn.start, turn.stop) + options.hint
            tokens_U = np.concatenate((ids[:begin], hint, ids[turn]))
            twin = Twin(tokens_U=tokens_U, align_T=align_T, weights=teacher, lowers=True)  # type: ignore[arg-type]
            streams.append(Stream("main", weight_T, twin))
        items.append(Item(ids, streams))
    return Batch(items, Correction("truncate", high=2.0))


def measure(options: argparse.Namespace) -> dict[str, float]:
    prepare(options.threads)
    heads = max(1, options.width // 32)
    config = ModelConfig(
        vocab_size=options.vocabulary,
        hidden_size=options.width,
        intermediate_size=3 * options.width,
        num_hidden_layers=options.layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 2),
        head_dim=32,
    )
    optim = OptimSettings(matrices="adamw", lr=1e-5, ema=0.95)
    learner = Learner(Decoder(config), optim, 1000, options.micro_tokens, options.device, frozen=Decoder(config, 1))
    batches = {arm: batch(options, arm) for arm in ARMS}
    cuda = options.device.startswith("cuda")
    clock = time.perf_counter if cuda else time.process_time
    times: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for turn in range(options.rounds + 1):
        for arm in ARMS:
            if cuda:
                torch.cuda.synchronize()
            began = clock()
            learner.forward_backward(batches[arm])
            learner.step()
            if cuda:
                torch.cuda.synchronize()
            if turn:  # the first round warms up
                times[arm].append(clock() - began)
    found = {f"{arm}_seconds": statistics.median(times[arm]) for arm in ARMS}
    pairs = {arm: [a / b for a, b in zip(times[arm], times["none"], strict=True)] for arm in ARMS[1:]}
    return found | {arm: statistics.median(ratios) for arm, ratios in pairs.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    for name, value in {"width": 128, "layers": 4, "vocabulary": 1024, "rollouts": 64, "length": 230}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    for name, value in {"turn": 45, "hint": 40, "rounds": 7, "threads": 1}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--micro-tokens", type=int, default=2048)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options)
    for arm in ARMS[1:]:
        print(f"{arm} teacher: {found[arm] - 1:+.1%} of the learner's time")
    if options.json:
        print(json.dumps(found))
    return 0 if found["live"] <= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
