"""What each rank of a 400M model takes on gloo against what `etude plan` says: python -m benchmarks.scale.rank_memory

The ranks of one learner start from an outline, train two steps, save, train while a save runs, restore and put every
weight together as `publish` does. The kernel's peak of resident memory of each process, above that of a process with
the same imports, is read for each of these phases and set back before the next one. Two things are held:

    the peak of the steps of each rank, against the plan's        within 15%
    the peak of every phase but the steps beside a save, above what the rank holds    no rank holds the whole model

`--only NAME` runs one shape, `--steps-only` leaves out what comes after the steps, `--most` is the memory in GiB past
which all ranks are ended, `--small` is the same with few weights, to try the script itself. About 11 GB of memory and
ten minutes a shape on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

BAR = 0.15
RANKS = 8
VOCABULARY, TOKENS = 4096, 16  # tokens of a rank in a micro-batch: few, since the machine has to hold eight ranks
MOST = 13  # GiB of all ranks together; more ends the run
IMPORTS = """
from etude.model.torch_process import prepare
prepare(1)
import etude.learn.parallel.launch, etude.learn.parallel.lead
from benchmarks.scale.rank_memory import resident
print(resident("self", "VmHWM"))
"""
DENSE = {"width": 768, "layers": 47, "heads": 12, "kv_heads": 4, "head_dim": 64, "mlp": 3072}
EXPERTS = DENSE | {
    **{"shape": "deepseek_v3", "layers": 18, "kv_rank": 256, "q_rank": 384, "head_dim": 64, "rope_dim": 32},
    **{"experts": 16, "experts_per_token": 2, "expert_mlp": 512, "shared_experts": 1},
}
EP_AND_CP = {"shard": 4, "expert": 8, "context": 2}
CASES: dict[str, dict[str, Any]] = {
    "dense, AdamW": {"model": DENSE, "layout": {"shard": 8}, "matrices": "adamw"},
    "dense, Muon": {"model": DENSE, "layout": {"shard": 8}, "matrices": "muon"},
    "experts with MLA, EP 8 x CP 2": {"model": EXPERTS, "layout": EP_AND_CP, "matrices": "adamw"},
    "experts with MLA, EP 8 x CP 2, Muon": {"model": EXPERTS, "layout": EP_AND_CP, "matrices": "muon"},
}
SMALL = {"width": 128, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 32, "mlp": 256}


def workload(name: str, small: bool) -> Any:
    from etude.core.settings import ModelSettings
    from etude.model.config import ModelConfig
    from etude.plan.workload import Workload

    case = CASES[name]
    shape = case["model"] | (SMALL if small else {})
    config = ModelConfig.from_settings(ModelSettings(**shape, max_positions=8192), VOCABULARY)
    micro = TOKENS * case["layout"].get("context", 1)
    return Workload(config, "pretrain", RANKS * TOKENS * 2, micro, micro, "float32", False, case["matrices"], gpu=False)


def resident(process: int | str, what: str) -> int:
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith(what + ":"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"the kernel does not say {what} here")


class Peaks:
    """Peaks of resident memory of several processes, phase by phase."""

    def __init__(self, processes: dict[int, int | str], imports: int, most: int) -> None:
        self.processes, self.imports, self.most = processes, imports, most
        self.found: dict[str, list[int]] = {}
        self.seconds: dict[str, float] = {}
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        """Ends this process, and all ranks with it, before the machine has no memory left."""
        while True:
            time.sleep(0.2)
            with suppress(OSError):
                if sum(resident(process, "RssAnon") for process in self.processes.values()) > self.most << 30:
                    print(f"the ranks take more than {self.most} GiB; ended", file=sys.stderr, flush=True)
                    os._exit(1)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        for process in self.processes.values():
            Path(f"/proc/{process}/clear_refs").write_text("5")
        began = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - began, 1)
        self.found[name] = [resident(process, "VmHWM") - self.imports for process in self.processes.values()]
        peaks = " ".join(f"{peak / 2**20:.0f}" for peak in self.found[name])
        print(f"{name}: {peaks} MiB in {self.seconds[name]} s", file=sys.stderr, flush=True)


def measure(name: str, small: bool, steps_only: bool, most: int) -> dict[str, Any]:
    from etude.core.settings import OptimSettings
    from etude.learn.parallel import checkpoint
    from etude.learn.parallel.launch import Ranks
    from etude.learn.parallel.layout import Layout
    from etude.learn.parallel.lead import LeadLearner
    from etude.learn.parallel.messages import RankSpec
    from etude.learn.streams import Batch, Item, Label, Stream
    from etude.model.checkpoint.outlines import draw_outline, load_outline
    from etude.model.torch_process import prepare
    from etude.plan.memory import memory

    prepare(1)
    imports = int(subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True).stdout)
    case, work = CASES[name], workload(name, small)
    layout = Layout(**{"ranks": RANKS} | case["layout"])
    plan = memory(work, layout)
    optim = OptimSettings(matrices=case["matrices"])
    spec = RankSpec(layout, json.dumps(work.config.to_hf()), optim, 100, work.micro_tokens)
    rng = np.random.default_rng(0)

    def batch() -> Batch:
        share = np.full(work.sequence, 1 / work.batch_tokens, np.float32)
        texts = [
            rng.integers(0, work.config.vocab_size, work.sequence) for _ in range(work.batch_tokens // work.sequence)
        ]
        return Batch([Item(ids, [Stream("main", share, Label(ids))]) for ids in texts])

    with tempfile.TemporaryDirectory() as folder, Ranks(RANKS) as ranks:
        place = Path(folder)
        peaks = Peaks({0: "self"} | {rank: process.pid for rank, process in ranks.processes.items()}, imports, most)
        with peaks.phase("draw"):
            learner = LeadLearner(ranks, spec, draw_outline(work.config, 0))
        with peaks.phase("steps"):
            for _ in range(2):
                learner.forward_backward(batch())
                learner.step()
        if not steps_only:
            with peaks.phase("save"):
                learner.save(place)
            beside = place / "beside"
            beside.mkdir()
            with peaks.phase("steps beside a save"):
                learner.begin_save(beside)
                learner.forward_backward(batch())
                learner.step()
                learner.finish_save()
            with peaks.phase("gather"):
                learner._all("gather", None, lambda: [None for _ in checkpoint.wholes(learner._learner)])
            with peaks.phase("restore"):
                learner.restore(place)
            with peaks.phase("steps again"):
                learner.forward_backward(batch())
                learner.step()
            learner.close()
            del learner
            with peaks.phase("load"):
                learner = LeadLearner(ranks, spec, load_outline(place))
        learner.close()
    ratios = [plan.peak / peak for peak in peaks.found["steps"]]
    weights = 4 * work.parameters
    # While a checkpoint is written from a copy: the plan of `run.save_in_background`, reported and not held.
    copying = memory(replace(work, background=True), layout).peak
    # A copy for a file is a part of the model, not the model gathered.
    whole = [peak for name, found in peaks.found.items() if "beside" not in name for peak in found]
    beside_save = [round(copying / peak, 3) for peak in peaks.found.get("steps beside a save", ())]
    return {
        "case": name,
        "parameters": work.parameters,
        "imports": imports,
        "planned": plan.parts(),
        "measured": peaks.found,
        "seconds": peaks.seconds,
        "ratio": [round(ratio, 3) for ratio in ratios],
        "ratio_beside_a_save": beside_save,
        "within": all(abs(ratio - 1) <= BAR for ratio in ratios)
        and all(peak - plan.stays < weights / 2 for peak in whole),
        "model": weights,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=sorted(CASES))
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--steps-only", action="store_true")
    parser.add_argument("--most", type=int, default=MOST, help="GiB of all ranks together; more ends the run")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    for name in [options.only] if options.only else CASES:
        row = measure(name, options.small, options.steps_only, options.most)
        rows.append(row)
        if not options.json:
            planned = {part: f"{size / 2**20:.0f}" for part, size in row["planned"].items()}
            print(f"{name}: {row['parameters'] / 1e6:.0f}M parameters, imports {row['imports'] / 2**20:.0f} MiB")
            print(f"  plan in MiB: {planned}\n  plan / measured of each rank: {row['ratio']}", flush=True)
    if options.json:
        print(json.dumps(rows))
    return 0 if options.small or all(row["within"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
