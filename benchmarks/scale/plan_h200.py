"""What `etude plan` says of one H200 against what a learner takes there: five shapes, step time and memory.

    python -m benchmarks.scale.plan_h200 [--steps 3] [--seconds 150] [--json]
    python -m benchmarks.scale.plan_h200 --only "4B, recomputed" --json
    python -m benchmarks.scale.plan_h200 --device cpu --tiny --steps 1 --json     tries the script itself

The plan is made first and printed; its shares were fitted to other runs (etude/plan/machines.py), of which some had the
shapes of the first and the third of these. Then each shape trains: two steps that warm up, and the median of `--steps`
more. Memory is torch's peak of what was allocated. A shape that would begin after `--seconds` is left out and named.
Needs torch, numpy and safetensors only.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from typing import Any

import numpy as np
import torch

from etude.core.settings import ComputeSettings, OptimSettings
from etude.learn.learner import Learner
from etude.learn.parallel.layout import Layout
from etude.learn.streams import Batch, Item, Label, Stream
from etude.model import size
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder
from etude.model.training import set_up
from etude.plan.machines import MACHINES
from etude.plan.memory import memory
from etude.plan.step_time import step_time
from etude.plan.workload import Workload

BAR = 0.10
GIB = 2**30
QWEN3 = {"head_dim": 128, "rope_theta": 1e6, "vocab_size": 151_936, "num_key_value_heads": 8}
SMALL = QWEN3 | {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16}
LARGE = QWEN3 | {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32}
EXPERTS = {"num_experts": 32, "num_experts_per_tok": 4, "moe_intermediate_size": 512, "vocab_size": 65_536}
EXPERTS |= {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 16}
LATENT = {"kv_lora_rank": 256, "q_lora_rank": 512, "qk_nope_head_dim": 96, "qk_rope_head_dim": 32, "v_head_dim": 96}
CASES: dict[str, dict[str, Any]] = {
    "0.6B at 16k": {"shape": SMALL | {"tie_word_embeddings": True}, "sequence": 16_384, "micro": 16_384, "batch": 4},
    "0.6B at 4k": {"shape": SMALL | {"tie_word_embeddings": True}, "sequence": 4096, "micro": 16_384, "batch": 4},
    "0.9B with experts at 16k": {
        "shape": QWEN3 | EXPERTS | {"model_type": "qwen3_moe", "num_attention_heads": 8, "num_key_value_heads": 4},
        "sequence": 16_384,
        "micro": 16_384,
        "batch": 4,
    },
    "experts with latent attention at 8k": {
        "shape": EXPERTS
        | LATENT
        | {"model_type": "deepseek_v3", "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 32}
        | {"n_shared_experts": 1, "first_k_dense_replace": 1},
        "sequence": 8192,
        "micro": 16_384,
        "batch": 4,
    },
    "4B, recomputed": {
        "shape": LARGE | {"tie_word_embeddings": True},
        "sequence": 8192,
        "micro": 16_384,
        "batch": 2,
        "recompute": True,
    },
}
TINY = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 256}


def workload(case: dict[str, Any], options: argparse.Namespace) -> Workload:
    small = TINY if options.tiny else {}
    shrink = 256 if options.tiny else 1
    config = ModelConfig(**case["shape"] | small, max_position_embeddings=16_384)
    micro, gpu = case["micro"] // shrink, options.device.startswith("cuda")
    precision = "bfloat16" if gpu else "float32"
    recompute = case.get("recompute", False)
    tokens = case["batch"] * micro, micro, case["sequence"] // shrink
    return Workload(config, "sft", *tokens, precision, recompute, "adamw", gpu=gpu)  # type: ignore[arg-type]


def planned(work: Workload) -> dict[str, Any]:
    machine = MACHINES["h200-8" if work.gpu else "cpu"]
    time_, taken = step_time(work, Layout(), machine), memory(work, Layout())
    parts = ("products", "experts", "attention", "memory", "optimiser")
    return {
        "seconds": round(time_.seconds, 4),
        "gib": round(taken.peak / GIB, 2),
        "seconds_by_part": {part: round(getattr(time_, part), 4) for part in parts},
        "gib_by_part": {part: round(taken / GIB, 2) for part, taken in taken.at_peak().items()},
    }


def measured(work: Workload, options: argparse.Namespace) -> dict[str, Any]:
    cuda = options.device.startswith("cuda")
    began = time.perf_counter()
    torch._dynamo.reset()  # or what was compiled for one shape would be made anew for any
    gc.collect()
    if cuda:
        torch.cuda.empty_cache()
    with torch.device(options.device):
        decoder = Decoder(work.config)
    set_up(decoder, ComputeSettings(recompute=work.recompute), options.device)
    optim = OptimSettings(matrices="adamw", lr=1e-4, schedule="constant", warmup=0.0)
    learner = Learner(decoder, optim, 1000, work.micro_tokens, options.device)
    rng, taken, warm = np.random.default_rng(0), [], 0.0
    share = np.full(work.sequence, 1 / work.batch_tokens, np.float32)
    for step in range(2 + options.steps):
        texts = [
            rng.integers(0, work.config.vocab_size, work.sequence) for _ in range(work.batch_tokens // work.sequence)
        ]
        batch = Batch([Item(ids, [Stream("main", share, Label(ids))]) for ids in texts])
        if step == 2:
            if cuda:
                torch.cuda.reset_peak_memory_stats()
            warm = time.perf_counter() - began
        start = time.perf_counter()
        loss = learner.forward_backward(batch)["loss"]
        learner.step()
        if cuda:
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - start)
    return {
        "seconds": round(statistics.median(taken[2:]), 4),
        "steps": [round(seconds, 4) for seconds in taken[2:]],
        "gib": round(torch.cuda.max_memory_allocated() / GIB, 2) if cuda else None,
        "warm_up_seconds": round(warm, 1),
        "loss": round(loss, 4),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", choices=list(CASES), action="append")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("--plan", action="store_true", help="print the plan and measure nothing")
    parser.add_argument("--tiny", action="store_true", help="small shapes, to try the script itself")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    options = parser.parse_args()
    torch.manual_seed(0)
    if options.plan:
        options.device = "cuda"
    works = {name: workload(CASES[name], options) for name in options.only or CASES}
    rows: dict[str, dict[str, Any]] = {}
    for name, work in works.items():
        rows[name] = {"parameters": size.parameters(work.config), "plan": planned(work)}
        print(f"{name}: planned {rows[name]['plan']}", file=sys.stderr, flush=True)
    began, left_out = time.perf_counter(), []
    for name, work in works.items() if not options.plan else ():
        if time.perf_counter() - began > options.seconds:
            left_out.append(name)
            continue
        row = rows[name] | {"measured": measured(work, options)}
        for what in ("seconds", "gib"):
            if row["measured"][what]:
                row[f"{what}_plan_over_measured"] = round(row["plan"][what] / row["measured"][what], 3)
        rows[name] = row
        print(f"{name}: {row}", file=sys.stderr, flush=True)
    ratios = [row.get(f"{what}_plan_over_measured") for row in rows.values() for what in ("seconds", "gib")]
    within = all(ratio is not None and abs(ratio - 1) <= BAR for ratio in ratios)
    found = {"torch": torch.__version__, "bar": BAR, "within": within, "left_out": left_out, "shapes": rows}
    print(json.dumps(found) if options.json else json.dumps(found, indent=2))
    return 0 if within or options.plan or options.tiny else 1


if __name__ == "__main__":
    sys.exit(main())
