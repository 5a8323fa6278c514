"""What `etude plan` says of one CPU rank against what a learner takes: python benchmarks/scale/plan_memory.py [--json]

For each shape a process of its own trains three steps with one thread; its peak of resident memory, above what it had
after its imports, is held against the plan's. The processor time of the last step stands beside the time planned; on a
busy machine it says little. `--only NAME` runs one shape, `--machine` measures what the table says of one core.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BAR = 0.15
SECONDS = 400
TOKENS = {"vocab_size": 8192}
LARGE = {"width": 512, "layers": 4, "heads": 8, "kv_heads": 4, "head_dim": 64, "mlp": 1536}
CASES: dict[str, dict[str, Any]] = {
    "dense, Muon": {"model": LARGE, "micro": 2048, "sequence": 512},
    "dense, AdamW, long": {
        "model": LARGE | {"shape": "qwen2"},
        "micro": 2560,
        "sequence": 2560,
        "matrices": "adamw",
    },
    "experts": {
        "model": LARGE | {"shape": "qwen3_moe", "experts": 8, "experts_per_token": 2, "expert_mlp": 512},
        "micro": 2048,
        "sequence": 1024,
    },
    "latent attention, experts": {
        "model": LARGE
        | {"shape": "deepseek_v3", "kv_rank": 128, "q_rank": 192, "head_dim": 64, "rope_dim": 32}
        | {"experts": 8, "experts_per_token": 2, "expert_mlp": 384, "shared_experts": 1},
        "micro": 2048,
        "sequence": 1024,
    },
    "dense, recomputed, large vocabulary": {
        "model": LARGE,
        "micro": 2048,
        "sequence": 1024,
        "recompute": True,
        "matrices": "adamw",
        "vocab_size": 32_768,
    },
}


def planned(case: dict[str, Any]) -> Any:
    from etude.core.settings import ModelSettings
    from etude.model.config import ModelConfig
    from etude.plan.workload import Workload

    settings = ModelSettings(**case["model"], max_positions=8192)
    config = ModelConfig.from_settings(settings, case.get("vocab_size", TOKENS["vocab_size"]))
    return Workload(
        *(config, "pretrain", 2 * case["micro"], case["micro"], case["sequence"], "float32"),
        *(case.get("recompute", False), case.get("matrices", "muon")),
        gpu=False,
    )


def resident(what: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(what):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"the kernel does not say {what} here")


def train(name: str) -> dict[str, Any]:
    """In a process of its own: three steps."""
    import numpy as np

    from etude.core.settings import ComputeSettings, OptimSettings
    from etude.learn.learner import Learner
    from etude.learn.streams import Batch, Item, Label, Stream
    from etude.model.decoder import Decoder
    from etude.model.torch_process import prepare
    from etude.model.training import ready

    case, work = CASES[name], planned(CASES[name])
    prepare(1)
    before = resident("VmHWM")
    decoder = ready(Decoder(work.config), ComputeSettings(recompute=work.recompute), "cpu", work.micro_tokens)
    learner = Learner(decoder, OptimSettings(matrices=work.matrices), 100, work.micro_tokens, "cpu")
    rng, took = np.random.default_rng(0), 0.0
    for _ in range(3):
        count = work.batch_tokens // work.sequence
        texts = [rng.integers(0, work.config.vocab_size, work.sequence) for _ in range(count)]
        share = np.full(work.sequence, 1 / work.batch_tokens, np.float32)
        began = time.process_time()
        learner.forward_backward(Batch([Item(ids, [Stream("main", share, Label(ids))]) for ids in texts]))
        learner.step()
        took = time.process_time() - began
    return {"case": name, "bytes": resident("VmHWM") - before, "imports": before, "seconds": took, **_plan(work, case)}


def _plan(work: Any, case: dict[str, Any]) -> dict[str, Any]:
    from etude.learn.parallel.layout import Layout
    from etude.plan.machines import MACHINES
    from etude.plan.memory import memory
    from etude.plan.step_time import step_time

    parts = memory(work, Layout()).parts()
    seconds = step_time(work, Layout(), MACHINES["cpu"]).seconds
    return {"planned": parts, "planned_seconds": seconds, "parameters": work.parameters, "micro": case["micro"]}


def measure_machine() -> dict[str, float]:
    """What the table of machines says of one core."""
    import torch

    torch.set_num_threads(1)
    square, flat = torch.randn(1024, 1024), torch.randn(16 << 20)
    out = torch.empty_like(flat)
    best = {"product": 1e9, "copy": 1e9}
    acts: dict[str, Callable[[], object]] = {
        "product": lambda: square @ square,
        "copy": lambda: torch.mul(flat, 2, out=out),
    }
    for _ in range(20):
        for what, act in acts.items():
            began = time.thread_time()
            act()
            best[what] = min(best[what], time.thread_time() - began)
    return {"flops": 2 * 1024**3 / best["product"], "bandwidth": 2 * flat.nbytes / best["copy"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=sorted(CASES))
    parser.add_argument("--child", choices=sorted(CASES), help=argparse.SUPPRESS)
    parser.add_argument("--machine", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.child:
        print(json.dumps(train(options.child)))
        return
    if options.machine:
        print(json.dumps(measure_machine()))
        return
    rows = []
    for name in [options.only] if options.only else CASES:
        child = [sys.executable, __file__, "--child", name]
        done = subprocess.run(child, capture_output=True, text=True, timeout=SECONDS, check=False)
        if done.returncode:
            raise SystemExit(f"{name} ended with {done.returncode}: {done.stderr[-2000:]}")
        row = json.loads(done.stdout.splitlines()[-1])
        row["ratio"] = row["planned"]["peak"] / row["bytes"]
        rows.append(row)
        if not options.json:
            seconds = f"{row['planned_seconds']:.2f} of {row['seconds']:.2f} s of processor time"
            sizes = f"{row['planned']['peak'] / 2**20:.0f} MiB planned, {row['bytes'] / 2**20:.0f} measured"
            print(
                f"{name}: {row['parameters'] / 1e6:.1f}M parameters, {sizes}, {row['ratio']:.3f}; {seconds}", flush=True
            )
    worst = max(abs(row["ratio"] - 1) for row in rows)
    found = {"ok": worst <= BAR, "worst": worst, "bar": BAR, "rows": rows}
    print(json.dumps(found) if options.json else f"worst {worst:.1%}, bar {BAR:.0%}")
    sys.exit(0 if found["ok"] else 1)


if __name__ == "__main__":
    main()
