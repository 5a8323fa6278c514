"""The arguments of a step, from the host to the device: one copy for a recorded step, into memory that stays.

Host memory is a ring: a step's part is written again only when that step has been read. Knows the layout, no requests.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from etude.engine.cuda.forward import Step
from etude.engine.cuda.ops import Pages, Places

RING = 3  # one step under way, one being read, one being written
Layout = dict[str, tuple[type[np.number[Any]], tuple[int, ...]]]
_TORCH: dict[type[np.number[Any]], torch.dtype] = {np.float64: torch.float64, np.int32: torch.int32}


class Ring:
    """Named arrays in one piece of memory: once on the device, where graphs know them by address, and in a ring here.

    The layout names the widest numbers first, so that all of them lie where their width divides the address.
    """

    def __init__(self, layout: Layout, device: torch.device) -> None:
        self._layout = layout
        size = sum(math.prod(shape) * np.dtype(kind).itemsize for kind, shape in layout.values())
        self._memory = torch.zeros(size, dtype=torch.uint8, device=device)
        pinned = device.type == "cuda"
        self._hosts = [torch.zeros(size, dtype=torch.uint8, pin_memory=pinned) for _ in range(RING)]
        self._arrays = [[view.numpy() for view in self._views(host)] for host in self._hosts]
        self._turn = 0
        self.device = self._views(self._memory)

    @property
    def host(self) -> list[NDArray[Any]]:
        """Arrays for the next step's arguments."""
        return self._arrays[self._turn]

    def send(self) -> None:
        """The arrays that `host` gave are those of the next step."""
        # From pinned memory, without waiting: the host goes on planning while the copy runs.
        self._memory.copy_(self._hosts[self._turn], non_blocking=True)
        self._turn = (self._turn + 1) % RING

    def _views(self, memory: Tensor) -> list[Tensor]:
        views, at = [], 0
        for kind, shape in self._layout.values():
            end = at + math.prod(shape) * np.dtype(kind).itemsize
            views.append(memory[at:end].view(_TORCH[kind]).view(shape))
            at = end
        return views


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
        self.rows, self.nobody = rows, nobody
        layout: Layout = dict.fromkeys(Fields._fields[:2], (np.float64, (rows,)))
        layout |= dict.fromkeys(Fields._fields[2:-1], (np.int32, (rows,))) | {"table": (np.int32, (rows, blocks))}
        self._ring = Ring(layout, device)
        self.fields = Fields(*self._ring.device)
        # A graph is recorded over these fields before any step: rows must point to `nobody` from the start.
        self.send(0)

    def host(self) -> Fields:
        """Arrays for the next step's arguments."""
        return Fields(*self._ring.host)

    def send(self, rows: int) -> None:
        """The arrays that `host` gave are those of the next step, which has so many rows."""
        host = self.host()
        # Rows without a request: length 0 reads nothing, and what they write goes to a block of nobody.
        host.sources[rows:], host.lengths[rows:], host.slots[rows:] = -1, 0, self.nobody
        host.positions[rows:] = 0
        self._ring.send()

    def step(self, angles: Tensor) -> Step:
        f = self.fields
        return Step(f.tokens, f.sources, Places(f.positions, f.slots, angles), Pages(f.table, f.lengths))


class MixedFields(NamedTuple):
    """Of a step with prompts: entries for those who sample, for every token, and a line for each request."""

    temperatures: Any  # of those who sample
    uniforms: Any
    last: Any  # the token behind which each samples
    tokens: Any
    sources: Any
    positions: Any
    slots: Any
    lengths: Any
    lines: Any  # of the table, for each token
    table: Any


class MixedStaging:
    """The arguments of a step of so many tokens, of which each sees its own request's tokens up to itself."""

    def __init__(self, tokens: int, lines: int, blocks: int, nobody: int, device: torch.device) -> None:
        self.tokens, self.nobody = tokens, nobody
        # A line more than there are requests: that of tokens that nobody has.
        self.rows, self._empty = min(tokens, lines), lines
        layout: Layout = dict.fromkeys(MixedFields._fields[:2], (np.float64, (self.rows,)))
        layout |= {"last": (np.int32, (self.rows,))}
        layout |= dict.fromkeys(MixedFields._fields[3:-1], (np.int32, (tokens,)))
        self._ring = Ring(layout | {"table": (np.int32, (lines + 1, blocks))}, device)
        self.fields = MixedFields(*self._ring.device)
        self.send(0, 0)

    def host(self) -> MixedFields:
        return MixedFields(*self._ring.host)

    def send(self, tokens: int, rows: int) -> None:
        """As in `Staging`, with so many tokens, and so many who sample."""
        host = self.host()
        host.sources[tokens:], host.lengths[tokens:], host.slots[tokens:] = -1, 0, self.nobody
        host.positions[tokens:], host.tokens[tokens:], host.lines[tokens:] = 0, 0, self._empty
        host.last[rows:], host.temperatures[rows:], host.uniforms[rows:] = 0, 1.0, 0.0
        self._ring.send()

    def step(self, angles: Tensor) -> Step:
        """Every token is a query of its own over its request's pages: what stands behind it is past its length."""
        f = self.fields
        pages = Pages(f.table.index_select(0, f.lines), f.lengths)
        return Step(f.tokens, f.sources, Places(f.positions, f.slots, angles), pages)


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
            # Blocking, or this thread would keep a core busy while it waits: sandboxes need those.
            happened = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            happened.record()
        return host.numpy(), happened


def put(values: Any, dtype: Any, device: torch.device) -> Tensor:
    """A small array to the device, without waiting for what the device is doing."""
    host = torch.from_numpy(np.ascontiguousarray(values, dtype=dtype))
    if device.type == "cuda":
        return host.pin_memory().to(device, non_blocking=True)
    return host.clone()
