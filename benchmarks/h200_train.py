"""Training on one H200, a line of the scoreboard each: python benchmarks/h200_train.py LINE [--json] [--profile]

    dense   Qwen3-0.6B shape, full parameters, documents of 16,384 tokens; a plain `transformers` loop beside it
    moe     1B parameters of which a token uses 0.2B, against the dense line in the same run
    fp8     Qwen3-4B shape, FP8 row-wise against bfloat16
    loss    a small model trained for 300 steps in FP8 (or --format mxfp8) and in bfloat16, three seeds, held-out loss
    rl      a step of reinforcement learning (three streams, one a twin) against a step of fine-tuning, 0.6B
    long    one optimiser step on one document of 262,144 tokens, 0.6B, blocks recomputed
    muon    steps that Muon takes to the loss that AdamW ends with, small model, three seeds

Every step is the learner's own: `forward_backward` on items with streams, then `step`. Weights are random, tokens are
random or, where a loss is compared, the bytes of Python files, the standard library's and those installed beside it.
Seconds are medians of whole steps on the host's clock. FLOPs are counted as 6 N + 6 L S h d a token (N weights that a
token uses, L blocks, S tokens of a document, h heads of d dimensions) and utilisation against 989.5 TFLOP/s.
`--tiny --device cpu` tries the script itself; `--small --device cpu` runs the lines about losses with a model of 1M
parameters, FP8 being computed in float32 there.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import sysconfig
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from etude.core.settings import ComputeSettings, OptimSettings
from etude.learn.learner import Learner
from etude.learn.streams import Batch, Correction, Item, Label, Sampled, Stream, Twin
from etude.model import size
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder
from etude.model.training import peak_bytes, ready

PEAK = 989.5e12  # FLOP/s, bfloat16, dense
GIB = 2**30
QWEN3 = {"head_dim": 128, "rope_theta": 1e6, "vocab_size": 151_936, "num_key_value_heads": 8}
SHAPES: dict[str, dict[str, Any]] = {
    "0.6B": QWEN3
    | {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16},
    "4B": QWEN3 | {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32},
    "moe": QWEN3
    | {"vocab_size": 65_536, "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 16}
    | {"num_attention_heads": 8, "num_key_value_heads": 4, "model_type": "qwen3_moe"}
    | {"num_experts": 32, "num_experts_per_tok": 4, "moe_intermediate_size": 512},
    "small": {"vocab_size": 256, "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 12}
    | {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64},
    "1M": {"vocab_size": 256, "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4}
    | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32},
}
TINY = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 16}
ADAMW = OptimSettings(matrices="adamw", lr=1e-4, schedule="constant", warmup=0.0)


class Bench:
    """What all lines share: the device, the sizes, and how a step is timed."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.device, self.tiny, self.profile = options.device, options.tiny, options.profile
        self.steps, self.documents, self.micro = options.steps, options.documents, options.micro
        self.small, self.matrices, self.format = options.small, options.matrices, options.format
        self.rng = np.random.default_rng(0)
        self.estimate = 0  # bytes that the last learner should take

    def length(self, tokens: int) -> int:
        return tokens // 256 if self.tiny else tokens

    def decoder(self, name: str, **compute: Any) -> tuple[Decoder, ComputeSettings]:
        name = "1M" if name == "small" and self.small else name
        shape = SHAPES[name] | (TINY | {"vocab_size": 256, "num_key_value_heads": 2} if self.tiny else {})
        config = ModelConfig(**shape)
        if self.tiny and config.num_experts:
            config = ModelConfig(**shape | {"moe_intermediate_size": 32})
        with torch.device(self.device):
            decoder = Decoder(config)
        settings = ComputeSettings(**compute)
        return decoder, settings

    def learner(
        self, name: str, optim: OptimSettings = ADAMW, micro: int = 0, steps: int = 1000, **compute: Any
    ) -> Learner:
        decoder, settings = self.decoder(name, **compute)
        micro = micro or self.length(16_384) * self.micro
        ready(decoder, settings, self.device, micro)
        self.estimate = peak_bytes(decoder, settings, self.device, micro)
        return Learner(decoder, optim, steps, micro, self.device)

    def documents_of(self, length: int, count: int, vocabulary: int) -> list[np.ndarray]:
        return [self.rng.integers(0, vocabulary, length) for _ in range(count)]

    def measure(
        self, learner: Learner, batch: Callable[[], Batch], extra: Callable[[Batch], object] | None = None
    ) -> dict[str, Any]:
        """Seconds of one step: the first two warm up."""
        self.reset()
        taken, losses = [], []
        for number in range(2 + self.steps):
            drawn = batch()
            self.wait()
            began = time.perf_counter()
            if extra is not None:
                extra(drawn)
            losses.append(learner.forward_backward(drawn)["loss"])
            learner.step()
            self.wait()
            taken.append(time.perf_counter() - began)
            if number == 0:
                say(f"first step {taken[0]:.1f} s")
        if self.profile:
            self.show_profile(lambda: (learner.forward_backward(batch()), learner.step()))
        seconds = statistics.median(taken[2:])
        tokens = sum(len(item.tokens_T) for item in batch().items)
        found = {
            "seconds": round(seconds, 4),
            "spread": round((max(taken[2:]) - min(taken[2:])) / seconds, 3),
            "tokens_per_second": round(tokens / seconds),
            "tokens_per_step": tokens,
            "peak_gib": round(self.peak() / GIB, 1),
            "estimated_gib": round(self.estimate / GIB, 1),
            "loss": round(losses[-1], 4),
            "first_step_seconds": round(taken[0], 1),
        }
        say(json.dumps(found))
        return found

    def show_profile(self, step: Callable[[], object]) -> None:
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
            step()
            self.wait()
        rows = [row for row in found.key_averages() if getattr(row, "self_device_time_total", 0) > 0]
        kernels = [row for row in rows if str(getattr(row, "device_type", "")).endswith("CUDA")]
        kernels.sort(key=lambda row: -row.self_device_time_total)
        total = sum(row.self_device_time_total for row in kernels)
        say(f"profile: {total / 1e3:.1f} ms of kernels in one step")
        for row in kernels[:28]:
            share = row.self_device_time_total / max(1, total)
            say(f"  {share:6.1%} {row.self_device_time_total / 1e3:9.2f} ms {row.count:6d}x  {row.key[:110]}")

    def wait(self) -> None:
        if self.device.startswith("cuda"):
            torch.cuda.synchronize()

    def reset(self) -> None:
        gc.collect()
        if self.device.startswith("cuda"):
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def peak(self) -> int:
        return torch.cuda.max_memory_allocated() if self.device.startswith("cuda") else 0


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def flops(config: ModelConfig, length: int) -> float:
    """A token's, forward and backward."""
    heads = config.num_attention_heads * config.head_dim
    return 6 * size.active_parameters(config) + 6 * config.num_hidden_layers * length * heads


def utilised(found: dict[str, Any], config: ModelConfig, length: int) -> dict[str, Any]:
    rate = found["tokens_per_second"] * flops(config, length)
    return found | {"gflop_per_token": round(flops(config, length) / 1e9, 2), "mfu": float(f"{rate / PEAK:.4g}")}


def labels(documents: Sequence[np.ndarray]) -> Batch:
    share = 1 / sum(len(ids) - 1 for ids in documents)
    return Batch([Item(ids, [Stream("main", np.full(len(ids), share, np.float32), Label(ids))]) for ids in documents])


def dense(bench: Bench, name: str = "0.6B") -> dict[str, Any]:
    learner, length = bench.learner(name), bench.length(16_384)
    config = learner.decoder.config
    found = bench.measure(learner, lambda: labels(bench.documents_of(length, bench.documents, config.vocab_size)))
    return utilised(found, config, length) | {"parameters": size.parameters(config), "length": length}


def dense_line(bench: Bench) -> dict[str, Any]:
    found = dense(bench)
    found |= {"bar": 0.40, "ok": found["mfu"] >= 0.40}
    try:
        found["transformers"] = peer(bench)
        found["ratio"] = round(found["tokens_per_second"] / found["transformers"]["tokens_per_second"], 2)
    except Exception as failed:
        found["transformers"] = repr(failed)[:300]
    return found


def peer(bench: Bench) -> dict[str, Any]:
    """The plain loop of a user of `transformers`: bfloat16 autocast, float32 weights, one document at a time."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    bench.reset()
    config, length = bench.decoder("0.6B")[0].config, bench.length(16_384)
    shape = {k: getattr(config, k) for k in (*TINY, "num_key_value_heads", "vocab_size")}
    with torch.device(bench.device):
        model = Qwen3ForCausalLM(
            Qwen3Config(**shape, tie_word_embeddings=True, use_cache=False, max_position_embeddings=40_960)
        )
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    taken = []
    for _ in range(4):
        ids = torch.from_numpy(bench.documents_of(length, 1, config.vocab_size)[0])[None].to(bench.device)
        bench.wait()
        began = time.perf_counter()
        with torch.autocast(torch.device(bench.device).type, torch.bfloat16):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        bench.wait()
        taken.append(time.perf_counter() - began)
    rate = length / statistics.median(taken[1:])
    return {
        "tokens_per_second": round(rate),
        "mfu": float(f"{rate * flops(config, length) / PEAK:.4g}"),
        "peak_gib": round(bench.peak() / GIB, 1),
    }


def moe_line(bench: Bench) -> dict[str, Any]:
    found = {"dense": dense(bench), "moe": dense(bench, "moe")}
    config = bench.decoder("moe")[0].config
    found["moe"] |= {"active_parameters": size.active_parameters(config)}
    ratio = found["moe"]["mfu"] / found["dense"]["mfu"]
    return found | {"ratio": round(ratio, 3), "bar": 0.6, "ok": ratio >= 0.6}


def fp8_line(bench: Bench) -> dict[str, Any]:
    found: dict[str, Any] = {}
    length = bench.length(4_096)
    for precision in ("bfloat16", "fp8"):
        learner = bench.learner("4B", micro=2 * length, precision=precision)
        config = learner.decoder.config
        result = bench.measure(learner, lambda: labels(bench.documents_of(length, 8, config.vocab_size)))  # noqa: B023
        found[precision] = utilised(result, config, length) | {"length": length}
        del learner
    ratio = found["fp8"]["tokens_per_second"] / found["bfloat16"]["tokens_per_second"]
    return found | {"ratio": round(ratio, 3), "bar": 1.25, "ok": ratio >= 1.25}


def loss_line(bench: Bench) -> dict[str, Any]:
    """Two equal runs in bfloat16 show how far apart chance alone brings them; means over seeds are compared."""
    optim, rows = SMALL[bench.matrices], list[dict[str, Any]]()
    for seed in range(3):
        runs = {"bfloat16": "bfloat16", "again": "bfloat16", bench.format: bench.format}
        row, seconds = dict[str, float](), dict[str, float]()
        for name, kind in runs.items():
            began = time.perf_counter()
            row[name] = trained(bench, optim, seed, 300, precision=kind).held_out
            seconds[name] = round(time.perf_counter() - began, 1)
        base = (row["bfloat16"] + row["again"]) / 2
        equal = abs(row["bfloat16"] - row["again"]) / base
        apart = {"apart": round(row[bench.format] / base - 1, 5), "equal_runs": round(equal, 5)}
        rows.append({"seed": seed, **row, **apart, "seconds": seconds})
        say(json.dumps(rows[-1]))
    apart = float(np.mean([row["apart"] for row in rows]))
    return {"rows": rows, "apart": round(apart, 5), "bar": 0.01, "ok": abs(apart) <= 0.01}


def rl_line(bench: Bench) -> dict[str, Any]:
    learner, length = bench.learner("0.6B"), bench.length(16_384)
    vocabulary, rng = learner.decoder.config.vocab_size, bench.rng
    turn, hint = length // 8, 64 if length > 256 else 4  # tokens that the twin is about, and of the hint it was given

    def sampled() -> Batch:
        items = []
        for ids in bench.documents_of(length, bench.documents, vocabulary):
            ones = np.full(length, 1 / (length * bench.documents), np.float32)
            noise = rng.normal(size=(2, length)).astype(np.float32)
            own, late = ones.copy(), ones.copy()
            own[: length // 2] = 0  # half of a rollout are observations
            late[:-turn] = 0
            first = length - turn
            hinted = np.concatenate((ids[:first], rng.integers(0, vocabulary, hint), ids[first:]))
            places = np.arange(length)
            twin = Twin(tokens_U=hinted, align_T=places + hint * (places >= first))
            logprob = noise[1] * 0.01 - np.log(vocabulary).astype(np.float32)
            streams = [Stream("main", own, Sampled(noise[0], logprob)), Stream("main", ones - own, Label(ids))]
            items.append(Item(ids, [*streams, Stream("main", late, twin)], 1.0))
        return Batch(items, Correction("truncate", high=2.0))

    found = {"sft": bench.measure(learner, lambda: labels(bench.documents_of(length, bench.documents, vocabulary)))}
    found["rl"] = bench.measure(learner, sampled)
    # the log-probabilities of older weights recomputed in a pass of their own, beside those of the step itself
    found["rl_scored"] = bench.measure(learner, sampled, lambda batch: learner.score(batch.items))
    base = found["sft"]["tokens_per_second"]
    ratios = {name: round(found[name]["tokens_per_second"] / base, 3) for name in ("rl", "rl_scored")}
    return found | {"ratio": ratios["rl"], "ratio_scored": ratios["rl_scored"], "bar": 0.6, "ok": ratios["rl"] >= 0.6}


def long_line(bench: Bench) -> dict[str, Any]:
    length = bench.length(262_144)
    learner = bench.learner("0.6B", micro=length, recompute=True)
    config = learner.decoder.config
    many = labels(bench.documents_of(length // 64, 64, config.vocab_size))  # as many tokens: compiled alike
    learner.forward_backward(many)
    learner.step()
    bench.reset()
    one = labels(bench.documents_of(length, 1, config.vocab_size))
    bench.wait()
    began = time.perf_counter()
    loss = learner.forward_backward(one)["loss"]
    learner.step()
    bench.wait()
    seconds = time.perf_counter() - began
    found = {"seconds": round(seconds, 2), "tokens_per_second": round(length / seconds), "loss": round(loss, 4)}
    found |= {"peak_gib": round(bench.peak() / GIB, 1), "ok": bool(np.isfinite(loss))}
    found["estimated_gib"] = round(bench.estimate / GIB, 1)
    return utilised(found, config, length)


ADAMW_SMALL = OptimSettings(matrices="adamw", lr=5e-4, schedule="wsd", warmup=0.05)
MUON_SMALL = OptimSettings(matrices="muon", lr=1e-3, muon_lr=5e-3, schedule="wsd", warmup=0.05)
SMALL = {"adamw": ADAMW_SMALL, "muon": MUON_SMALL}
PIECE = 1024  # bytes of a document of the small runs
STEP, STEP_1M = 32, 1  # documents in a step, and of the smallest model
HELD_OUT = 128  # documents that no run trains on
ENOUGH = 32 << 20  # bytes of text: three times what the longest run reads


@cache
def library() -> np.ndarray:
    """The bytes of Python files, file after file: the standard library's, then installed ones until it is enough."""
    paths = sysconfig.get_paths()
    text = bytearray()
    for place in (paths["stdlib"], paths["purelib"]):
        for path in sorted(Path(place).rglob("*.py")):
            if place == paths["purelib"] or not {"site-packages", "dist-packages", "test"} & set(path.parts):
                text += path.read_bytes()
            if len(text) > ENOUGH:
                break
    return np.frombuffer(bytes(text), np.uint8)


class Trained(NamedTuple):
    losses: list[float]  # of each step, on bytes that the model has not seen before
    held_out: float


def trained(bench: Bench, optim: OptimSettings, seed: int, steps: int, **compute: Any) -> Trained:
    """What becomes of a small model."""
    steps = 4 if bench.tiny else steps
    learner = bench.learner("small", optim, micro=PIECE * STEP, steps=steps, **compute)
    with torch.no_grad():
        generator = torch.Generator(bench.device).manual_seed(seed + 1)
        for p in learner.decoder.parameters():
            if p.ndim > 1:
                p.normal_(0.0, 0.02, generator=generator)
    text = library()
    count = STEP_1M if bench.small else 2 if bench.tiny else STEP
    pieces = text[: len(text) // PIECE * PIECE].reshape(-1, PIECE)
    order = np.random.default_rng(0).permutation(len(pieces))  # the same text is held out of all runs
    unseen = labels([pieces[i] for i in order[:HELD_OUT]]).items
    order = np.random.default_rng(seed).permutation(order[HELD_OUT:])
    losses = []
    for number in range(steps):
        drawn = labels([pieces[i] for i in order[number * count : (number + 1) * count]])
        losses.append(learner.forward_backward(drawn)["loss"])
        learner.step()
    held_out = -np.concatenate([scores_T[1:] for scores_T in learner.score(unseen)]).mean()
    return Trained(losses, round(float(held_out), 5))


def final(losses: Sequence[float]) -> float:
    return round(float(np.mean(losses[-max(1, len(losses) // 15) :])), 4)


def muon_line(bench: Bench, steps: int = 250) -> dict[str, Any]:
    def end(optim: OptimSettings) -> float:
        return final(trained(bench, optim, 100, steps).losses)

    tried = {lr: end(replace(ADAMW_SMALL, lr=lr)) for lr in (1.25e-4, 2.5e-4, 5e-4, 1e-3)}
    best = min(tried, key=tried.__getitem__)
    say(f"AdamW by rate: {tried}")
    tried_muon = {lr: end(replace(MUON_SMALL, lr=best, muon_lr=lr)) for lr in (2e-3, 5e-3, 1e-2)}
    best_muon = min(tried_muon, key=tried_muon.__getitem__)
    say(f"Muon by rate: {tried_muon}")
    rows = []
    for seed in range(3):
        adamw = trained(bench, replace(ADAMW_SMALL, lr=best), seed, steps).losses
        muon = trained(bench, replace(MUON_SMALL, lr=best, muon_lr=best_muon), seed, steps).losses
        window = max(1, len(muon) // 20)
        smooth = np.convolve(muon, np.ones(window) / window, "valid")
        reached = np.flatnonzero(smooth <= final(adamw))
        needed = int(reached[0]) + window if len(reached) else None
        rows.append(
            {"seed": seed, "adamw": final(adamw), "muon": final(muon), "muon_steps": needed, "steps": len(adamw)}
        )
        say(json.dumps(rows[-1]))
    needs = [row["muon_steps"] or row["steps"] for row in rows]
    share = round(float(np.mean(needs)) / rows[0]["steps"], 3)
    found = {"rows": rows, "adamw_by_rate": tried, "muon_by_rate": tried_muon, "share_of_steps": share}
    return found | {"ok": all(row["muon_steps"] for row in rows)}


LINES: dict[str, Callable[[Bench], dict[str, Any]]] = {
    "dense": dense_line,
    "moe": moe_line,
    "fp8": fp8_line,
    "loss": loss_line,
    "rl": rl_line,
    "long": long_line,
    "muon": muon_line,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("line", choices=sorted(LINES))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=5, help="measured steps, after two that warm up")
    parser.add_argument("--documents", type=int, default=4, help="documents of 16,384 tokens in a step")
    parser.add_argument("--micro", type=int, default=1, help="of them in one forward and backward")
    parser.add_argument("--small", action="store_true", help="1M parameters for the lines about losses")
    parser.add_argument("--matrices", choices=("adamw", "muon"), default="muon", help="optimiser of the line `loss`")
    parser.add_argument("--format", choices=("fp8", "mxfp8"), default="fp8", help="numbers of the line `loss`")
    parser.add_argument("--tiny", action="store_true", help="small shapes, to try the script itself")
    parser.add_argument("--profile", action="store_true", help="kernels of one step by time, on standard error")
    parser.add_argument("--json", action="store_true", help="one line of JSON only")
    options = parser.parse_args()
    torch.manual_seed(0)
    found = {"line": options.line, "torch": torch.__version__} | LINES[options.line](Bench(options))
    print(json.dumps(found) if options.json else json.dumps(found, indent=2), flush=True)
    sys.exit(0 if found["ok"] else 1)


if __name__ == "__main__":
    main()
