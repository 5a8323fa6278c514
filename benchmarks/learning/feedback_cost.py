"""What feedback costs the learner: a step with hints against the same step without, one hint for each two rollouts.

    python benchmarks/learning/feedback_cost.py [--device cpu] [--cases nano] [--arms live,ema] [--rounds 7] [--json]
    python benchmarks/learning/feedback_cost.py --device cuda --cases 0.6B,0.6B-short,nano --rounds 5 --json

    nano        sequences and model as nano has them: a prompt with a file, an edit, an end; 0.9M parameters
    0.6B        what a GPU trains: Qwen3-0.6B's shape, rollouts of 4,096 tokens, turns of 256, hints of 64
    0.6B-short  that model with nano's sequences

The learner is set up as in a run: on a GPU in bfloat16 and compiled. Arms take turns within each round, and the figure
is the median over rounds of the ratio of processor time (on a GPU: wall time, synchronised). The bar is for the live
teacher, which computes only hint and turn again; averaged and frozen ones compute their whole context. `reuse_error` is
how far the first loss of the live teacher is from that of a frozen one with the same weights, which shares nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from etude.core.settings import ComputeSettings, OptimSettings
from etude.learn.learner import Learner
from etude.learn.streams import Batch, Correction, Item, Sampled, Stream, Twin
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder
from etude.model.torch_process import prepare
from etude.model.training import ready, set_up

BAR = 1.15
TEACHERS = ("live", "ema", "frozen")
NANO = {"width": 128, "layers": 4, "mlp": 384, "heads": 4, "kv_heads": 2, "head_dim": 32, "vocabulary": 1024}
QWEN = {"width": 1024, "layers": 28, "mlp": 3072, "heads": 16, "kv_heads": 8, "head_dim": 128, "vocabulary": 151_936}
SHORT = {"length": 230, "turn": 45, "hint": 40}
LONG = {"length": 4096, "turn": 256, "hint": 64}
CASES = {
    "nano": NANO | SHORT | {"rollouts": 64, "micro_tokens": 2048},
    "0.6B": QWEN | LONG | {"rollouts": 32, "micro_tokens": 16_384},
    "0.6B-short": QWEN | SHORT | {"rollouts": 256, "micro_tokens": 16_384},
    "tiny": NANO | {"width": 32, "layers": 2, "length": 40, "turn": 8, "hint": 4, "rollouts": 8, "micro_tokens": 128},
}


def batch(case: argparse.Namespace, teacher: str) -> Batch:
    """Rollouts of which every second has a hint above its edit."""
    rng = np.random.default_rng(0)
    items = []
    for number in range(case.rollouts):
        length = int(rng.normal(case.length, case.length / 8))
        ids, begin = rng.integers(0, case.vocabulary, length), length - case.turn - 10
        sampled_T = np.zeros(length, np.float32)
        sampled_T[begin:] = 1e-4
        noise = rng.normal(size=(2, length)).astype(np.float32)
        streams = [Stream("main", sampled_T, Sampled(noise[0], noise[1] - 3))]
        if teacher != "none" and number % 2 == 0:
            turn = slice(begin, begin + case.turn)
            hint = rng.integers(0, case.vocabulary, case.hint)
            weight_T, align_T = np.zeros(length, np.float32), np.full(length, -1)
            weight_T[turn], align_T[turn] = 1e-4, np.arange(turn.start, turn.stop) + case.hint
            tokens_U = np.concatenate((ids[:begin], hint, ids[turn]))
            twin = Twin(tokens_U=tokens_U, align_T=align_T, weights=teacher, lowers=True)  # type: ignore[arg-type]
            streams.append(Stream("main", weight_T, twin))
        items.append(Item(ids, streams))
    return Batch(items, Correction("truncate", high=2.0))


def start(case: argparse.Namespace, device: str) -> Learner:
    """A learner whose frozen weights are those it begins with."""
    config = ModelConfig(
        vocab_size=case.vocabulary,
        hidden_size=case.width,
        intermediate_size=case.mlp,
        num_hidden_layers=case.layers,
        num_attention_heads=case.heads,
        num_key_value_heads=case.kv_heads,
        head_dim=case.head_dim,
    )
    with torch.device(device):
        live, frozen = Decoder(config), Decoder(config)
    frozen.load_state_dict(live.state_dict())
    ready(live, ComputeSettings(), device, case.micro_tokens)
    set_up(frozen, ComputeSettings(), device)
    optim = OptimSettings(matrices="adamw", lr=1e-5, ema=0.95)
    return Learner(live, optim, 1000, case.micro_tokens, device, frozen=frozen)


def measure(name: str, options: argparse.Namespace) -> dict[str, float]:
    case, cuda = argparse.Namespace(**CASES[name]), options.device.startswith("cuda")
    learner = start(case, options.device)
    arms = ["none", *options.arms]
    batches = {arm: batch(case, arm) for arm in {*arms, "live", "frozen"}}
    live, frozen = (learner.forward_backward(batches[arm])["twin_loss"] for arm in ("live", "frozen"))
    learner.decoder.zero_grad(set_to_none=True)
    found = {"reuse_error": abs(live / frozen - 1)}
    print(f"{name}: reuse_error {found['reuse_error']:.1e}", file=sys.stderr, flush=True)

    def now() -> float:
        if cuda:
            torch.cuda.synchronize()
        return time.perf_counter() if cuda else time.process_time()

    times: dict[str, list[float]] = {arm: [] for arm in arms}
    warm = 2 if cuda else 1
    for turn in range(warm + options.rounds):
        for arm in arms:
            began = now()
            learner.forward_backward(batches[arm])
            learner.step()
            if turn >= warm:
                times[arm].append(now() - began)
    found |= {f"{arm}_seconds": statistics.median(times[arm]) for arm in arms}
    for arm in options.arms:
        found[arm] = statistics.median(a / b for a, b in zip(times[arm], times["none"], strict=True))
        print(f"{name}, {arm} teacher: {found[arm] - 1:+.1%} of the learner's time", file=sys.stderr, flush=True)
    return found


def words(known: Sequence[str]) -> Callable[[str], list[str]]:
    def read(text: str) -> list[str]:
        found = text.split(",")
        if unknown := [word for word in found if word not in known]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)}")
        return found

    return read


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cases", type=words(list(CASES)), default=["nano"])
    parser.add_argument("--arms", type=words(TEACHERS), default=list(TEACHERS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    prepare(options.threads)
    found = {name: measure(name, options) for name in options.cases}
    if options.json:
        print(json.dumps(found))
    return 0 if all(case.get("live", 1.0) <= BAR for case in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
