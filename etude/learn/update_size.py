"""How far an optimiser's step moved the weights: the root mean square over some entries of every tensor."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

ENTRIES = 4096  # of a tensor, evenly spread: a copy of all weights would double their memory for one figure


@dataclass
class UpdateSize:
    rms: float = 0.0


@contextmanager
def measured_update(parameters: Iterable[Tensor]) -> Iterator[UpdateSize]:
    """The size of what happens to the parameters inside the block; each tensor counts by its number of entries."""
    watched = [p for p in parameters if p.numel()]  # a rank may hold nothing of one
    before = [_some(p).clone() for p in watched]
    found = UpdateSize()
    yield found
    squares = [(_some(p) - b).float().square().mean() * p.numel() for p, b in zip(watched, before, strict=True)]
    total = sum(p.numel() for p in watched)
    found.rms = math.sqrt(float(torch.stack(squares).sum()) / total) if total else 0.0


def _some(tensor: Tensor) -> Tensor:
    flat = tensor.detach().reshape(-1)
    return flat[:: max(1, -(-len(flat) // ENTRIES))]
