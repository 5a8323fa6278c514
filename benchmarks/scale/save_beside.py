"""What a checkpoint costs training: written at once, and written beside the next steps (`run.save_in_background`).

    python -m benchmarks.scale.save_beside --ranks 2 --json                     a model of 25M parameters on a CPU
    python -m benchmarks.scale.save_beside --device cuda --model 0.6B --json    one GPU, 0.6B parameters
    python -m benchmarks.scale.save_beside --tiny --json                        tries the script itself

Steps without a checkpoint are timed first, then in turns a checkpoint that is written at once and one that is written
beside steps, each until it has its name. The cost of a checkpoint is all the time from its beginning to its name, less
that of as many undisturbed steps as were taken meanwhile. `stall` is how long no step could begin. Files are on the
disk before a folder gets its name, in both. One rank is the plain learner; several are processes over gloo or nccl.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.scale import plan_h200
from etude.core import durable
from etude.core.cluster_settings import LearnerRanks
from etude.core.settings import OptimSettings
from etude.learn.learner import AnyLearner
from etude.learn.start_learner import start_learner
from etude.learn.streams import Batch, Item, Label, Stream
from etude.model import size
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder
from etude.model.torch_process import prepare

MODELS: dict[str, dict[str, Any]] = {
    "25M": {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 6, "vocab_size": 8192}
    | {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "sequence": 256, "batch": 512},
    "0.6B": plan_h200.SMALL | {"tie_word_embeddings": True, "sequence": 4096, "batch": 65_536},
}


class Trainer:
    def __init__(self, learner: AnyLearner, vocabulary: int, sequence: int, tokens: int) -> None:
        self.learner, self.rng = learner, np.random.default_rng(0)
        self.vocabulary, self.sequence, self.tokens = vocabulary, sequence, tokens

    def step(self) -> float:
        """Its seconds; what it returns was read from the device, so it has ended."""
        began = time.perf_counter()
        share = np.full(self.sequence, 1 / self.tokens, np.float32)
        texts = [self.rng.integers(0, self.vocabulary, self.sequence) for _ in range(self.tokens // self.sequence)]
        self.learner.forward_backward(Batch([Item(ids, [Stream("main", share, Label(ids))]) for ids in texts]))
        self.learner.step()
        return time.perf_counter() - began

    def save(self, place: Path) -> dict[str, float]:
        began = time.perf_counter()
        with durable.commit_folder(place) as folder:
            self.learner.save(folder)
        return {"stall": time.perf_counter() - began, "whole": time.perf_counter() - began, "steps": 0}

    def save_beside(self, place: Path) -> dict[str, float]:
        began, taken = time.perf_counter(), 0
        with ExitStack() as commit:
            folder = commit.enter_context(durable.commit_folder(place))
            self.learner.begin_save(folder)
            stall = time.perf_counter() - began
            while not self.learner.saved:
                self.step()
                taken += 1
            ended = time.perf_counter()
            self.learner.finish_save()
        return {
            "stall": stall + time.perf_counter() - ended,
            "whole": time.perf_counter() - began,
            "steps": taken,
        }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    shape = dict(MODELS[options.model])
    sequence, tokens = shape.pop("sequence"), shape.pop("batch")
    if options.tiny:
        shape |= plan_h200.TINY
        sequence, tokens = 64, 128
    config = ModelConfig(**shape, max_position_embeddings=sequence)
    optim = OptimSettings(matrices="adamw", lr=1e-4, schedule="constant", warmup=0.0)
    micro = min(16_384, tokens)
    ranks = LearnerRanks(ranks=options.ranks)
    with (
        tempfile.TemporaryDirectory(dir=options.folder) as folder,
        start_learner(
            Decoder(config), optim, 10**6, micro, device=options.device, ranks=ranks, threads=options.ranks
        ) as learner,
    ):
        trainer = Trainer(learner, config.vocab_size, sequence, tokens)
        for _ in range(2):
            trainer.step()
        step = statistics.median(trainer.step() for _ in range(options.steps))
        rows: dict[str, list[dict[str, float]]] = {"at once": [], "beside": []}
        for number in range(options.rounds):
            for kind, save in (("at once", trainer.save), ("beside", trainer.save_beside)):
                place = Path(folder) / f"{kind.replace(' ', '-')}-{number}"
                found = save(place)
                found["cost"] = found["whole"] - found["steps"] * step
                rows[kind].append({name: round(value, 3) for name, value in found.items()})
                print(f"{kind}: {rows[kind][-1]}", file=sys.stderr, flush=True)
                size_ = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
                durable.remove_folder(place)
    middle = {kind: {n: statistics.median(row[n] for row in each) for n in each[0]} for kind, each in rows.items()}
    return {
        "torch": torch.__version__,
        "ranks": options.ranks,
        "device": options.device,
        "parameters": size.parameters(config),
        "bytes": size_,
        "step_seconds": round(step, 4),
        "median": middle,
        "rows": rows,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=list(MODELS), default="25M")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=5, help="that are timed without a checkpoint")
    parser.add_argument("--rounds", type=int, default=3, help="checkpoints of each kind")
    parser.add_argument("--folder", help="where checkpoints are written; else the system's temporary folder")
    parser.add_argument("--tiny", action="store_true", help="few weights, to try the script itself")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    options = parser.parse_args()
    prepare(1 if options.device == "cpu" else 0)
    found = measure(options)
    print(json.dumps(found) if options.json else json.dumps(found, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
