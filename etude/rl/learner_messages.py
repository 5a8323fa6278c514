"""What travels between orchestrator and learner as bytes, and back: exactly the same, or refused with a reason.

A frame is a JSON object and, behind it, the raw little-endian arrays that the object describes by dtype and length, in
the order in which it names them. No pickle: what is read is checked against the closed list of what a batch can hold.
Imports no torch, and does not know who speaks.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from dataclasses import fields
from types import UnionType
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt

from etude.core.errors import EtudeError
from etude.learn.streams import Batch, Correction, Floats, Item, Label, MainHead, Sampled, Stream, Twin

READY = "etude learner ready at"  # what the process prints, followed by its address, once it listens
HEADER_BYTES, BODY_BYTES = 64 << 20, 4 << 30  # more is refused before it is read

_PREFIX = struct.Struct("<4sIQ")
_MAGIC = b"ETL1"
_DTYPES = {
    np.dtype(name).newbyteorder("<").str for name in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8")
}
_TARGETS = {"label": Label, "sampled": Sampled, "twin": Twin, "main_head": MainHead}
_NAMES = {cls: name for name, cls in _TARGETS.items()}
PREFIX_BYTES = _PREFIX.size

Array = npt.NDArray[Any]
Plain = TypeVar("Plain", Label, Sampled, Twin, MainHead, Correction)


class Frame(NamedTuple):
    header: dict[str, Any]
    body: bytes = b""


# Frames


def write_frame(frame: Frame) -> bytes:
    header = json.dumps(frame.header).encode()
    _check_sizes(len(header), len(frame.body))
    return _PREFIX.pack(_MAGIC, len(header), len(frame.body)) + header + frame.body


def read_prefix(data: bytes) -> tuple[int, int]:
    """How many bytes of header and of body follow these first `PREFIX_BYTES`."""
    magic, header, body = _PREFIX.unpack(data)
    if magic != _MAGIC:
        raise EtudeError("what came from the other side is no frame; are both sides of one version?")
    _check_sizes(header, body)
    return header, body


def read_header(data: bytes) -> dict[str, Any]:
    try:
        header = json.loads(data)
    except (ValueError, RecursionError) as broken:
        raise EtudeError(f"a frame's header is not JSON ({broken})") from None
    if not isinstance(header, dict):
        raise EtudeError("a frame's header is not a JSON object")
    return header


def _check_sizes(header: int, body: int) -> None:
    if header > HEADER_BYTES or body > BODY_BYTES:
        raise EtudeError(f"a frame of {header} + {body} bytes is too large; at most {HEADER_BYTES} + {BODY_BYTES} go")


# What frames hold


def write_batch(batch: Batch) -> Frame:
    frame = write_items(batch.items)
    return Frame(frame.header | {"correction": vars(batch.correction)}, frame.body)


def read_batch(frame: Frame) -> Batch:
    return Batch(read_items(frame), _read_plain(Correction, frame.header.get("correction"), _Arrays(b"")))


def write_items(items: Sequence[Item]) -> Frame:
    parts: list[bytes] = []
    header = {"items": [_write_item(item, parts) for item in items]}
    return Frame(header, b"".join(parts))


def read_items(frame: Frame) -> list[Item]:
    arrays = _Arrays(frame.body)
    items = [_read_item(item, arrays) for item in _list(frame.header, "items")]
    arrays.finish()
    return items


def write_scores(scores: Sequence[Floats]) -> Frame:
    parts: list[bytes] = []
    header = {"scores": [_write_array(array, parts) for array in scores]}
    return Frame(header, b"".join(parts))


def read_scores(frame: Frame) -> list[Floats]:
    arrays = _Arrays(frame.body)
    scores = [arrays.take(array) for array in _list(frame.header, "scores")]
    arrays.finish()
    return scores


def read_metrics(frame: Frame) -> dict[str, float]:
    """What a verb measured, with the `seconds` that it took."""
    metrics = frame.header.get("metrics", {})
    if not isinstance(metrics, dict) or not all(type(value) in (int, float) for value in metrics.values()):
        raise EtudeError("the learner's metrics are not numbers; are both sides of one version?")
    return {name: float(value) for name, value in metrics.items()} | {"seconds": float(frame.header["seconds"])}


# Items


def _write_item(item: Item, parts: list[bytes]) -> dict[str, Any]:
    return {
        "tokens": _write_array(item.tokens_T, parts),
        "temperature": float(item.temperature),
        "plausible": float(item.plausible),
        "experts": _write_experts(item.experts_TBK, parts),
        "streams": [
            {
                "head": stream.head,
                "weight": _write_array(stream.weight_T, parts),
                "target": _NAMES[type(stream.target)],
                **{
                    name: _write_array(value, parts) if _is_array(name) else value
                    for name, value in vars(stream.target).items()
                },
            }
            for stream in item.streams
        ],
    }


def _read_item(header: Any, arrays: _Arrays) -> Item:
    known = {"tokens", "temperature", "plausible", "experts", "streams"}
    if not isinstance(header, dict) or set(header) != known:
        raise EtudeError(f"an item must have exactly: {', '.join(sorted(known))}")
    temperature, plausible = header["temperature"], header["plausible"]
    if not _fits(float, plausible) or not 0 <= plausible <= 1:
        raise EtudeError(f"an item's experts are plausible at {plausible!r}; it must be a number between 0 and 1")
    if not _fits(float, temperature) or not 0 < temperature < math.inf:
        raise EtudeError(f"an item's temperature is {temperature!r}; it must be a number above 0")
    tokens_T, experts_TBK = arrays.take(header["tokens"]), _read_experts(header["experts"], arrays)
    try:
        streams = [_read_stream(stream, arrays) for stream in _list(header, "streams")]
        return Item(tokens_T, streams, float(temperature), experts_TBK, float(plausible))
    except IndexError:
        raise EtudeError("a twin's align_T points past the twin's end") from None


def _write_experts(experts_TBK: Array | None, parts: list[bytes]) -> list[Any] | None:
    """The flat array and the last two of its dimensions."""
    if experts_TBK is None:
        return None
    return [_write_array(experts_TBK.reshape(-1), parts), *experts_TBK.shape[1:]]


def _read_experts(described: Any, arrays: _Arrays) -> Array | None:
    match described:
        case None:
            return None
        case [flat, int(blocks), int(chosen)] if blocks > 0 and chosen > 0:
            found = arrays.take(flat)
            if found.dtype == np.int16 and len(found) % (blocks * chosen) == 0:
                return found.reshape(-1, blocks, chosen)
    raise EtudeError(f"an item's experts are described as {described!r}; it takes an array of whole rows of them")


def _read_stream(header: Any, arrays: _Arrays) -> Stream:
    if not isinstance(header, dict):
        raise EtudeError("a stream must be a JSON object")
    rest = dict(header)
    head, kind = rest.pop("head", None), rest.pop("target", None)
    number = head.removeprefix("mtp.") if isinstance(head, str) else ""
    if head != "main" and (number == head or not (number.isascii() and number.isdecimal() and int(number) > 0)):
        raise EtudeError(f'a stream\'s head is {head!r}; it must be "main" or "mtp." and a number from 1')
    if not isinstance(kind, str) or kind not in _TARGETS:
        raise EtudeError(f"a stream's target is {kind!r}; there are: {', '.join(_TARGETS)}")
    weight_T = arrays.take(rest.pop("weight", None))
    return Stream(str(head), weight_T, _read_plain(_TARGETS[kind], rest, arrays))


def _read_plain(cls: type[Plain], values: Any, arrays: _Arrays) -> Plain:
    """A dataclass of arrays and plain values, each checked against its declared type."""
    names = [field.name for field in fields(cls)]
    if not isinstance(values, dict) or set(values) != set(names):
        raise EtudeError(f"a {cls.__name__.lower()} must have exactly: {', '.join(names)}")
    hints = get_type_hints(cls)
    read: dict[str, Any] = {}
    for name, value in values.items():
        if _is_array(name):
            read[name] = arrays.take(value)
        elif _fits(hints[name], value):
            read[name] = value
        else:
            raise EtudeError(f"{name} of a {cls.__name__.lower()} cannot be {value!r}")
    return cls(**read)


def _fits(hint: Any, value: Any) -> bool:
    if get_origin(hint) is Literal:
        return isinstance(value, str) and value in get_args(hint)
    if get_origin(hint) in (Union, UnionType):
        return any(_fits(option, value) for option in get_args(hint))
    if hint is float:
        return type(value) in (int, float) and not math.isnan(value)
    return type(value) is hint


def _is_array(name: str) -> bool:
    return name.endswith(("_T", "_U"))


def _list(header: dict[str, Any], key: str) -> list[Any]:
    value = header.get(key)
    if not isinstance(value, list):
        raise EtudeError(f"{key!r} must be a list")
    return value


# Arrays


def _write_array(array: Array, parts: list[bytes]) -> tuple[str, int]:
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    if little.ndim != 1 or little.dtype.str not in _DTYPES:
        raise EtudeError(f"a batch holds rows of whole numbers or floats, not {array.dtype} of shape {array.shape}")
    parts.append(little.tobytes())
    return little.dtype.str, len(little)


class _Arrays:
    """The arrays of a body, taken one after the other; all of it must be taken."""

    def __init__(self, body: bytes) -> None:
        self._body, self._at = body, 0

    def take(self, described: Any) -> Array:
        match described:
            case [str(dtype), int(length)] if dtype in _DTYPES and type(length) is int and length >= 0:
                size = length * np.dtype(dtype).itemsize
            case _:
                raise EtudeError(f"an array is described as {described!r}; it takes a dtype and a length")
        if size > len(self._body) - self._at:
            raise EtudeError(f"an array of {size} bytes is announced where {len(self._body) - self._at} are left")
        array = np.frombuffer(self._body, dtype, length, self._at)
        self._at += size
        return array.astype(array.dtype.newbyteorder("="))  # a copy: aligned, writable, in this machine's byte order

    def finish(self) -> None:
        if self._at != len(self._body):
            raise EtudeError(f"{len(self._body) - self._at} bytes of a frame belong to no array")
