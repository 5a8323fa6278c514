"""What ranks tell each other beside tensors of the model: bytes to all, bytes to rank 0, sums of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor


class HostGroup:
    """Over a group on the host, whatever device the model is on."""

    def __init__(self, seconds: float) -> None:
        # nccl moves device memory only
        host = dist.get_backend() == "gloo"
        wait = timedelta(seconds=seconds)  # a new group would have torch's own deadline
        self.group = dist.group.WORLD if host else dist.new_group(backend="gloo", timeout=wait)
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()

    def broadcast(self, data: bytes | None) -> bytes:
        """What rank 0 has, on every rank."""
        size = torch.tensor([len(data) if data is not None else 0])
        dist.broadcast(size, 0, group=self.group)
        held = _bytes(data) if data is not None else torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(held, 0, group=self.group)
        return data if data is not None else held.numpy().tobytes()

    def gather(self, data: bytes) -> list[bytes]:
        """What each rank has, in their order, on rank 0; nothing elsewhere."""
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.ranks)]
        dist.all_gather(sizes, torch.tensor([len(data)]), group=self.group)
        most = max(int(size) for size in sizes)
        padded = torch.zeros(most, dtype=torch.uint8)
        padded[: len(data)] = _bytes(data)
        found = [torch.empty_like(padded) for _ in range(self.ranks)] if self.rank == 0 else None
        dist.gather(padded, found, 0, group=self.group)
        return [part[: int(size)].numpy().tobytes() for part, size in zip(found or [], sizes, strict=False)]

    def scatter(self, parts: Sequence[bytes] | None) -> bytes:
        """Of what rank 0 has for each rank, in their order, this rank's own."""
        sizes = torch.tensor([len(part) for part in parts] if parts is not None else [0] * self.ranks)
        dist.broadcast(sizes, 0, group=self.group)
        if parts is None:
            held = torch.empty(int(sizes[self.rank]), dtype=torch.uint8)
            dist.recv(held, 0, group=self.group)
            return held.numpy().tobytes()
        for rank in range(1, self.ranks):
            dist.send(_bytes(parts[rank]), rank, group=self.group)
        return parts[0]

    def total(self, numbers: Sequence[float]) -> list[float]:
        """Sums over all ranks, in double precision."""
        sums = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(sums, group=self.group)
        return [float(x) for x in sums.tolist()]


def _bytes(data: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(bytearray(data), np.uint8))
