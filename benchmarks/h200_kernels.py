"""The learner's CUDA paths against its CPU ones, and the speed of the kernels that they choose between.

    python benchmarks/h200_kernels.py [check] [attention] [linear] [head]

`check` compares whole gradients of small models on the GPU (compiled, recomputed, of sequences of any lengths, dense,
with experts, latent, FP8) with the same learner in float32 on the CPU. The others time what a step is made of.
Without names, all of them. One line of JSON each.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from etude.learn.learner import Learner
from etude.learn.streams import Batch, Correction, Item, Label, Sampled, Stream, Twin
from etude.model import precision
from etude.model.attention import PackedAttend
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder
from etude.model.head import token_logprobs
from etude.model.training import ready
from etude.settings import ComputeSettings, OptimSettings


def timed(work: Callable[[], object], repeats: int = 10) -> float:
    """Milliseconds, the median of `repeats`."""
    for _ in range(3):
        work()
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for begin, end in events:
        begin.record()
        work()
        end.record()
    torch.cuda.synchronize()
    return float(np.median([begin.elapsed_time(end) for begin, end in events]))


def say(**facts: Any) -> None:
    print(json.dumps({k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in facts.items()}), flush=True)


def guarded(name: str, work: Callable[[], None]) -> None:
    try:
        work()
    except Exception as failed:
        last = traceback.format_exc().strip().splitlines()[-6:]
        say(what=name, failed=repr(failed)[:400], where=" | ".join(line.strip() for line in last)[:900])


# -- check -------------------------------------------------------------------------------------------------------------

DENSE = {"vocab_size": 320, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3}
DENSE |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
EXPERTS = DENSE | {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "model_type": "qwen3_moe"}
LATENT = EXPERTS | {"model_type": "deepseek_v3", "kv_lora_rank": 64, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32}
LATENT |= {"v_head_dim": 64, "n_shared_experts": 1, "first_k_dense_replace": 1, "scoring": "sigmoid", "qk_norm": False}
LATENT |= {"rope_interleave": True, "num_key_value_heads": 4, "head_dim": 32}
SHAPES: dict[str, dict[str, Any]] = {"dense": DENSE, "experts": EXPERTS, "latent": LATENT}


def batch_of(lengths: tuple[int, ...]) -> Batch:
    rng, items = np.random.default_rng(0), []
    for length in lengths:
        ids = rng.integers(0, 320, length)
        share = np.full(length, 1 / sum(lengths), np.float32)
        noise = rng.normal(size=(2, length)).astype(np.float32)
        hinted, places = np.concatenate((ids[:4], [1, 2], ids[4:])), np.arange(length)
        twin = Twin(tokens_U=hinted, align_T=places + 2 * (places > 3))
        sampled = Sampled(noise[0], noise[1] - 6)
        items.append(Item(ids, [Stream("main", share, target) for target in (Label(ids), sampled, twin)], 0.9))
    return Batch(items, Correction("truncate", high=2.0))


@cache
def gradient(
    shape: str, lengths: tuple[int, ...], device: str, **compute: Any
) -> tuple[torch.Tensor, dict[str, float]]:
    decoder = Decoder(ModelConfig(**SHAPES[shape]), seed=3)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(5)
        for p in decoder.parameters():
            if p.ndim > 1:
                p.normal_(0.0, 0.08, generator=generator)
    ready(decoder, ComputeSettings(**compute), device, 4096)
    learner = Learner(decoder, OptimSettings(), 10, 4096, device)
    metrics = learner.forward_backward(batch_of(lengths))
    found = torch.cat([p.grad.flatten() for p in learner.decoder.parameters() if p.grad is not None]).cpu().double()
    learner.step()
    return found, metrics


def check() -> None:
    equal, mixed, long = (256, 256), (100, 17, 256, 33), (2100, 2500)
    cases: list[tuple[str, tuple[int, ...], dict[str, Any]]] = [
        ("dense", equal, {"compile": False}),
        ("dense", mixed, {"compile": False}),
        ("dense", equal, {}),
        ("dense", mixed, {"recompute": True}),
        ("dense", long, {"recompute": True}),
        ("dense", equal, {"precision": "fp8"}),
        ("dense", mixed, {"precision": "fp8", "compile": False}),
        ("experts", mixed, {}),
        ("experts", mixed, {"recompute": True}),
        ("experts", mixed, {"precision": "fp8"}),
        ("latent", equal, {}),
        ("latent", mixed, {"recompute": True}),
    ]
    for shape, lengths, compute in cases:

        def compare(shape: str = shape, lengths: tuple[int, ...] = lengths, compute: Any = compute) -> None:
            expected, wanted = gradient(shape, lengths, "cpu")
            kind = compute.get("precision", "bfloat16")
            rounded = gradient(shape, lengths, "cpu", precision=kind)[0] if sum(lengths) < 1000 else None
            found, metrics = gradient(shape, lengths, "cuda", **compute)
            error = float((found - expected).norm() / expected.norm())
            cpu = float((rounded - expected).norm() / expected.norm()) if rounded is not None else None
            say(what="check", shape=shape, lengths=lengths, **compute, error=error, same_on_cpu=cpu)
            say(
                loss=metrics["loss"],
                wanted=wanted["loss"],
                entropy=metrics["entropy"],
                entropy_wanted=wanted["entropy"],
            )

        guarded(f"check {shape} {lengths} {compute}", compare)


# -- kernels -----------------------------------------------------------------------------------------------------------


def attention() -> None:
    """Of 16,384 tokens, 16 query and 8 key heads of 128; and at latent attention's dimensions."""
    for length, heads, kv, dim, value in (
        (16_384, 16, 8, 128, 128),
        (4_096, 32, 8, 128, 128),
        (16_384, 16, 16, 192, 128),
    ):
        shape = f"{length}x{heads}/{kv}x{dim}/{value}"
        count = 16_384 // length
        q, k, v = (
            torch.randn(16_384, h, d, device="cuda", dtype=torch.bfloat16, requires_grad=True)
            for h, d in ((heads, dim), (kv, dim), (kv, value))
        )
        g = torch.randn(16_384, heads, value, device="cuda", dtype=torch.bfloat16)
        flop = 2 * 16_384 * length * heads * (dim + value) / 2  # forward, half of the square

        def run(name: str, attend: Callable[[], torch.Tensor], q=q, k=k, v=v, g=g, flop=flop, shape=shape) -> None:  # type: ignore[no-untyped-def]
            def both() -> None:
                attend().backward(g)
                q.grad = k.grad = v.grad = None

            with torch.no_grad():
                forward = timed(attend)
            whole = timed(both)
            say(
                what=f"attention {name}",
                shape=shape,
                forward_ms=forward,
                both_ms=whole,
                forward_tflops=flop / forward / 1e9,
                model_tflops=3 * flop / whole / 1e9,
            )

        def sdpa(backend: SDPBackend, repeat: bool, q=q, k=k, v=v, count=count, heads=heads, kv=kv) -> torch.Tensor:  # type: ignore[no-untyped-def]
            parts = [x.view(count, -1, *x.shape[1:]).transpose(1, 2) for x in (q, k, v)]
            if repeat:
                parts[1:] = [x.repeat_interleave(heads // kv, 1) for x in parts[1:]]
            with sdpa_kernel(backend):
                out = F.scaled_dot_product_attention(*parts, is_causal=True, enable_gqa=heads != kv and not repeat)
            return out.transpose(1, 2).flatten(0, 1)

        for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION):
            for repeat in (False, True):
                name = f"{backend.name}{' repeated' if repeat else ''}"
                guarded(name, lambda b=backend, r=repeat, n=name: run(n, lambda: sdpa(b, r)))  # type: ignore[misc]
        if dim == value:
            from etude.model.attention import _bounded

            ends = torch.arange(0, 16_385, length, device="cuda", dtype=torch.int32)
            guarded("bounded", lambda: run("bounded flash", lambda: _bounded(q, k, v, ends, length)))  # noqa: B023
        attend = PackedAttend([length] * count, "cuda")
        guarded("chosen", lambda: run("as chosen", lambda: attend(0, q, k, v)))  # noqa: B023


class _Mixed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return precision.rowwise_product(x, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight = ctx.saved_tensors
        return precision.rowwise_product(gradients[0], weight.t()), gradients[0].t() @ x


def _mixed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = _Mixed.apply(x, weight.to(x.dtype))  # type: ignore[no-untyped-call]
    return out


def linear() -> None:
    """Forward and backward of the projections of the 0.6B and 4B shapes, compiled as in a block."""
    for tokens, inputs, outputs in (
        (16_384, 1024, 6144),
        (16_384, 3072, 1024),
        (8_192, 2560, 19_456),
        (8_192, 9728, 2560),
    ):
        for name in ("bfloat16", "fp8", "fp8 but for the weights' gradient"):

            def work(tokens: int = tokens, inputs: int = inputs, outputs: int = outputs, name: str = name) -> None:
                x = torch.randn(tokens, inputs, device="cuda", dtype=torch.bfloat16, requires_grad=True)
                weight = torch.randn(outputs, inputs, device="cuda", requires_grad=True)
                g = torch.randn(tokens, outputs, device="cuda", dtype=torch.bfloat16)
                product = torch.compile(precision.PRECISIONS[name].linear if name in precision.PRECISIONS else _mixed)

                def both() -> None:
                    product(x, weight).backward(g)
                    x.grad = weight.grad = None

                with torch.no_grad():
                    forward = timed(lambda: product(x, weight))
                whole, flop = timed(both), 2 * tokens * inputs * outputs
                facts = {"forward_tflops": flop / forward / 1e9, "both_tflops": 3 * flop / whole / 1e9}
                say(what=f"linear {name}", shape=f"{tokens}x{inputs}x{outputs}", both_ms=whole, **facts)

            guarded(f"linear {name}", work)


def head() -> None:
    """Log-probabilities of tokens and their gradient, 151,936 entries, by rows of a chunk."""
    weight = torch.randn(151_936, 1024, device="cuda", requires_grad=True)
    for rows in (883, 3533):

        def work(rows: int = rows) -> None:
            hidden = torch.randn(rows, 1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)
            at, ids = torch.arange(rows, device="cuda"), torch.randint(0, 151_936, (rows,), device="cuda")

            def both() -> None:
                token_logprobs(hidden, weight, None, at, ids)[0].sum().backward()

            whole = timed(both)
            say(what="head", rows=rows, both_ms=whole, tflops=6 * rows * 1024 * 151_936 / whole / 1e9)

        guarded("head", work)


PARTS = {"check": check, "attention": attention, "linear": linear, "head": head}

if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()
