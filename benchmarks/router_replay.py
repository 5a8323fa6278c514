"""How far engine and learner are apart on a mixture of experts, with and without router replay and its filter.

The engine samples in bfloat16, the learner scores the same tokens in float32: rounding alone flips some of the choices
of a router, and a token that goes to another expert gets another probability. Then the same with a learner whose
weights have moved on, as in asynchronous training, where the filter takes back what no longer makes sense.

    python benchmarks/router_replay.py [--model DIR] [--json]
"""

from __future__ import annotations

import argparse
import copy
import json
from pathlib import Path
from typing import Any

import numpy as np

from etude.core.policy import Sampling, Version, routes_of
from etude.core.settings import EngineSettings, ModelSettings, OptimSettings
from etude.model import torch_process
from etude.model.config import ModelConfig

ARMS = {"without": None, "replay": 0.0, "replay, plausible 0.5": 0.5, "replay, plausible 0.9": 0.9}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a directory; without one a small mixture is trained for a minute")
    parser.add_argument("--prompts", type=int, default=48)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument(
        "--steps", type=int, default=20, help="updates between the sampler's weights and the stale learner's"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch_process.prepare(0)
    rows = measure(options)
    for row in rows:
        print(
            " ".join(f"{name} {value:.3g}" if isinstance(value, float) else f"{value}" for name, value in row.items())
        )
    if options.json:
        print(json.dumps({"rows": rows, "prompts": options.prompts, "tokens": options.tokens}))


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    import torch

    from etude.engine.engine import Engine
    from etude.learn.learner import Learner
    from etude.learn.loop import labelled
    from etude.model.checkpoint.directory import load_model
    from etude.model.decoder import Decoder
    from etude.model.packed_forward import Packed

    rng = np.random.default_rng(0)
    if options.model:
        decoder = load_model(options.model)
    else:
        shape = ModelSettings(shape="deepseek_v3", depth=4, experts=16, experts_per_token=4)
        decoder = Decoder(ModelConfig.from_settings(shape, 512))
    sizes = np.ones(decoder.config.vocab_size, np.int64)

    def text(count: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Sequences with something to learn: walks over the vocabulary with a few step widths."""
        walks = rng.integers(1, 9, (count, 1)) * np.arange(128) + rng.integers(0, decoder.config.vocab_size, (count, 1))
        return [((walk % decoder.config.vocab_size).astype(np.int64), np.ones(128, np.float32)) for walk in walks]

    def train(learner: Learner, steps: int) -> None:
        for _ in range(steps):
            learner.forward_backward(labelled(text(8), [], sizes).batch)
            learner.step()

    if not options.model:
        train(Learner(decoder, OptimSettings(lr=3e-3, muon_lr=5e-3, schedule="constant"), 1000, 2048), 100)
    engine = Engine(copy.deepcopy(decoder).to(torch.bfloat16), EngineSettings(max_length=512), Version(0, 0))
    wanted = [Sampling(max_tokens=options.tokens, seed=i) for i in range(options.prompts)]
    asked = [engine.submit(ids[:32].tolist(), how) for (ids, _), how in zip(text(options.prompts), wanted, strict=True)]
    while engine.busy:
        engine.step()
    moved = copy.deepcopy(decoder)
    train(Learner(moved, OptimSettings(matrices="adamw", lr=3e-4, schedule="constant"), 1000, 2048), options.steps)
    rows = []
    for age, scored in (("the same weights", decoder), (f"{options.steps} steps on", moved)):
        for arm, plausible in ARMS.items():
            packed = Packed(
                scored,
                [np.array(request.tokens) for request in asked],
                experts=[
                    None if plausible is None else routes_of(request.answer().experts, request.length)
                    for request in asked
                ],
                plausible=[plausible or 0.0] * len(asked),
            )
            parts = torch.split(packed.scores(), packed.lengths)
            apart = np.concatenate(
                [
                    np.abs(part.numpy()[len(request.prompt) :] - np.array(request.logprobs))
                    for part, request in zip(parts, asked, strict=True)
                ]
            )
            row = {"learner": age, "arm": arm, "mean": float(apart.mean())}
            row |= {
                "p50": float(np.quantile(apart, 0.5)),
                "p99": float(np.quantile(apart, 0.99)),
                "max": float(apart.max()),
            }
            if packed.routing is not None:
                replayed = int(packed.routing.replayed)
                row |= {
                    "moved": int(packed.routing.moved) / replayed,
                    "refused": int(packed.routing.refused) / replayed,
                }
            rows.append(row)
    return rows


if __name__ == "__main__":
    main()
