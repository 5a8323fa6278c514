"""The tensors of requests that are drafted for: what the host says of them, what a step leaves for the next, and what a
step itself works on. Knows their layout, no requests and no kernels.

Shapes: R rows of a step, S rows that there can be, K drafts of each, J = K + 1 tokens of each in a step, V vocabulary,
M blocks in the longest table, T = R * J.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from etude.engine.cuda.batch import RING


class DraftInputs(NamedTuple):
    """What the host says of each row."""

    temperatures: Any  # float64
    seeds: Any  # int64
    sources: Any  # the row of the last step in which the request sat, or -1: then its ids and its end are said here
    ends: Any  # where its last token stands
    prompts: Any  # tokens of its prompt
    stops: Any  # places from here on are never computed: its last token's; 0 of rows without a request
    ids: Any  # [R, J]: the last token, and the drafts behind it
    table: Any  # [R, M]


class DraftInputStaging:
    """The host's part, in a ring: a step's arrays are written again only when that step has been read."""

    def __init__(self, rows: int, drafts: int, blocks: int, device: torch.device) -> None:
        self.rows, self._widths = rows, (drafts + 1, blocks)
        size = rows * (2 * 8 + 4 * 4 + sum(self._widths) * 4)
        self._device = torch.zeros(size, dtype=torch.uint8, device=device)
        pinned = device.type == "cuda"
        self._hosts = [torch.zeros(size, dtype=torch.uint8, pin_memory=pinned) for _ in range(RING)]
        self._arrays = [DraftInputs(*(view.numpy() for view in self._views(host))) for host in self._hosts]
        self._turn = 0
        self.device = DraftInputs(*self._views(self._device))

    @property
    def host(self) -> DraftInputs:
        return self._arrays[self._turn]

    def send(self) -> None:
        """The next steps read what `host` holds now; what is changed for later ones is a copy of it."""
        sent = self._turn
        self._device.copy_(self._hosts[sent], non_blocking=True)
        self._turn = (sent + 1) % RING
        # The next part of the ring starts as a copy, since later steps change a few entries at most.
        self._hosts[self._turn].copy_(self._hosts[sent])

    def _views(self, memory: Tensor) -> list[Tensor]:
        rows, (new, blocks) = self.rows, self._widths
        reals, rest = memory[: 16 * rows], memory[16 * rows :].view(torch.int32)
        facts, ids, table = torch.split(rest, [4 * rows, new * rows, blocks * rows])
        return [
            reals[: 8 * rows].view(torch.float64),
            reals[8 * rows :].view(torch.int64),
            *facts.view(4, rows),
            ids.view(rows, new),
            table.view(rows, blocks),
        ]


class DraftOutputs:
    """What a step leaves for the next one, and on its way to the host."""

    def __init__(self, rows: int, drafts: int, vocabulary: int, device: torch.device) -> None:
        new = drafts + 1
        self.told_XS = torch.zeros(2 + 2 * new + drafts, rows, dtype=torch.int32, device=device)
        self.beliefs_SKV = torch.zeros(rows, drafts, vocabulary, device=device)  # the logits that drafts came from
        self._parts = [2, new, new, drafts]
        self._pinned = device.type == "cuda"
        self._hosts = [torch.zeros_like(self.told_XS, device="cpu", pin_memory=self._pinned) for _ in range(RING)]
        self._turn = 0
        kept_ends, self.tokens_JS, logprobs_JS, self.drafts_KS = torch.split(self.told_XS, self._parts)
        self.kept_S, self.ends_S = kept_ends
        self.logprobs_JS = logprobs_JS.view(torch.float32)

    def fetch(self) -> tuple[list[NDArray[Any]], torch.cuda.Event | None]:
        """Drafts kept and new ends, tokens, log-probabilities, drafts; there when the event has happened."""
        host = self._hosts[self._turn]
        self._turn = (self._turn + 1) % RING
        host.copy_(self.told_XS, non_blocking=True)
        happened = None
        if self._pinned:
            happened = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            happened.record()
        told, tokens, logprobs, drafts = (part.numpy() for part in torch.split(host, self._parts))
        return [told, tokens, logprobs.view(np.float32), drafts], happened


class DraftScratch:
    """What a step of so many rows works on."""

    def __init__(self, rows: int, drafts: int, device: torch.device) -> None:
        new = drafts + 1
        self.ids_RJ, self.positions_RJ, self.slots_RJ, self.lengths_RJ = torch.zeros(
            4, rows, new, dtype=torch.int32, device=device
        )
        self.ends_R, self.rows_R = torch.zeros(
            2, rows, dtype=torch.int32, device=device
        )  # rows_R: the state to draft from
        self.ahead_RX = torch.zeros(
            rows, new + drafts, dtype=torch.int32, device=device
        )  # entry i: i + 1 behind the first
        self.numbers_KR = torch.zeros(drafts, rows, dtype=torch.float64, device=device)  # to draft with
        self.nobody_R = torch.zeros(rows, device=device)  # log-probabilities of drafts, which nobody asks for
        self.nowhere_T = torch.full((rows * new,), -1, dtype=torch.int32, device=device)
