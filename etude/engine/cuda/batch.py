"""The arguments of a step, from the host to the device: one copy for a decoding step, into memory that stays.

Host memory is a ring: a step's part is written again only when that step has been read. Knows the layout, no requests.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from etude.engine.cuda.forward import Step
from etude.engine.cuda.ops import Pages, Places

RING = 3  # one step under way, one being read, one being written
FIELDS = 5


class Fields(NamedTuple):
    """One entry for each row; the table has a line for each."""

    temperatures: Any
    uniforms: Any
    tokens: Any
    sources: Any
    positions: Any
    slots: Any
    lengths: Any
    table: Any


class Staging:
    """The arguments of a decoding step of so many rows. Rows without a request write to the slot `nobody`."""

    def __init__(self, rows: int, blocks: int, nobody: int, device: torch.device) -> None:
        self.rows, self.blocks, self.nobody = rows, blocks, nobody
        size = rows * (2 * 8 + FIELDS * 4 + blocks * 4)
        self._device = torch.zeros(size, dtype=torch.uint8, device=device)
        pinned = device.type == "cuda"
        self._hosts = [torch.zeros(size, dtype=torch.uint8, pin_memory=pinned) for _ in range(RING)]
        self._arrays = [Fields(*(view.numpy() for view in self._views(host))) for host in self._hosts]
        self._turn = 0
        self.fields = self._views(self._device)
        # A graph is recorded over these fields before any step: rows must point to `nobody` from the start.
        self.send(0)

    def host(self) -> Fields:
        """Arrays for the next step's arguments."""
        return self._arrays[self._turn]

    def send(self, rows: int) -> None:
        """The arrays that `host` gave are those of the next step, which has so many rows."""
        host = self.host()
        # Rows without a request: length 0 reads nothing, and what they write goes to a block of nobody.
        host.sources[rows:], host.lengths[rows:], host.slots[rows:] = -1, 0, self.nobody
        host.positions[rows:] = 0
        # From pinned memory, without waiting: the host goes on planning while the copy runs.
        self._device.copy_(self._hosts[self._turn], non_blocking=True)
        self._turn = (self._turn + 1) % RING

    def step(self, angles: Tensor) -> Step:
        f = self.fields
        return Step(f.tokens, f.sources, Places(f.positions, f.slots, angles), Pages(f.table, f.lengths))

    def _views(self, memory: Tensor) -> Fields:
        rows = self.rows
        reals, rest = memory[: 16 * rows].view(torch.float64).view(2, rows), memory[16 * rows :].view(torch.int32)
        fields: list[Any] = [*reals, *rest[: FIELDS * rows].view(FIELDS, rows), rest[FIELDS * rows :].view(rows, -1)]
        return Fields(*fields)


class Answers:
    """What steps sampled: on the device for the next one, and on its way to the host."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self.device_2S = torch.zeros(2, rows, dtype=torch.int32, device=device)
        self.tokens_S, self.logprobs_S = self.device_2S[0], self.device_2S[1].view(torch.float32)
        self._pinned = device.type == "cuda"
        self._hosts = [torch.zeros(2, rows, dtype=torch.int32, pin_memory=self._pinned) for _ in range(RING)]
        self._turn = 0

    def fetch(self) -> tuple[NDArray[np.int32], torch.cuda.Event | None]:
        """Tokens and log-probabilities [2, rows], there when the event has happened."""
        host = self._hosts[self._turn]
        self._turn = (self._turn + 1) % RING
        host.copy_(self.device_2S, non_blocking=True)
        happened = None
        if self._pinned:
            happened = torch.cuda.Event()  # type: ignore[no-untyped-call]
            happened.record()
        return host.numpy(), happened


def put(values: Any, dtype: Any, device: torch.device) -> Tensor:
    """A small array to the device, without waiting for what the device is doing."""
    host = torch.from_numpy(np.ascontiguousarray(values, dtype=dtype))
    if device.type == "cuda":
        return host.pin_memory().to(device, non_blocking=True)
    return host.clone()
