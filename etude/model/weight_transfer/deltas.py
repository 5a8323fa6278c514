"""Weights as their difference from an earlier version, without loss: one file of bytes for many tensors.

A step of RL at a small learning rate changes few of the stored values: at 1e-6 in bf16 about one in five hundred. So a
tensor is stored as the places that changed, each as its distance from the last one, and the exclusive or of the old and
new values there, byte by byte in planes that compress well. Where most values changed, the planes are of all of them.
Nothing is ever read from a delta that its header does not allow for: deltas come from a bucket.

    ETUDEDL1 | length of the header | header (JSON) | one compressed piece for each tensor that changed
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from etude.core.errors import EtudeError

Lanes = npt.NDArray[Any]

_MAGIC: Final = b"ETUDEDL1"
_LENGTH: Final = struct.Struct("<Q")
_LANES: Final = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_DENSE: Final = 0.5  # share of changed values above which their places are not worth storing
_LONGEST_GAP: Final = 5  # bytes: places of a tensor are below 2**35
_LEVEL: Final = 3  # of zstd; 19 saved 2% more bytes and took 40 times as long


def lanes(tensor: Tensor) -> Lanes:
    """A tensor's stored bytes as unsigned integers of its values' size."""
    whole = tensor.detach().to("cpu").contiguous().reshape(-1)
    return whole.view(torch.uint8).numpy().view(_LANES[tensor.element_size()])


def digest(tensors: Mapping[str, Tensor]) -> str:
    """One checksum of all tensors, by name: the same for equal weights wherever they are."""
    whole = hashlib.sha256()
    for name in sorted(tensors):
        whole.update(f"{name} {_dtype(tensors[name])} {tuple(tensors[name].shape)}\n".encode())
        whole.update(lanes(tensors[name]).data)
    return whole.hexdigest()


def encode(old: Mapping[str, Tensor], new: Mapping[str, Tensor], facts: Mapping[str, Any]) -> bytes:
    """The delta that makes `new` out of `old`; `facts` stand in its header beside what each tensor needs."""
    entries: dict[str, dict[str, Any]] = {}
    pieces: list[bytes] = []
    for name, tensor in new.items():
        before = old.get(name)
        if before is None or _shape(before) != _shape(tensor):
            raise EtudeError(f"{name!r} has another shape or type than in the version before; publish a full base")
        changed = lanes(before) ^ lanes(tensor)
        places = np.flatnonzero(changed)
        if not len(places):
            continue
        dense = len(places) > _DENSE * len(changed)
        gaps = b"" if dense else _write_gaps(places)
        values = changed if dense else changed[places]
        planes = values.view(np.uint8).reshape(len(values), -1).T.tobytes()
        piece = zstd_library().ZstdCompressor(level=_LEVEL).compress(gaps + planes)
        entries[name] = {
            "shape": list(tensor.shape),
            "dtype": _dtype(tensor),
            "count": len(values),
            "gaps": len(gaps),
            "bytes": len(piece),
        }
        pieces.append(piece)
    header = json.dumps({**facts, "tensors": entries}).encode()
    return b"".join((_MAGIC, _LENGTH.pack(len(header)), header, *pieces))


def count_changed(old: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> int:
    """How many stored values differ; those of a tensor that was not there, or of another shape, all do."""
    found = 0
    for name, tensor in new.items():
        before = old.get(name)
        if before is None or _shape(before) != _shape(tensor):
            found += tensor.numel()
        else:
            found += int(np.count_nonzero(lanes(before) != lanes(tensor)))
    return found


def header_of(delta: bytes) -> dict[str, Any]:
    """What a delta says of itself."""
    start = len(_MAGIC) + _LENGTH.size
    if len(delta) < start or not delta.startswith(_MAGIC):
        raise EtudeError("this is no delta of weights, or one of another version of etude")
    (length,) = _LENGTH.unpack_from(delta, len(_MAGIC))
    try:
        header = json.loads(delta[start : start + length])
        return {**header, "tensors": dict(header["tensors"]), "start": start + length}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise EtudeError(f"the header of a delta cannot be read: {error}") from None


def apply(delta: bytes, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """New tensors: those given, with the delta's changes; the given ones stay as they are."""
    header = header_of(delta)
    at, made = header["start"], dict(tensors)
    for name, entry in header["tensors"].items():
        if name not in tensors:
            raise EtudeError(f"a delta changes {name!r}, which these weights do not have")
        tensor = tensors[name]
        try:
            count, gap_bytes, size = (int(entry[key]) for key in ("count", "gaps", "bytes"))
            same = (list(entry["shape"]), str(entry["dtype"])) == (list(tensor.shape), _dtype(tensor))
        except (KeyError, TypeError, ValueError):
            raise EtudeError(f"a delta does not say how {name!r} changes") from None
        if not same:
            raise EtudeError(f"a delta is of another model: {name!r} has another shape or type there")
        made[name] = _changed(name, tensor, delta[at : at + size], count, gap_bytes)
        at += size
    return made


def _changed(name: str, tensor: Tensor, piece: bytes, count: int, gap_bytes: int) -> Tensor:
    width = tensor.element_size()
    if not 0 < count <= tensor.numel() or not 0 <= gap_bytes <= _LONGEST_GAP * count:
        raise EtudeError(f"a delta has more changes of {name!r} than there are values")
    expected = gap_bytes + count * width
    zstd = zstd_library()
    try:
        # The frame's own size is checked before a byte is unpacked: a small piece may claim gigabytes.
        if zstd.frame_content_size(piece) != expected:
            raise EtudeError(f"the delta of {name!r} is damaged: it has another size than it says")
        data = zstd.ZstdDecompressor().decompress(piece, max_output_size=expected)
    except zstd.ZstdError as error:
        raise EtudeError(f"the delta of {name!r} is damaged: {error}") from None
    planes = np.frombuffer(data, np.uint8, offset=gap_bytes).reshape(width, count)
    values = np.ascontiguousarray(planes.T).view(_LANES[width])[:, 0]
    found = lanes(tensor).copy()
    if gap_bytes:
        places = _read_gaps(data[:gap_bytes])
        if len(places) != count or places[-1] >= len(found):
            raise EtudeError(f"the delta of {name!r} is damaged: its places lie outside the tensor")
        found[places] ^= values
    elif count == len(found):
        found ^= values
    else:
        raise EtudeError(f"the delta of {name!r} is damaged: it does not say which values changed")
    return torch.from_numpy(found.view(np.uint8)).view(tensor.dtype).reshape(tensor.shape)


def _write_gaps(places: npt.NDArray[np.int64]) -> bytes:
    """Distances between places, seven bits a byte, the lowest first; the highest bit says that more follow."""
    gaps = np.diff(places, prepend=-1).astype(np.uint64) - np.uint64(1)
    lengths = np.ones(len(gaps), np.int64)
    for more in range(1, _LONGEST_GAP):
        lengths += gaps >= np.uint64(1 << (7 * more))
    ends = np.cumsum(lengths)
    out = np.zeros(int(ends[-1]), np.uint8)
    for number in range(int(lengths.max())):
        has = lengths > number
        byte = (gaps[has] >> np.uint64(7 * number)) & np.uint64(127)
        out[(ends - lengths)[has] + number] = byte | (np.uint64(128) * (lengths[has] > number + 1))
    return out.tobytes()


def _read_gaps(data: bytes) -> npt.NDArray[np.int64]:
    """The places of such distances; an unfinished one at the end gives a place that no tensor has."""
    bytes_ = np.frombuffer(data, np.uint8)
    last = bytes_ < 128
    number = np.concatenate(([0], np.cumsum(last)[:-1]))
    begins = np.concatenate(([0], np.flatnonzero(last) + 1))
    within = np.arange(len(bytes_)) - begins[number]
    if not last[-1] or within.max() >= _LONGEST_GAP:
        return np.array([np.iinfo(np.int64).max])
    gaps = np.zeros(int(last.sum()), np.int64)
    np.add.at(gaps, number, (bytes_ & 127).astype(np.int64) << (7 * within))
    return np.cumsum(gaps + 1) - 1


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _shape(tensor: Tensor) -> tuple[list[int], str]:
    return list(tensor.shape), _dtype(tensor)


def zstd_library() -> Any:
    """What packs deltas; refused where it is not installed."""
    try:
        import zstandard
    except ImportError:
        raise EtudeError("weights as deltas need zstandard: pip install 'etude[weights]'") from None
    return zstandard
