"""The code for several ranks in a process group of one rank, against the learner without a group, on one device.

    python -m benchmarks.scale.one_rank_group --json                        on a GPU, where the group is nccl's
    python -m benchmarks.scale.one_rank_group --part speed --json           0.6B parameters in bfloat16, compiled
    python -m benchmarks.scale.one_rank_group --device cpu --tiny --json    tries the script itself, over gloo

`equal`: ten steps in float32 with targets of all kinds (layouts.py), weights under FSDP2 over a mesh of one, AdamW and
Muon; checkpoints written by the one and read by the other. What a group of one leaves out by itself is forced: tokens
that travel to experts by all-to-all, sequences that are gathered, and Muon's matrices that are sent to their owner.
`speed`: seconds of a step, peak memory and losses of both. Each case says its own error, and the next one goes on.
Needs torch, numpy and safetensors only.
"""

from __future__ import annotations

import argparse
import copy
import gc
import hashlib
import json
import math
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from benchmarks.scale import layouts, plan_h200
from etude.core.settings import ComputeSettings, OptimSettings
from etude.learn.learner import AnyLearner, Learner
from etude.learn.loss import MicroBatch, Tally
from etude.learn.optim import Optimiser
from etude.learn.parallel.context import split_context
from etude.learn.parallel.experts import split_experts
from etude.learn.parallel.launch import Ranks
from etude.learn.parallel.layout import Layout
from etude.learn.parallel.lead import LeadLearner
from etude.learn.parallel.messages import RankSpec
from etude.learn.parallel.muon import Division, ShardedMuon
from etude.learn.parallel.wire import Wire
from etude.learn.streams import Batch, Correction, Item, Label, Stream
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder
from etude.model.torch_process import prepare
from etude.model.training import set_up

GIB = 2**30
BARS = layouts.BARS | {"metrics": 1e-3, "scores": 1e-4}
# Muon's factors are made in bfloat16 on a GPU, and sums in another order are now and then rounded to its next number.
MUON_ON_GPU = 1e-3
# Of tokens that travel in bfloat16 or in 8 bits: rounded by 2 ** -9 and 2 ** -4, as gradients of one layer see it.
WIRES: dict[Wire, float] = {"same": 1e-5, "bfloat16": 2e-2, "fp8": 2e-1}
SLOWER = 0.10  # of a step of 0.6B: more says that something waits that need not
LOSSES = 1e-2  # of 0.6B in bfloat16, after some steps

Found = dict[str, Any]


def as_without_a_group(ranks: Ranks, model: str, matrices: str, device: str) -> Found:
    optim = replace(layouts.OPTIM, matrices=matrices)
    truth = layouts.one_rank(model, optim=optim, device=device)
    found = layouts.difference(ranks, model, Layout(), truth, optim, device)
    bars = BARS
    if matrices == "muon" and device != "cpu":
        bars = {name: max(bar, MUON_ON_GPU) for name, bar in BARS.items()} | {"gradient": BARS["gradient"]}
    return found | {"bars": bars, "passed": all(found[name] <= bar for name, bar in bars.items())}


def checkpoints(ranks: Ranks, device: str) -> Found:
    """Written by a group, at once and beside training, read by both kinds of learner, and the other way round."""
    found: Found = {}
    with tempfile.TemporaryDirectory() as folder:
        places = {name: Path(folder) / name for name in ("group", "background", "alone")}
        for place in places.values():
            place.mkdir()
        writer = layouts.open_ranks(ranks, "moe", Layout(), device=device)
        _steps(writer, 0, 3)
        writer.save(places["group"])
        writer.begin_save(places["background"])
        after = _steps(writer, 3, 5)
        writer.finish_save()
        writer.close()
        found["background_equal"] = _digests(places["group"]) == _digests(places["background"])
        single = layouts.alone("moe", device=device)
        single.restore(places["group"])
        found["alone"] = _far(_steps(single, 3, 5), after)
        single.restore(places["group"])
        single.save(places["alone"])
        for name in ("background", "alone"):
            reader = layouts.open_ranks(ranks, "moe", Layout(), device=device)
            reader.restore(places[name])
            found[f"group from {name}"] = _far(_steps(reader, 3, 5), after)
            reader.close()
    bar = BARS["loss"] if device == "cpu" else MUON_ON_GPU
    losses = [found["alone"], found["group from background"], found["group from alone"]]
    return found | {"bar": bar, "passed": found["background_equal"] and max(losses) <= bar}


def _steps(learner: AnyLearner, first: int, stop: int) -> list[float]:
    losses = []
    for step in range(first, stop):
        losses.append(learner.forward_backward(layouts.batch(step, "moe"))["loss"])
        learner.step()
    return losses


def _far(found: list[float], wanted: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(found, wanted, strict=True))


def _digests(place: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(place.iterdir())}


def _gradients(decoder: Decoder, device: str) -> dict[str, torch.Tensor]:
    """Of one micro-batch: labels of sequences of several lengths."""
    rng, items = np.random.default_rng(0), []
    for length in (40, 9, 23, 1, 31):
        ids = rng.integers(0, layouts.VOCABULARY, length)
        items.append(Item(ids, [Stream("main", np.full(length, 0.01, np.float32), Label(ids))]))
    set_up(decoder, layouts.COMPUTE, device)
    MicroBatch(items, Correction(), {"live": decoder.to(device)}, Tally()).backward()
    found = {name: p.grad for name, p in decoder.named_parameters() if p.grad is not None}
    return {name: grad.to_local() if isinstance(grad, DTensor) else grad for name, grad in found.items()}


@contextmanager
def _group(ranks: Ranks, device: str) -> Iterator[Any]:
    """A mesh of one rank, outside of a learner."""
    ranks.join(layouts.spec("moe", Layout(), device=device))
    try:
        yield init_device_mesh(torch.device(device).type, (1,), mesh_dim_names=("one",))
    finally:
        ranks.leave()


def experts_by_all_to_all(ranks: Ranks, wire: Wire, device: str) -> Found:
    whole = _gradients(layouts.decoder("moe"), device)
    with _group(ranks, device) as mesh:
        divided = layouts.decoder("moe").to(device)
        split_experts(divided, mesh, wire)
        found = _gradients(divided, device)
    far = max(layouts.apart(found[name], gradient) for name, gradient in whole.items())
    return {"gradient": far, "bar": WIRES[wire], "passed": found.keys() == whole.keys() and far <= WIRES[wire]}


def gathered_sequences(ranks: Ranks, model: str, device: str) -> Found:
    whole = _gradients(layouts.decoder(model), device)
    with _group(ranks, device) as mesh:
        divided = layouts.decoder(model).to(device)
        split_context(divided, mesh.get_group())
        found = _gradients(divided, device)
    far = max(layouts.apart(found[name], gradient) for name, gradient in whole.items())
    return {"gradient": far, "bar": BARS["gradient"], "passed": far <= BARS["gradient"]}


def muon_by_all_to_all(ranks: Ranks, device: str) -> Found:
    """Three steps; every matrix goes to its owner, which is this rank, and comes back."""
    decoders = [layouts.decoder("moe").to(device) for _ in range(2)]
    heads, settings = decoders[0].config.head_dims, OptimSettings(muon_lr=0.02, lr=0.01)
    with _group(ranks, device) as mesh:
        parameters = [dict(decoder.named_parameters()) for decoder in decoders]
        divisions = {name: Division(tuple(p.shape), mesh.get_group(), p.ndim - 2) for name, p in parameters[1].items()}
        alone = Optimiser(parameters[0], settings, heads)
        # Heads that are whole on a rank would stay there: cut along columns, none is.
        sent = {n: replace(d, dim=len(d.shape) - 1) for n, d in divisions.items()}
        optimisers = alone, Optimiser(parameters[1], settings, heads, ShardedMuon(sent, heads))
        for step in range(3):
            generator = torch.Generator().manual_seed(step)
            for name, shape in {name: p.shape for name, p in parameters[0].items()}.items():
                gradient = torch.randn(shape, generator=generator).to(device)
                for each in parameters:
                    each[name].grad = gradient.clone()
            for optimiser in optimisers:
                optimiser.step(0.5)
    far = max(layouts.apart(parameters[1][name].detach(), p.detach()) for name, p in parameters[0].items())
    # Every update is rounded to bfloat16 once more on its way, and weights are made of updates alone after a while.
    bar = 1e-5 if device == "cpu" else 2e-3
    return {"weights": far, "bar": bar, "sent": len(alone.muon), "passed": far <= bar}


def speed(ranks: Ranks, device: str, tiny: bool, steps: int) -> Found:
    """0.6B at 4k, as plan_h200 has it: FSDP2 over a mesh of one and the plain learner, from the same weights."""
    case = plan_h200.CASES["0.6B at 4k"]
    config = ModelConfig(**case["shape"] | (plan_h200.TINY if tiny else {}), max_position_embeddings=16_384)
    shrink = 256 if tiny else 1
    sequence, micro = case["sequence"] // shrink, case["micro"] // shrink
    optim = OptimSettings(matrices="adamw", lr=1e-4, schedule="constant", warmup=0.0)
    rows: dict[str, Found] = {}
    source = Decoder(config, seed=0)
    for name in ("alone", "group"):
        torch._dynamo.reset()
        gc.collect()
        if device != "cpu":
            torch.cuda.empty_cache()
        learner: Learner | LeadLearner
        if name == "group":
            spec = RankSpec(Layout(), json.dumps(config.to_hf()), optim, 1000, micro, device)
            learner = LeadLearner(ranks, spec, source)
        else:
            decoder = set_up(copy.deepcopy(source).to(device), ComputeSettings(), device)
            learner = Learner(decoder, optim, 1000, micro, device)
            del decoder
        rows[name] = _timed(learner, config, sequence, case["batch"] * micro, device, steps)
        if isinstance(learner, LeadLearner):
            learner.close()
        del learner
        print(f"{name}: {rows[name]}", file=sys.stderr, flush=True)
    slower = rows["group"]["seconds"] / rows["alone"]["seconds"] - 1
    far = _far(rows["group"]["losses"], rows["alone"]["losses"])
    passed = far <= LOSSES and (slower <= SLOWER or tiny)
    return {"slower": round(slower, 4), "losses_apart": far, "bars": [SLOWER, LOSSES], "rows": rows, "passed": passed}


def _timed(learner: AnyLearner, config: ModelConfig, sequence: int, tokens: int, device: str, steps: int) -> Found:
    rng, losses, seconds = np.random.default_rng(0), [], []
    share = np.full(sequence, 1 / tokens, np.float32)
    for step in range(2 + steps):
        texts = [rng.integers(0, config.vocab_size, sequence) for _ in range(tokens // sequence)]
        batch = Batch([Item(ids, [Stream("main", share, Label(ids))]) for ids in texts])
        if step == 2 and device != "cpu":
            torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        losses.append(learner.forward_backward(batch)["loss"])
        learner.step()
        if device != "cpu":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    peak = torch.cuda.max_memory_allocated() / GIB if device != "cpu" else math.nan
    found = {"seconds": round(statistics.median(seconds[2:]), 4), "steps": [round(each, 4) for each in seconds]}
    return found | {"gib": None if math.isnan(peak) else round(peak, 2), "losses": losses}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--part", choices=("equal", "speed"), default="equal")
    parser.add_argument("--steps", type=int, default=5, help="that are timed")
    parser.add_argument("--tiny", action="store_true", help="small shapes, to try the script itself")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    options = parser.parse_args()
    device = options.device
    prepare(1 if device == "cpu" else 0)
    torch.manual_seed(0)
    with Ranks(1) as ranks:
        cases: dict[str, Callable[[], Found]] = {}
        if options.part == "speed":
            cases["0.6B at 4k"] = lambda: speed(ranks, device, options.tiny, options.steps)
        else:
            for model in layouts.MODELS:
                for matrices in ("adamw", "muon"):
                    cases[f"{model}, {matrices}"] = lambda m=model, o=matrices: as_without_a_group(ranks, m, o, device)
            cases["checkpoints"] = lambda: checkpoints(ranks, device)
            for wire in WIRES:
                cases[f"experts by all-to-all, {wire}"] = lambda w=wire: experts_by_all_to_all(ranks, w, device)
            for model in ("dense", "moe"):
                cases[f"gathered sequences, {model}"] = lambda m=model: gathered_sequences(ranks, m, device)
            cases["Muon by all-to-all"] = lambda: muon_by_all_to_all(ranks, device)
        rows = {name: _tried(name, case, ranks) for name, case in cases.items()}
    passed = all(row["passed"] for row in rows.values())
    backend = "gloo" if device == "cpu" else "nccl"
    found = {"torch": torch.__version__, "backend": backend, "passed": passed, "cases": rows}
    print(json.dumps(found) if options.json else json.dumps(found, indent=2))
    return 0 if passed else 1


def _tried(name: str, case: Callable[[], Found], ranks: Ranks) -> Found:
    """What it found, or its error: whoever has the device only once wants to know of all of them."""
    began = time.monotonic()
    try:
        row = case()
    except Exception:
        row = {"passed": False, "error": traceback.format_exc()[-2000:]}
        if dist.is_initialized():
            ranks.leave()
    row["took"] = round(time.monotonic() - began, 1)
    print(f"{name}: {row}", file=sys.stderr, flush=True)
    return row


if __name__ == "__main__":
    sys.exit(main())
