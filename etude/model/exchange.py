"""Weights between one learner process and the engine processes of the same machine, through shared memory.

A board is one file (put it under /dev/shm) with a JSON header and two slots. The learner writes the next
version into the slot that nobody was told about yet; an engine copies a version out and checks its checksum.
The contract is Hugging Face names, shapes and dtype; how an engine applies a version is its own business.
Messages ("version 0.7 is there") travel elsewhere: the board holds data and says which two versions it has.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import struct
import zlib
from pathlib import Path

import torch
from torch import Tensor

from etude.errors import EtudeError
from etude.model.checkpoint import named_weights
from etude.model.decoder import Decoder
from etude.policy import Version

_MAGIC = b"ETUDEWB1"
_ALIGN = 64
# a slot's seal: lineage, step, checksum, state (0 empty, 1 being written, 2 complete)
_SEAL = struct.Struct("<qqIi")
_SLOTS = 2


class WeightBoard:
    """Shared-memory weights, double-buffered. One writer, any number of readers."""

    def __init__(self, path: Path, header: dict[str, object], memory: mmap.mmap, base: int) -> None:
        self.path = path
        self._memory = memory
        self._base = base
        self._spec: dict[str, tuple[list[int], str, int]] = {
            str(k): (list(v[0]), str(v[1]), int(v[2]))
            for k, v in header["tensors"].items()  # type: ignore[attr-defined]
        }
        self._slot_bytes = int(header["slot_bytes"])  # type: ignore[call-overload]

    @classmethod
    def create(cls, path: Path, decoder: Decoder) -> WeightBoard:
        """A new board for this decoder's shapes; replaces what a dead run may have left at `path`."""
        tensors, offset = {}, 0
        for name, tensor in named_weights(decoder).items():
            tensors[name] = (list(tensor.shape), str(tensor.dtype).removeprefix("torch."), offset)
            offset += -(-tensor.numel() * tensor.element_size() // _ALIGN) * _ALIGN
        header = json.dumps({"tensors": tensors, "slot_bytes": offset}).encode()
        base = _aligned(len(_MAGIC) + 8 + len(header) + _SLOTS * _SEAL.size)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            # allocating now turns "no space" into an error here rather than a SIGBUS in the middle of a publish
            os.posix_fallocate(descriptor, 0, base + _SLOTS * offset)
            os.pwrite(descriptor, _MAGIC + struct.pack("<Q", len(header)) + header, 0)
        except OSError as full:
            path.unlink(missing_ok=True)
            raise EtudeError(
                f"no room for {(base + _SLOTS * offset) >> 20} MiB of shared weights at {path} ({full.strerror}); "
                "free some space there or point the run at another folder"
            ) from None
        finally:
            os.close(descriptor)
        return cls.attach(path)

    @classmethod
    def attach(cls, path: Path) -> WeightBoard:
        try:
            with path.open("r+b") as file:
                memory = mmap.mmap(file.fileno(), 0)
        except (FileNotFoundError, ValueError):
            raise EtudeError(f"there is no weight board at {path}; has the learner started?") from None
        if memory[: len(_MAGIC)] != _MAGIC:
            raise EtudeError(f"{path} is not a weight board")
        (size,) = struct.unpack_from("<Q", memory, len(_MAGIC))
        start = len(_MAGIC) + 8
        header = json.loads(memory[start : start + size])
        return cls(path, header, memory, _aligned(start + size + _SLOTS * _SEAL.size))

    def publish(self, decoder: Decoder, version: Version) -> None:
        """Writes the weights as `version` into the slot that holds the older one."""
        weights = named_weights(decoder)
        self._check_shapes(weights)
        slot = min(range(_SLOTS), key=self._age)
        self._seal(slot, version, 0, state=1)
        start = self._base + slot * self._slot_bytes
        for name, tensor in weights.items():
            self._tensor(self._memory, name, start).copy_(tensor.detach())
        checksum = zlib.crc32(memoryview(self._memory)[start : start + self._slot_bytes])
        self._seal(slot, version, checksum, state=2)

    def versions(self) -> tuple[Version, ...]:
        """The complete versions on the board, oldest first."""
        seals = (self._read_seal(slot) for slot in range(_SLOTS))
        return tuple(sorted(version for version, _, state in seals if state == 2))

    def load_into(self, decoder: Decoder, version: Version) -> None:
        """Copies `version` into the decoder, which stays untouched unless the whole version checks out."""
        self._check_shapes(named_weights(decoder))
        for slot in range(_SLOTS):
            held, checksum, state = self._read_seal(slot)
            if held != version or state != 2:
                continue
            # a private copy is checked and then used, so a learner that writes meanwhile cannot tear it
            start = self._base + slot * self._slot_bytes
            copy = bytearray(memoryview(self._memory)[start : start + self._slot_bytes])
            if zlib.crc32(copy) != checksum:
                raise EtudeError(f"version {version} on {self.path} is damaged or was overwritten while it was read")
            with torch.no_grad():
                for name, tensor in named_weights(decoder).items():
                    tensor.copy_(self._tensor(copy, name, 0))
            return
        there = ", ".join(map(str, self.versions())) or "none"
        raise EtudeError(f"version {version} is not on the weight board {self.path} (there: {there})")

    def close(self, remove: bool = False) -> None:
        """Lets go of the memory; the creator passes `remove` so that nothing is left behind."""
        if remove:
            self.path.unlink(missing_ok=True)

    def _check_shapes(self, weights: dict[str, Tensor]) -> None:
        for name, tensor in weights.items():
            held = self._spec.get(name)
            here = (list(tensor.shape), str(tensor.dtype).removeprefix("torch."))
            if held is None or (held[0], held[1]) != here:
                raise EtudeError(f"{self.path} was made for another model: {name!r} is {held and held[:2]}, not {here}")
        if extra := set(self._spec) - set(weights):
            raise EtudeError(f"{self.path} was made for another model: it also holds {min(extra)!r}")

    def _tensor(self, memory: mmap.mmap | bytearray, name: str, start: int) -> Tensor:
        shape, dtype, offset = self._spec[name]
        flat = torch.frombuffer(memory, dtype=getattr(torch, dtype), count=math.prod(shape), offset=start + offset)
        return flat.view(shape)

    def _seal(self, slot: int, version: Version, checksum: int, state: int) -> None:
        _SEAL.pack_into(self._memory, self._seal_at(slot), version.lineage, version.step, checksum, state)

    def _read_seal(self, slot: int) -> tuple[Version, int, int]:
        lineage, step, checksum, state = _SEAL.unpack_from(self._memory, self._seal_at(slot))
        return Version(lineage, step), checksum, state

    def _seal_at(self, slot: int) -> int:
        return self._base - (_SLOTS - slot) * _SEAL.size  # the seals end where the first slot begins

    def _age(self, slot: int) -> tuple[bool, Version]:
        version, _, state = self._read_seal(slot)
        return state == 2, version


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN
