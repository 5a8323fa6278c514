"""Which tiles make the decoding kernels fast: microseconds and the share of the memory's speed, by setting.

    python benchmarks/h200_tune.py [--only attend]

The winners stand in etude/engine/cuda/fused.py; run this again on another GPU.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

import torch
import triton

from etude.engine.cuda.attention_kernels import grouped_kernel, join_kernel, latent_kernel
from etude.engine.cuda.few_token_kernels import thin_kernel

MEMORY = 4.8e12


def timed(work: Callable[[], None]) -> float:
    """Microseconds of one call, in a recorded graph of several, so that launching costs nothing."""
    for _ in range(3):
        work()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(20):
            work()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    graph.replay()
    begin.record()
    for _ in range(5):
        graph.replay()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 10


def show(name: str, size: float, work: Callable[[], None], **setting: Any) -> None:
    try:
        micros = timed(work)
        print(
            json.dumps(
                {"op": name, **setting, "us": round(micros, 1), "of_memory": round(size / MEMORY * 1e6 / micros, 3)}
            )
        )
    except Exception:
        print(json.dumps({"op": name, **setting, "failed": traceback.format_exc().splitlines()[-1][:200]}))
    sys.stdout.flush()


def attend(rows: int, length: int, heads: int, kv_heads: int, dims: int, splits: int) -> None:
    blocks = rows * -(-length // 16)
    cache = torch.randn(2, blocks, kv_heads, 16, dims, device="cuda").bfloat16()
    q = torch.randn(rows, heads, dims, device="cuda").bfloat16()
    table = torch.randperm(blocks, device="cuda").int().view(rows, -1)
    lengths = torch.full((rows,), length, device="cuda", dtype=torch.int32)
    out = torch.empty(rows, heads, dims, device="cuda", dtype=torch.bfloat16)
    parts = torch.empty(rows, heads, splits, dims, device="cuda") if splits > 1 else out
    tops = torch.empty(rows, heads, splits, device="cuda") if splits > 1 else out
    for tile, warps, stages in itertools.product((32, 64, 128), (2, 4), (1, 2, 3, 4)):
        if (tile, warps) == (128, 2):
            continue

        def work(tile: int = tile, warps: int = warps, stages: int = stages) -> None:
            grouped_kernel[(kv_heads, rows, splits)](
                q, cache[0], cache[1], table, lengths, parts, tops, 0.1, heads * dims, table.shape[1],
                heads, kv_heads, 16, dims, dims, 16, tile, splits, 1, num_warps=warps, num_stages=stages,
            )  # fmt: skip
            if splits > 1:
                join_kernel[(rows * heads,)](parts, tops, out, dims, dims, splits)

        size = 2 * 2 * rows * length * kv_heads * dims
        show(f"attend {rows}x{length} splits {splits}", size, work, tile=tile, warps=warps, stages=stages)


def attend_latent(rows: int, length: int, heads: int, splits: int) -> None:
    blocks = rows * -(-length // 16)
    cache = torch.randn(blocks, 1, 16, 576, device="cuda").bfloat16()
    q, turned = (
        torch.randn(heads, rows, 512, device="cuda").bfloat16(),
        torch.randn(rows, heads, 64, device="cuda").bfloat16(),
    )
    table = torch.randperm(blocks, device="cuda").int().view(rows, -1)
    lengths = torch.full((rows,), length, device="cuda", dtype=torch.int32)
    parts, tops = torch.empty(heads, rows, splits, 512, device="cuda"), torch.empty(heads, rows, splits, device="cuda")
    for tile, warps, stages in itertools.product((16, 32, 64), (4, 8), (1, 2)):

        def work(tile: int = tile, warps: int = warps, stages: int = stages) -> None:
            latent_kernel[(1, rows, splits)](
                q, turned, cache, table, lengths, parts, tops, 0.1, rows, heads * 64, 64, table.shape[1],
                heads, 16, 512, 512, 64, 64, 16, tile, splits, 1, num_warps=warps, num_stages=stages,
            )  # fmt: skip

        show(
            f"attend_latent {rows}x{length} splits {splits}",
            2 * 576 * rows * length,
            work,
            tile=tile,
            warps=warps,
            stages=stages,
        )


def thin(outputs: int, width: int, gate: bool, norm: bool) -> None:
    copies = 8  # more than the cache holds
    weights = [torch.randn((2 if gate else 1) * outputs, width, device="cuda").bfloat16() for _ in range(copies)]
    x = torch.randn(1, width, device="cuda").bfloat16()
    out = torch.empty(1, outputs, device="cuda", dtype=torch.bfloat16)
    turn = itertools.count()
    for tile, stride, warps in itertools.product((2, 4, 8), (1024,), (2, 4)):

        def work(tile: int = tile, stride: int = stride, warps: int = warps) -> None:
            thin_kernel[(-(-outputs // tile),)](
                x, x, x, weights[next(turn) % copies], x, out, x, 1e-6, outputs,
                width, triton.next_power_of_2(width), False, norm, False, gate, tile, stride, num_warps=warps,
            )  # fmt: skip

        show(
            f"thin {outputs}x{width} gate={gate} norm={norm}",
            weights[0].nbytes,
            work,
            tile=tile,
            stride=stride,
            warps=warps,
        )

    def library() -> None:
        torch.nn.functional.linear(x, weights[next(turn) % copies])

    show(f"library {outputs}x{width}", weights[0].nbytes, library)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="")
    only = parser.parse_args().only
    with torch.inference_mode():
        if only in "attend":
            attend(256, 700, 16, 8, 128, 1)
            attend(1, 700, 16, 8, 128, 16)
        if only in "latent":
            attend_latent(256, 700, 16, 2)
            attend_latent(1, 700, 16, 16)
        if only in "thin":
            thin(4096, 1024, False, True)
            thin(1024, 2048, False, False)
            thin(3072, 1024, True, True)
            thin(1024, 3072, False, False)
            thin(151_936, 1024, False, False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
