"""Training speed against a plain `transformers` loop of the same shape, in one run.

    python benchmarks/train_speed.py [--rounds 5] [--threads 2] [--json]

Each side is a process of its own, as its user would start it, and takes the same batches (8 x 512 tokens, forward,
backward, AdamW). Rounds alternate, so that a slow moment of the machine hits all; figures are medians over steps.
Beside the bar stand two more: ours with Muon, and `transformers` with our allocator and denormal settings.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

SEQUENCES, LENGTH = 8, 512
SHAPES = {
    "1M": {"vocab_size": 2048, "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "heads": 4},
    "5M": {"vocab_size": 4096, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 5, "heads": 8},
}
BARS = {"1M": 8000, "5M": 3500}  # tokens per second
RATIO = 1.2
SIDES = ("etude", "etude-muon", "transformers", "transformers-tuned")


def shape(name: str) -> dict[str, int]:
    facts = dict(SHAPES[name])
    heads = facts.pop("heads")
    return {**facts, "num_attention_heads": heads, "num_key_value_heads": heads // 2, "head_dim": 32}


def etude_step(name: str, matrices: str) -> Callable[[np.ndarray], float]:
    from etude.core.settings import OptimSettings
    from etude.learn.learner import Learner
    from etude.learn.streams import Batch, Item, Label, Stream
    from etude.model.config import ModelConfig
    from etude.model.decoder import Decoder

    optim = OptimSettings(matrices=matrices, lr=1e-3)  # type: ignore[arg-type]
    learner = Learner(Decoder(ModelConfig(**shape(name))), optim, 1000, micro_tokens=2048)  # type: ignore[arg-type]
    weight = np.full(LENGTH, 1 / (SEQUENCES * (LENGTH - 1)), np.float32)

    def step(tokens: np.ndarray) -> float:
        batch = Batch([Item(row, [Stream("main", weight, Label(row))]) for row in tokens])
        loss = learner.forward_backward(batch)["loss"]
        learner.step()
        return loss

    return step


def transformers_step(name: str) -> Callable[[np.ndarray], float]:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    model = Qwen3ForCausalLM(Qwen3Config(**shape(name), tie_word_embeddings=True))
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(tokens: np.ndarray) -> float:
        ids = torch.from_numpy(tokens)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        return float(loss.detach())

    return step


def work(side: str, name: str, threads: int) -> None:
    """The child: for each line on standard input takes that many steps and answers with their seconds."""
    if side != "transformers":
        from etude.model.torch_process import prepare

        prepare(threads)
    import torch

    torch.set_num_threads(threads)
    step = (
        transformers_step(name)
        if side.startswith("transformers")
        else etude_step(name, "muon" if "muon" in side else "adamw")
    )
    rng = np.random.default_rng(0)
    for line in sys.stdin:
        seconds, loss = [], 0.0
        for _ in range(int(line)):
            tokens = rng.integers(0, SHAPES[name]["vocab_size"], (SEQUENCES, LENGTH))
            began = time.perf_counter()
            loss = step(tokens)
            seconds.append(time.perf_counter() - began)
        print(json.dumps({"seconds": seconds, "loss": loss}), flush=True)


def measure(name: str, rounds: int, steps: int, threads: int) -> dict[str, float]:
    children = {
        side: subprocess.Popen(
            [sys.executable, __file__, "--child", side, "--shape", name, "--threads", str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for side in SIDES
    }
    taken: dict[str, list[float]] = {side: [] for side in SIDES}
    try:
        for number in range(rounds + 1):
            for side, child in children.items():
                assert child.stdin is not None and child.stdout is not None
                print(steps if number else 2, file=child.stdin, flush=True)
                answer = child.stdout.readline()
                if not answer:
                    raise SystemExit(f"the {side} process ended early")
                if number:  # round 0 warms up
                    taken[side] += json.loads(answer)["seconds"]
    finally:
        for child in children.values():
            child.kill()
            child.wait()
    return {side: SEQUENCES * LENGTH / statistics.median(seconds) for side, seconds in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4, help="steps of one side in one round")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--shape", choices=sorted(SHAPES), default=None, help="only this one")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", choices=SIDES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        work(arguments.child, arguments.shape, arguments.threads)
        return
    result: dict[str, object] = {"threads": arguments.threads, "rounds": arguments.rounds, "ok": True}
    for name in [arguments.shape] if arguments.shape else SHAPES:
        speeds = measure(name, arguments.rounds, arguments.steps, arguments.threads)
        ratio = speeds["etude"] / speeds["transformers"]
        tuned = speeds["etude"] / speeds["transformers-tuned"]
        ok = ratio >= RATIO and speeds["etude"] >= BARS[name]
        result["ok"] = bool(result["ok"]) and ok
        result[name] = {side: round(speed) for side, speed in speeds.items()} | {
            "ratio": round(ratio, 3),
            "ratio_tuned": round(tuned, 3),
            "bar": BARS[name],
            "ok": ok,
        }
        print(f"{name}: " + ", ".join(f"{side} {speed:,.0f}" for side, speed in speeds.items()) + " tokens/s")
        print(f"    {ratio:.2f}x transformers (bar {RATIO}x), {tuned:.2f}x transformers with our process settings")
    if arguments.json:
        print(json.dumps(result))
    sys.exit(0 if result["ok"] else 1)


if __name__ == "__main__":
    main()
