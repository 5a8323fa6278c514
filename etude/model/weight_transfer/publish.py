"""How a learner gives its weights away: to a board in shared memory, or to a delta chain in the background.

A `Publisher` takes a decoder's weights, or tensors by name as they come. The chain's copies them in the served dtype
and returns; a thread compares, compresses, uploads and commits while the learner goes on. A store that does not answer
is tried again; what still fails is said at the next publish. While nothing is to be done the thread looks whether a
reader found damage, and publishes the newest version again as a full base.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Iterable
from typing import Final, Protocol

import torch
from torch import Tensor

from etude.core.cluster_settings import WeightsDtype
from etude.core.errors import EtudeError
from etude.core.policy import Version
from etude.model.checkpoint.directory import BIAS, named_weights
from etude.model.decoder import Decoder
from etude.model.lora_linear import merged
from etude.model.weight_transfer.delta_chain import ChainWriter
from etude.model.weight_transfer.deltas import zstd_library
from etude.model.weight_transfer.fewer_bits import in_fewer_bits, is_matrix
from etude.model.weight_transfer.object_store import Conflict, open_store

LOOK: Final = 1.0  # seconds between two looks for reported damage, and the first wait after a failed try
LONGEST_WAIT: Final = 10.0  # seconds between two tries


class Publisher(Protocol):
    """Takes a learner's versions."""

    @property
    def trouble(self) -> str:
        """What keeps a version from being published, if anything does."""
        ...

    def publish(self, decoder: Decoder, version: Version) -> None: ...

    def publish_tensors(self, tensors: Iterable[tuple[str, Tensor]], version: Version) -> None: ...

    def close(self, remove: bool = False) -> None: ...


class ChainPublisher:
    """Publishes to a chain. `writer` names this learner: whoever published before is shut out."""

    def __init__(
        self,
        address: str,
        writer: str,
        *,
        base_every: int = 20,
        served: WeightsDtype = "",
        seconds: float = 120,
    ) -> None:
        self.address, self.served = address, served
        self.seconds = seconds  # that a store may not answer before a version is given up
        zstd_library()  # now, and not at the second version, which is the first delta
        self._chain = ChainWriter(open_store(address), base_every)
        self._chain.claim(writer)
        self._changed = threading.Condition()
        self._work: tuple[dict[str, Tensor], Version] | None = None  # taken over when it is published
        self._failed: EtudeError | None = None
        self.trouble = ""  # of the last try of a version that is not there yet, or was given up
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="publish", daemon=True)
        self._thread.start()

    def publish(self, decoder: Decoder, version: Version) -> None:
        self.publish_tensors(merged(decoder, named_weights(decoder)), version)

    def publish_tensors(self, tensors: Iterable[tuple[str, Tensor]], version: Version) -> None:
        """Takes a copy, which is published while the caller goes on. Waits for the version before."""
        # All of them are read even where this raises: ranks give their parts one after another.
        own: dict[str, Tensor] = {}
        for name, tensor in tensors:
            own |= self._served(name, tensor)
        with self._changed:
            if not self._changed.wait_for(lambda: self._work is None, timeout=2 * self.seconds):
                raise EtudeError(f"the version before {version} was not published within {2 * self.seconds:g} s")
            if self._failed is not None:
                failed, self._failed = self._failed, None
                raise failed
            self._work = own, version
            self._changed.notify_all()

    def wait(self) -> None:
        """Until everything is published; raises what went wrong."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._work is None, timeout=2 * self.seconds):
                raise EtudeError(f"the weights were not published within {2 * self.seconds:g} s")
            if self._failed is not None:
                failed, self._failed = self._failed, None
                raise failed

    def close(self, remove: bool = False) -> None:
        """Ends the thread once what it has is published. The chain stays: engines elsewhere may read it."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(self.seconds)

    def _served(self, name: str, tensor: Tensor) -> dict[str, Tensor]:
        if self.served in ("fp8", "int4") and is_matrix(name, tensor):
            parts = in_fewer_bits(name, tensor.detach(), self.served)
            return {part: held.to("cpu", copy=True).contiguous() for part, held in parts.items()}
        dtype = torch.bfloat16 if tensor.is_cuda else tensor.dtype
        if self.served:
            dtype = torch.float32 if self.served == "float32" else torch.bfloat16
        if name.endswith(BIAS):  # it is added to scores that are close together, and is float32 everywhere
            dtype = torch.float32
        return {name: tensor.detach().to("cpu", dtype, copy=True).contiguous()}

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._work is not None or self._closed, timeout=LOOK)
                work = self._work
                if work is None and self._closed:
                    return
            try:
                if work is None:
                    self._chain.repair()
                else:
                    self._publish(*work)
            except Exception as failed:  # whatever it is: nobody would hear of it otherwise, and this thread goes on
                if work is not None:  # a repair that failed is tried again at the next look
                    # In the log too: an engine that waits for the version may end the run before the next publish.
                    traceback.print_exc()
                    ours = isinstance(failed, EtudeError)
                    self.trouble = f"version {work[1]} was not published: {failed if ours else repr(failed)}"
                    self._failed = failed if isinstance(failed, EtudeError) else EtudeError(self.trouble)
            if work is not None:
                with self._changed:
                    self._work = None
                    self._changed.notify_all()

    def _publish(self, weights: dict[str, Tensor], version: Version) -> None:
        until, wait = time.monotonic() + self.seconds, LOOK
        while True:
            try:
                self._chain.publish(weights, version)
                self.trouble = ""
                return
            except Conflict:
                raise
            except EtudeError as failed:
                self.trouble = f"version {version} is not published: {failed}"
                if time.monotonic() + wait > until:
                    raise
            time.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT)
