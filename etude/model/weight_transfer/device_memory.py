"""Weights from a learner to engines on the same GPU: the board's slots lie in device memory, its seals in the file.

A learner writes a version as the engine serves it (bfloat16; correction biases stay float32) and an engine copies it
within the device, which takes a thousandth of the way through the host. The file holds what another process needs to
open that memory, and is readable by this user alone. Nothing is checksummed, as the data never leaves the device; that
a version was not overwritten while it was read is seen from its seal.
"""

from __future__ import annotations

import base64
import mmap
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from etude.core.errors import EtudeError
from etude.core.policy import Version
from etude.model.checkpoint.directory import BIAS, named_weights
from etude.model.decoder import Decoder
from etude.model.lora_linear import merged
from etude.model.weight_transfer.shared_memory import COMPLETE, WRITING, Seal, WeightBoard

SERVED = torch.bfloat16

# memory cannot be opened a second time in the process that made it, so that is remembered here
_HERE: WeakValueDictionary[Path, Tensor] = WeakValueDictionary()


class DeviceBoard(WeightBoard):
    """The same verbs as a board in shared memory."""

    def __init__(self, path: Path, header: dict[str, Any], memory: mmap.mmap, base: int) -> None:
        super().__init__(path, header, memory, base)
        self._where = header["device"]
        self._slots: Tensor | None = None

    @classmethod
    def create(cls, path: Path, decoder: Decoder) -> DeviceBoard:
        weights = named_weights(decoder)
        path = path.absolute()
        spec, slot_bytes = cls._layout({name: (list(x.shape), _served(name, x)) for name, x in weights.items()})
        slots = torch.zeros(2 * slot_bytes, dtype=torch.uint8, device=decoder.lm_head.weight.device)
        board = cls._write(path, {"tensors": spec, "slot_bytes": slot_bytes, "device": _share(slots)}, 0)
        assert isinstance(board, DeviceBoard)
        board._slots = _HERE[path] = slots
        return board

    def publish(self, decoder: Decoder, version: Version) -> None:
        weights = named_weights(decoder)
        self._check_shapes(weights, dtypes=False)
        slot, turn = self._next()
        # Before the first byte changes: from now on nobody takes this slot for the version that it held.
        self._write_seal(slot, Seal(*version, turn, 0, WRITING))
        for name, tensor in merged(decoder, weights):
            self._part(name, slot).copy_(tensor)
        # The copies are only queued: the seal must not say complete before they have happened.
        _wait(self._opened())
        self._write_seal(slot, Seal(*version, turn, 0, COMPLETE))

    def load_into(self, decoder: Decoder, version: Version) -> None:
        weights = named_weights(decoder)
        self._check_shapes(weights)
        slot, seal = self._find(version)
        with torch.no_grad():
            # into memory of our own first: the decoder stays as it is unless the whole version was there all the time
            copy = [self._part(name, slot).clone() for name in weights]
            _wait(self._opened())
            if self._seals()[slot] != seal:
                raise EtudeError(f"version {version} on {self.path} was overwritten while it was read")
            torch._foreach_copy_(list(weights.values()), copy)

    def close(self, remove: bool = False) -> None:
        self._slots = None
        super().close(remove)

    def _part(self, name: str, slot: int) -> Tensor:
        shape, dtype, offset = self._spec[name]
        start, kind = slot * self._slot_bytes + offset, getattr(torch, dtype)
        size = torch.Size(shape).numel() * kind.itemsize
        return self._opened()[start : start + size].view(kind).view(shape)

    def _opened(self) -> Tensor:
        if self._slots is None:
            made_here = _HERE.get(self.path.absolute())
            self._slots = made_here if made_here is not None else _open(self._where, 2 * self._slot_bytes)
        return self._slots


def _served(name: str, x: Tensor) -> str:
    dtype = torch.float32 if name.endswith(BIAS) else SERVED if x.is_cuda else x.dtype
    return str(dtype).removeprefix("torch.")


def _wait(x: Tensor) -> None:
    if x.is_cuda:
        torch.cuda.current_stream(x.device).synchronize()


def _share(slots: Tensor) -> dict[str, Any]:
    """What another process needs to open this memory; nothing opens a CPU's, which only tests take for a device."""
    storage: Any = slots.untyped_storage()
    parts = storage._share_cuda_() if slots.is_cuda else ()
    return {"parts": [base64.b64encode(p).decode() if isinstance(p, bytes) else p for p in parts]}


def _open(where: dict[str, Any], size: int) -> Tensor:
    # by place: device, memory, bytes, offset, counter of users, its offset, event, whether to wait for it
    parts = [base64.b64decode(p) if isinstance(p, str) else p for p in where["parts"]]
    if not parts:
        raise EtudeError("this weight board lies in the memory of the process that made it, and cannot be opened here")
    torch.cuda.init()  # type: ignore[no-untyped-call]
    storage = torch.UntypedStorage._new_shared_cuda(*parts)
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)[:size]
