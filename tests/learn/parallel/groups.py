"""Starts a few processes that form a gloo group, runs a function in each, and gives back what it returned.

The processes are forked from a server that has imported torch once, so a group costs little more than one import.
"""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

DEADLINE = 300.0  # seconds; far more than any test needs, so that a hang ends

Found = dict[str, Any]  # numbers by name: tensors would cross by files that the sender may remove too early


def run_ranks(function: Callable[[int, int], Found], ranks: int, directory: Path) -> list[Found]:
    """`function(rank, ranks)` in each process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch._dynamo", "torch.distributed.fsdp", "etude.learn.learner"])
    store, processes, pipes = directory / f"store-{ranks}", [], []
    for rank in range(ranks):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_rank, args=(function, rank, ranks, str(store), theirs), daemon=True)
        process.start()
        theirs.close()
        processes.append(process)
        pipes.append(ours)
    found: list[Found] = []
    try:
        for rank, pipe in enumerate(pipes):
            assert pipe.poll(DEADLINE), f"rank {rank} did not end"
            error, result = pipe.recv()
            assert error is None, f"rank {rank}: {error}"
            found.append(result)
    finally:
        for process in processes:
            process.join(1.0 if len(found) < ranks else DEADLINE)
            process.kill()
    return found


def _rank(function: Callable[[int, int], Found], rank: int, ranks: int, store: str, pipe: Any) -> None:
    torch.set_num_threads(1)
    try:
        limit = timedelta(seconds=DEADLINE / 2)
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=limit)
        pipe.send((None, function(rank, ranks)))
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        pipe.send((traceback.format_exc(), {}))


def worst(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest difference, relative to the largest of the wanted numbers."""
    scale = wanted.detach().abs().max().clamp(min=1e-12) if wanted.numel() else torch.ones(())
    return float((found.detach() - wanted.detach()).abs().max() / scale) if wanted.numel() else 0.0
