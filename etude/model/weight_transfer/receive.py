"""How an engine comes to a version that it was told of: from a board in shared memory, or from a delta chain.

A `WeightSource` makes a version ready beside the engine, which goes on sampling; what it returns then writes the whole
version into the decoder between two steps. The chain's waits for a version that the learner is still uploading,
rebuilds the weights in this process and checks them; one that joins late or was started again begins at the last full
base.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from etude.core.errors import EtudeError
from etude.core.policy import Version
from etude.model.checkpoint.directory import named_weights
from etude.model.decoder import Decoder
from etude.model.weight_transfer.delta_chain import ChainReader, NotThere, OtherWeights
from etude.model.weight_transfer.fewer_bits import restored
from etude.model.weight_transfer.object_store import Conflict, open_store
from etude.model.weight_transfer.shared_memory import WeightBoard

SHORTEST_LOOK: Final = 0.02  # seconds between two looks at the head, doubled up to the longest
LONGEST_LOOK: Final = 0.5

Load = Callable[[Decoder], None]


class WeightSource(Protocol):
    """Where an engine's versions come from. One `ready` at a time."""

    def ready(self, version: Version) -> tuple[Load, dict[str, Any]]:
        """What writes the version into a decoder, whole or not at all; and facts of it for the one who asked."""


class BoardSource:
    """Shared memory of this machine. Read when it is written into the decoder: the learner's copy is already whole."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def ready(self, version: Version) -> tuple[Load, dict[str, Any]]:
        # Attached anew each time: a learner that was restarted has made a new board in the same place.
        return lambda decoder: WeightBoard.attach(self.path).load_into(decoder, version), {}


class ChainSource:
    """A delta chain. Holds the weights that it read last in this process's memory, which the next delta changes."""

    def __init__(self, address: str, seconds: float = 60.0) -> None:
        self.address = address
        self.seconds = seconds  # that a version may take to be there, whole
        self._reader: ChainReader | None = None

    def ready(self, version: Version) -> tuple[Load, dict[str, Any]]:
        weights, facts = self.read(version)
        return lambda decoder: load_tensors(weights, decoder, self.address), facts

    def read(self, version: Version) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """A version's tensors by name, and how many bytes and what share of the values its link of the chain has."""
        until, wait = time.monotonic() + self.seconds, SHORTEST_LOOK
        while True:
            try:
                if self._reader is None:
                    self._reader = ChainReader(open_store(self.address))
                weights = self._reader.update(version)
                link = self._reader.link
                assert link is not None
                return restored(weights), {"publish_bytes": link.bytes, "publish_density": link.density}
            except NotThere as missing:
                # Of the same lineage and later: what was asked for will not come any more.
                newest = missing.newest
                passed = newest is not None and newest.lineage == version.lineage and newest.step > version.step
                if passed or time.monotonic() > until:
                    raise
            except Conflict:
                raise
            except EtudeError as failed:
                # A store that is away for a moment, or an object is damaged and the learner was asked for a full base.
                if isinstance(failed, OtherWeights):
                    self._reader = None  # from the chain's start again
                if time.monotonic() > until:
                    raise
            time.sleep(wait)
            wait = min(2 * wait, LONGEST_LOOK)


def open_source(board: Path | None, chain: str, seconds: float) -> WeightSource | None:
    """The source of an engine's weights; None for one that keeps those it started with."""
    if chain:
        return ChainSource(chain, seconds)
    return BoardSource(board) if board is not None else None


def load_tensors(weights: Mapping[str, Tensor], decoder: Decoder, where: str) -> None:
    """Copies tensors by name into the decoder, which stays untouched unless they are exactly its own."""
    wanted = named_weights(decoder)
    for name, tensor in wanted.items():
        found = weights.get(name)
        if found is None or found.shape != tensor.shape:
            shape = None if found is None else list(found.shape)
            raise EtudeError(f"{where} holds another model: {name!r} is {shape}, not {list(tensor.shape)}")
    if extra := set(weights) - set(wanted):
        raise EtudeError(f"{where} holds another model: it also has {min(extra)!r}")
    with torch.no_grad():
        for name, tensor in wanted.items():
            tensor.copy_(weights[name])
