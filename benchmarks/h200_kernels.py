"""The learner's CUDA paths against its CPU ones, and the speed of the kernels that they choose between.

    python benchmarks/h200_kernels.py [quantised] [check] [attention] [linear] [head]

`quantised` compares 8-bit numbers and scales with the reference's, bit for bit, and times the kernels at the shapes of
a step. `check` compares whole gradients of small models on the GPU (compiled, recomputed, of sequences of any lengths,
dense, with experts, latent, FP8) with the same learner in float32 on the CPU. The others time what a step is made of.
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

from etude.core.settings import ComputeSettings, OptimSettings
from etude.learn.learner import Learner
from etude.learn.streams import Batch, Correction, Item, Label, Sampled, Stream, Twin
from etude.model.attention import PackedAttend
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder
from etude.model.head import token_logprobs
from etude.model.low_precision import mlp_fp8
from etude.model.low_precision import products as precision
from etude.model.training import ready

TILES = ((128, 64, 4), (64, 64, 4), (128, 128, 8), (32, 128, 4))  # rows and columns of a tile, and warps


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


# -- quantised ---------------------------------------------------------------------------------------------------------


def quantised() -> None:
    from etude.model.low_precision import quantise_kernels as kernels

    def same(shapes: list[tuple[int, int]], dtype: torch.dtype) -> None:
        parts = [torch.randn(s, device="cuda") * torch.randn(s[0], 1, device="cuda").exp() for s in shapes]
        parts = [part.to(dtype) for part in parts]
        parts[0][1] = 0
        whole = torch.cat(parts).bfloat16()
        rows, columns = precision.quantised(whole), precision.quantised(whole.t())
        found = precision.by_rows_and_columns(parts, torch.bfloat16)
        spare = found[2][:, len(whole) :].float().abs().sum().item()
        pairs = [(found[0], rows[0]), (found[1], rows[1][:, 0]), (found[2][:, : len(whole)], columns[0])]
        pairs += [(found[3], columns[1][:, 0])]
        alone = precision.by_rows(parts, torch.bfloat16)
        pairs += [(alone[0], rows[0]), (alone[1], rows[1][:, 0])]
        differ = [int((ours.float() != theirs.float()).sum()) for ours, theirs in pairs]
        say(
            what="quantised",
            shapes=shapes,
            dtype=str(dtype),
            differ=differ,
            spare=spare,
            ok=not any(differ) and not spare,
        )

    bfloat16, float32 = torch.bfloat16, torch.float32
    guarded("quantised", lambda: same([(8192, 2560)], bfloat16))
    guarded("quantised", lambda: same([(1003, 9728)], bfloat16))
    guarded("quantised", lambda: same([(4096, 2560), (1024, 2560), (1024, 2560)], float32))
    guarded("quantised", lambda: same([(16, 48)], float32))

    def same_gated(tokens: int, width: int) -> None:
        inner, g = (torch.randn(tokens, n, device="cuda").bfloat16() for n in (2 * width, width))
        exact = inner.double().requires_grad_()
        whole = F.silu(exact[:, :width]) * exact[:, width:]
        whole.backward(g.double())
        assert exact.grad is not None
        pairs = (mlp_fp8.gated(inner), whole.detach()), (mlp_fp8.gated_slopes(inner, g), exact.grad)
        for found, wanted in pairs:
            rounded = precision.by_rows_and_columns((wanted.to(bfloat16),), bfloat16)
            values = [numbers.float() * scale[:, None] for numbers, scale in (found[:2], found[2:])]
            best = [numbers.float() * scale[:, None] for numbers, scale in (rounded[:2], rounded[2:])]
            errors = [float((a - b).norm() / b.norm()) for a, b in zip(values, best, strict=True)]
            say(what="gated", shape=[tokens, width], from_rounded_once=errors, ok=max(errors) < 0.02)

    def gate(tokens: int, width: int) -> None:
        inner, g = (torch.randn(tokens, n, device="cuda").bfloat16() for n in (2 * width, width))
        forward, backward = timed(lambda: mlp_fp8.gated(inner)), timed(lambda: mlp_fp8.gated_slopes(inner, g))
        rates = {"forward_tb_s": 10 * g.numel() / forward / 1e9, "backward_tb_s": 16 * g.numel() / backward / 1e9}
        tiles = {"maxima": kernels.MAXIMA, "writing": kernels.WRITING, "slopes": kernels.SLOPES}
        say(what="gated", shape=[tokens, width], **tiles, forward_ms=forward, backward_ms=backward, **rates)

    guarded("gated", lambda: same_gated(2048, 9728))
    guarded("gated", lambda: same_gated(1003, 512))

    def work(shapes: list[tuple[int, int]], dtype: torch.dtype) -> None:
        parts = [torch.randn(s, device="cuda").to(dtype) for s in shapes]
        size = sum(part.numel() for part in parts)
        both = timed(lambda: precision.by_rows_and_columns(parts, bfloat16))
        rows = timed(lambda: precision.by_rows(parts, bfloat16))
        moved = size * (2 * dtype.itemsize + 2), size * (dtype.itemsize + 1)
        rates = {"both_tb_s": moved[0] / both / 1e9, "rows_tb_s": moved[1] / rows / 1e9}
        tiles = {"maxima": kernels.MAXIMA, "writing": kernels.WRITING}
        say(what="quantised", shapes=shapes, **tiles, both_ms=both, rows_ms=rows, **rates)

    def at_shapes() -> None:
        for shapes in ([(8192, 19_456)], [(8192, 9728)], [(8192, 2560)]):
            guarded("quantised", lambda: work(shapes, bfloat16))  # noqa: B023
        guarded("quantised", lambda: work([(9728, 2560), (9728, 2560)], float32))
        guarded("gated", lambda: gate(8192, 9728))

    maxima, writing, slopes = kernels.MAXIMA, kernels.WRITING, kernels.SLOPES
    at_shapes()
    for tile in TILES:
        kernels.MAXIMA, kernels.WRITING, kernels.SLOPES = tile, writing, tile
        at_shapes()
        kernels.MAXIMA, kernels.WRITING, kernels.SLOPES = maxima, tile, slopes
        at_shapes()
    kernels.MAXIMA, kernels.WRITING, kernels.SLOPES = maxima, writing, slopes


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
        ("dense", mixed, {"precision": "fp8", "recompute": True}),
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


def linear() -> None:
    """Forward and backward of the projections of the 0.6B and 4B shapes, compiled as in a block."""
    for tokens, inputs, outputs in (
        (16_384, 1024, 6144),
        (16_384, 3072, 1024),
        (8_192, 2560, 19_456),
        (8_192, 9728, 2560),
    ):
        for name in ("bfloat16", "fp8"):

            def work(tokens: int = tokens, inputs: int = inputs, outputs: int = outputs, name: str = name) -> None:
                x = torch.randn(tokens, inputs, device="cuda", dtype=torch.bfloat16, requires_grad=True)
                weight = torch.randn(outputs, inputs, device="cuda", requires_grad=True)
                g = torch.randn(tokens, outputs, device="cuda", dtype=torch.bfloat16)
                product = torch.compile(precision.choose(name, "cuda").linear)

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


PARTS = {"quantised": quantised, "check": check, "attention": attention, "linear": linear, "head": head}

if __name__ == "__main__":
    if "--help" in sys.argv:
        raise SystemExit(print(__doc__))
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()
