"""The learner on several ranks against one rank, layout by layout: losses, gradients, and weights after ten steps.

    python -m benchmarks.scale.layouts                         the whole table, as Markdown, with gloo on this machine
    python -m benchmarks.scale.layouts --model moe --ranks 4   some of it
    python -m benchmarks.scale.layouts --first moe:4,1,4,4 --seconds 100 --json   one first, then what there is time for

All ranks compute in float32 on the CPU. Every batch has streams of all four kinds of target, twins under live, averaged
and frozen weights among them, and sequences of very different lengths, so that some micro-batches are empty.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from etude.core.settings import ComputeSettings, LoraSettings, OptimSettings
from etude.learn.learner import Learner
from etude.learn.lora import adapt
from etude.learn.parallel.launch import Ranks
from etude.learn.parallel.layout import Layout
from etude.learn.parallel.lead import LeadLearner
from etude.learn.parallel.messages import RankSpec
from etude.learn.streams import Batch, Correction, Item, Label, MainHead, Sampled, Stream, Twin
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder
from etude.model.training import set_up

VOCABULARY, MICRO, STEPS = 61, 48, 10
LORA = LoraSettings(rank=2, alpha=4.0)
MODELS = ("dense", "moe", "lora")
BARS = {"loss": 1e-5, "gradient": 1e-4, "weights": 1e-4}
COMPUTE = ComputeSettings(precision="float32")  # also where a device would compute in others
OPTIM = OptimSettings(lr=3e-3, muon_lr=3e-3, ema=0.9, warmup=0.0, clip=0.5)


def config(model: str) -> ModelConfig:
    plain = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    plain |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "num_nextn_predict_layers": 1}
    if model != "moe":
        return ModelConfig(**plain, tie_word_embeddings=model == "dense")
    latent: dict[str, Any] = {"model_type": "deepseek_v3", "scoring": "sigmoid", "tie_word_embeddings": False}
    latent |= {"q_lora_rank": 16, "kv_lora_rank": 16, "v_head_dim": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4}
    latent |= {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_shared_experts": 1}
    latent |= {"first_k_dense_replace": 1}
    return ModelConfig.from_hf(ModelConfig(**(plain | latent)).to_hf())  # as a checkpoint gives it back


def decoder(model: str, seed: int = 0) -> Decoder:
    """Far from uniform, so that a wrong term shows."""
    made = Decoder(config(model), seed=seed)
    generator = torch.Generator().manual_seed(seed + 1000)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 0.15, generator=generator)
    return made


def batch(seed: int, model: str) -> Batch:
    """Sequences with targets of all kinds, one kind each or several."""
    rng = np.random.default_rng(seed)
    items = []
    for number, length in enumerate((40, 9, 23, 5, 31, 12, 3)):
        tokens_T = rng.integers(0, VOCABULARY, length)
        weight_T = (rng.random(length) / 60).astype(np.float32)
        sampled = Sampled(rng.normal(size=length).astype(np.float32), -rng.random(length).astype(np.float32) * 4)
        hint = rng.integers(0, VOCABULARY, 4)
        half = length // 2
        twin_U = np.concatenate([tokens_T[:half], hint, tokens_T[half:]])
        align_T = np.where(np.arange(length) < half, -1, np.arange(length) + 4)
        streams = [
            [Stream("main", weight_T, Label(tokens_T)), Stream("mtp.1", weight_T, MainHead())],
            [Stream("main", weight_T, sampled)],
            [Stream("main", weight_T, Twin(tokens_U=twin_U, align_T=align_T, weights="ema", divergence="reverse"))],
            [Stream("main", weight_T, Label(tokens_T))],
            [
                Stream("main", weight_T, sampled),
                Stream("main", weight_T, Twin(tokens_U=twin_U, align_T=align_T, lowers=True, support=8)),
            ],
            [Stream("main", weight_T, Twin(tokens_U=twin_U, align_T=align_T, weights="frozen", trust=0.3))],
            [Stream("main", weight_T, Label(tokens_T))],
        ][number]
        if model == "moe" and number in (3, 4):
            streams.append(Stream("mtp.1", weight_T, MainHead()))  # others do not train it, and must not count for it
        experts = None
        if model == "moe" and number in (1, 4):
            experts = np.sort(rng.permuted(np.tile(np.arange(8), (length, 1, 1)), axis=-1)[..., :2], -1).astype(
                np.int16
            )
        items.append(Item(tokens_T, streams, 1.0 if number % 2 else 0.7, experts, 0.5 if experts is not None else 0.0))
    return Batch(items, Correction("truncate", low=0.0, high=2.0))


@dataclass(frozen=True)
class Truth:
    """One rank's run: metrics of each step, gradients of the first, weights at the end."""

    metrics: list[dict[str, float]]
    gradients: dict[str, torch.Tensor]
    scores: list[np.ndarray]
    weights: dict[str, torch.Tensor]


def starting(model: str) -> tuple[Decoder, Decoder]:
    live, frozen = decoder(model), decoder(model, 5)
    return adapt(live, LORA if model == "lora" else LoraSettings(), 3), frozen


def alone(model: str, optim: OptimSettings = OPTIM, device: str = "cpu") -> Learner:
    """The learner of one rank, without a process group."""
    live, frozen = (set_up(each, COMPUTE, device) for each in starting(model))
    torch.set_num_threads(1)
    return Learner(live, optim, STEPS, MICRO, device, frozen)


def one_rank(model: str, steps: int = STEPS, optim: OptimSettings = OPTIM, device: str = "cpu") -> Truth:
    learner = alone(model, optim, device)
    metrics, gradients = [], {}
    for step in range(steps):
        found = learner.forward_backward(batch(step, model))
        if not step:
            gradients = {n: p.grad.clone() for n, p in learner.decoder.named_parameters() if p.grad is not None}
        metrics.append(found | learner.step())
    scores = learner.score(batch(99, model).items)
    return Truth(metrics, gradients, scores, {n: p.detach() for n, p in learner.decoder.named_parameters()})


def spec(model: str, layout: Layout, optim: OptimSettings = OPTIM, device: str = "cpu") -> RankSpec:
    lora = LORA if model == "lora" else LoraSettings()
    shape = json.dumps(config(model).to_hf())
    return RankSpec(layout, shape, optim, STEPS, MICRO, device, COMPUTE, lora=lora, frozen=True)


def open_ranks(
    ranks: Ranks, model: str, layout: Layout, optim: OptimSettings = OPTIM, device: str = "cpu"
) -> LeadLearner:
    return LeadLearner(ranks, spec(model, layout, optim, device), *starting(model))


def difference(
    ranks: Ranks, model: str, layout: Layout, truth: Truth, optim: OptimSettings = OPTIM, device: str = "cpu"
) -> dict[str, float]:
    """How far several ranks are from one: losses absolutely, gradients and weights by the largest relative norm."""
    learner = open_ranks(ranks, model, layout, optim, device)
    found = {"loss": 0.0, "gradient": 0.0, "weights": 0.0, "metrics": 0.0}
    for step, expected in enumerate(truth.metrics):
        metrics = learner.forward_backward(batch(step, model))
        if not step:
            gradients = learner.gradients()
            assert gradients.keys() == truth.gradients.keys()
            found["gradient"] = max(apart(gradients[n], g) for n, g in truth.gradients.items())
        metrics |= learner.step()
        assert metrics.keys() == expected.keys(), metrics.keys() ^ expected.keys()
        found["loss"] = max(found["loss"], abs(metrics["loss"] - expected["loss"]))
        near = [abs(metrics[k] - expected[k]) / (1 + abs(expected[k])) for k in expected]
        found["metrics"] = max(found["metrics"], *near)
    scores = learner.score(batch(99, model).items)
    found["scores"] = max(float(np.abs(a - b).max()) for a, b in zip(scores, truth.scores, strict=True))
    weights = learner.whole_weights()
    found["weights"] = max(apart(weights[name], w) for name, w in truth.weights.items())
    learner.close()
    return found


def apart(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.cpu() - b.cpu()).norm() / b.cpu().norm().clamp(min=1e-6))


# (ranks, replicate, shard, expert, context) of each model: every pair of axes meets somewhere
CELLS = {
    "dense": "2,1,2 2,2,1 2,1,1,1,2 4,2,2 4,1,4 4,1,2,1,2 8,1,8 8,2,2,1,2",
    "moe": "2,1,2 2,1,2,2 2,1,1,2,2 4,2,2,2 4,1,4,2 4,1,4,4 4,1,2,4,2 8,2,2,2,2 8,1,8,4 8,1,4,8,2",
    "lora": "2,1,2 4,2,2 4,1,4 4,1,2,1,2 8,2,4 8,1,4,1,2",
}


def cells(models: Sequence[str], least: int, most: int, first: Sequence[str]) -> list[tuple[str, Layout]]:
    """Those of the models and numbers of ranks, the ones named MODEL:CELL before all others."""
    every = [(model, cell) for model in models for cell in CELLS[model].split()]
    every.sort(key=lambda each: ":".join(each) not in first)
    found = [(model, Layout(*map(int, cell.split(",")))) for model, cell in every]
    return [(model, layout) for model, layout in found if least <= layout.ranks <= most]


def main() -> int:
    parser = argparse.ArgumentParser(description="Several ranks against one.")
    parser.add_argument("--model", choices=MODELS, action="append")
    parser.add_argument("--ranks", type=int, default=8, help="the most ranks")
    parser.add_argument("--least", type=int, default=2, help="the least ranks")
    parser.add_argument("--first", action="append", default=[], metavar="MODEL:CELL", help="cells to begin with")
    parser.add_argument("--seconds", type=float, default=math.inf, help="no cell begins after them")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    unknown = set(options.first) - {f"{model}:{cell}" for model in MODELS for cell in CELLS[model].split()}
    if unknown:
        parser.error(f"no such cells: {', '.join(sorted(unknown))}")
    began, rows, left_out = time.monotonic(), [], []
    truths: dict[str, Truth] = {}
    with Ranks(options.ranks) as ranks:
        for model, layout in cells(options.model or MODELS, options.least, options.ranks, options.first):
            if time.monotonic() - began > options.seconds:
                left_out.append({"model": model} | vars(layout))
                continue
            if model not in truths:
                truths[model] = one_rank(model)
            found = difference(ranks, model, layout, truths[model])
            passed = all(found[name] <= bar for name, bar in BARS.items())
            rows.append({"model": model} | vars(layout) | found | {"passed": passed})
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    if left_out:
        print(f"left out, for there was no time: {left_out}", file=sys.stderr, flush=True)
    if options.json:
        print(json.dumps(rows))
    else:
        names = list(rows[0])
        print(f"| {' | '.join(names)} |\n|{'---|' * len(names)}")
        for row in rows:
            print("|", " | ".join(f"{v:.1e}" if isinstance(v, float) else str(v) for v in row.values()), "|")
    return 0 if all(row["passed"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
