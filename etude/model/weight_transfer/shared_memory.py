"""Weights between one learner process and the engine processes of the same machine, through shared memory.

A board is one file (put it under /dev/shm) with a JSON header and two slots. The learner writes the next
version over the one written longer ago, so that the last one stays readable meanwhile; an engine copies a
version out and checks its checksum. The contract is Hugging Face names, shapes and dtype; how an engine
applies a version is its own business. Messages ("version 0.7 is there") travel elsewhere: the board holds
data and says which two versions it has.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from etude.core.errors import EtudeError
from etude.core.policy import Version
from etude.model.checkpoint.directory import named_weights
from etude.model.decoder import Decoder
from etude.model.lora_linear import merged

_MAGIC = b"ETUDEWB2"
_ALIGN = 64
_SLOTS = 2
_SEAL = struct.Struct("<qqqIi")
EMPTY, WRITING, COMPLETE = range(3)


class Seal(NamedTuple):
    """What is said about a slot, in the order it is stored."""

    lineage: int
    step: int
    turn: int  # counts the writes to the board: a version may be lower than the one before it, its turn never is
    checksum: int
    state: int

    @property
    def version(self) -> Version:
        return Version(self.lineage, self.step)


class WeightBoard:
    """Shared-memory weights, double-buffered. One writer, any number of readers."""

    trouble = ""  # nothing happens behind a publish that is over

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
        weights = named_weights(decoder)
        shapes = {name: (list(x.shape), str(x.dtype).removeprefix("torch.")) for name, x in weights.items()}
        tensors, size = cls._layout(shapes)
        return cls._write(path, {"tensors": tensors, "slot_bytes": size}, _SLOTS * size)

    @staticmethod
    def _layout(shapes: dict[str, tuple[list[int], str]]) -> tuple[dict[str, tuple[list[int], str, int]], int]:
        """Where in a slot each tensor lies, and how large a slot is."""
        tensors, offset = {}, 0
        for name, (shape, dtype) in shapes.items():
            tensors[name] = (shape, dtype, offset)
            offset += _aligned(math.prod(shape) * int(getattr(torch, dtype).itemsize))
        return tensors, offset

    @classmethod
    def _write(cls, path: Path, facts: dict[str, object], slots: int) -> WeightBoard:
        """The file: facts, seals and so many bytes of slots."""
        header = json.dumps(facts).encode()
        base = _aligned(len(_MAGIC) + 8 + len(header) + _SLOTS * _SEAL.size)
        path.parent.mkdir(parents=True, exist_ok=True)
        # Removed and not written over: an engine that still has the old board mapped keeps what it reads.
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            # allocating now turns "no space" into an error here rather than a SIGBUS in the middle of a publish
            os.posix_fallocate(descriptor, 0, base + slots)
            os.pwrite(descriptor, _MAGIC + struct.pack("<Q", len(header)) + header, 0)
        except OSError as full:
            path.unlink(missing_ok=True)
            raise EtudeError(
                f"no room for {(base + slots) >> 20} MiB of shared weights at {path} ({full.strerror}); "
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
        kind = cls
        if "device" in header:
            from etude.model.weight_transfer.device_memory import DeviceBoard  # which is made of this

            kind = DeviceBoard
        return kind(path, header, memory, _aligned(start + size + _SLOTS * _SEAL.size))

    def publish(self, decoder: Decoder, version: Version) -> None:
        """Writes the weights as `version` over those that were written longer ago, whatever their versions are.

        Engines read what was written last, also when that is a step back to an older version.
        """
        weights = named_weights(decoder)
        self._check_shapes(weights)
        self.publish_tensors(merged(decoder, weights), version)

    def publish_tensors(self, tensors: Iterable[tuple[str, Tensor]], version: Version) -> None:
        """The same, of all tensors by name as they come; they need not exist at the same time."""
        slot, turn = self._next()
        # Before the first byte changes: from now on nobody takes this slot for the version that it held.
        self._write_seal(slot, Seal(*version, turn, 0, WRITING))
        start = self._base + slot * self._slot_bytes
        for name, tensor in tensors:
            self._tensor(self._memory, name, start).copy_(tensor)
        # Against torn writes and damage, not against an attacker: the file is this user's alone.
        checksum = zlib.crc32(memoryview(self._memory)[start : start + self._slot_bytes])
        self._write_seal(slot, Seal(*version, turn, checksum, COMPLETE))

    def versions(self) -> tuple[Version, ...]:
        """The complete versions on the board, the one written last at the end."""
        seals = sorted(self._seals().values(), key=lambda seal: seal.turn)
        return tuple(seal.version for seal in seals if seal.state == COMPLETE)

    def load_into(self, decoder: Decoder, version: Version) -> None:
        """Copies `version` into the decoder, which stays untouched unless the whole version checks out."""
        # An engine may serve fewer bits than the learner's masters have: copied, each weight is rounded once.
        self._check_shapes(named_weights(decoder), dtypes=False)
        slot, seal = self._find(version)
        # a private copy is checked and then used, so a learner that writes meanwhile cannot tear it
        start = self._base + slot * self._slot_bytes
        copy = bytearray(memoryview(self._memory)[start : start + self._slot_bytes])
        if zlib.crc32(copy) != seal.checksum:
            raise EtudeError(f"version {version} on {self.path} is damaged or was overwritten while it was read")
        with torch.no_grad():
            for name, tensor in named_weights(decoder).items():
                tensor.copy_(self._tensor(copy, name, 0))

    def close(self, remove: bool = False) -> None:
        """Lets go of the memory; the creator passes `remove` so that nothing is left behind."""
        if remove:
            self.path.unlink(missing_ok=True)

    def _next(self) -> tuple[int, int]:
        """The slot that was written longer ago, and the number of the next write."""
        seals = self._seals()
        # An unfinished slot first: a learner that died left it, and the complete one has to stay readable.
        slot = min(seals, key=lambda slot: (seals[slot].state == COMPLETE, seals[slot].turn))
        return slot, 1 + max(seal.turn for seal in seals.values())

    def _find(self, version: Version) -> tuple[int, Seal]:
        """The slot that holds a version, the one written last if both do."""
        for slot, seal in sorted(self._seals().items(), key=lambda pair: -pair[1].turn):
            if seal.version == version and seal.state == COMPLETE:
                return slot, seal
        there = ", ".join(map(str, self.versions())) or "none"
        raise EtudeError(f"version {version} is not on the weight board {self.path} (there: {there})")

    def _check_shapes(self, weights: dict[str, Tensor], dtypes: bool = True) -> None:
        for name, tensor in weights.items():
            held = self._spec.get(name)
            here = (list(tensor.shape), str(tensor.dtype).removeprefix("torch."))
            if held is None or held[0] != here[0] or (dtypes and held[1] != here[1]):
                raise EtudeError(f"{self.path} was made for another model: {name!r} is {held and held[:2]}, not {here}")
        if extra := set(self._spec) - set(weights):
            raise EtudeError(f"{self.path} was made for another model: it also holds {min(extra)!r}")

    def _tensor(self, memory: mmap.mmap | bytearray, name: str, start: int) -> Tensor:
        shape, dtype, offset = self._spec[name]
        flat = torch.frombuffer(memory, dtype=getattr(torch, dtype), count=math.prod(shape), offset=start + offset)
        return flat.view(shape)

    def _write_seal(self, slot: int, seal: Seal) -> None:
        _SEAL.pack_into(self._memory, self._seal_at(slot), *seal)

    def _seals(self) -> dict[int, Seal]:
        return {slot: Seal(*_SEAL.unpack_from(self._memory, self._seal_at(slot))) for slot in range(_SLOTS)}

    def _seal_at(self, slot: int) -> int:
        return self._base - (_SLOTS - slot) * _SEAL.size  # the seals end where the first slot begins


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


def create_board(path: Path, decoder: Decoder) -> WeightBoard:
    """Where engines look for this decoder's versions: in device memory if it lies there, else in shared memory."""
    if decoder.lm_head.weight.is_cuda:
        from etude.model.weight_transfer.device_memory import DeviceBoard

        return DeviceBoard.create(path, decoder)
    return WeightBoard.create(path, decoder)
