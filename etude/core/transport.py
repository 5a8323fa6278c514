"""Messages between our processes: dataclasses as JSON and arrays, exactly as they were, or refused with a reason.

A message is declared once, as a dataclass of plain values, arrays and other dataclasses; its type hints are what is
checked when it is read. `pack` and `unpack` put it into a frame, `from_json` reads it from JSON alone. A frame is a
prefix (a magic word and two sizes), a JSON header, and behind it the raw little-endian arrays that the header's table
names by field, dtype and shape. No pickle, no torch, and nothing known of who speaks or what a message means.

Whoever can reach a socket may write anything to it, so what is read is not trusted: sizes are compared before memory is
taken, dtypes come from a closed list, and every value must have the declared type.
"""

from __future__ import annotations

import collections.abc
import json
import math
import struct
import sys
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt

from etude.core.errors import EtudeError
from etude.core.policy import Version

# More is refused before it is read. A batch of rollouts of 200,000 tokens with experts has tens of GB; what a prefix
# announces takes no memory before the bytes are there.
HEADER_BYTES, BODY_BYTES = 64 << 20, 1 << 40
MOST_DIMENSIONS = 4

_PREFIX = struct.Struct("<4sIQ")
_MAGIC = b"ETF1"
_DTYPES = {
    np.dtype(name).newbyteorder("<").str for name in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8")
}
PREFIX_BYTES = _PREFIX.size

Array = npt.NDArray[Any]
Message = TypeVar("Message")


class Frame(NamedTuple):
    header: dict[str, Any]
    arrays: Mapping[str, Array] = {}


# Frames as bytes


def write_frame(frame: Frame) -> bytes:
    table, parts = [], []
    for name, array in frame.arrays.items():
        little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        if little.dtype.str not in _DTYPES or little.ndim > MOST_DIMENSIONS:
            raise EtudeError(f"{name!r} holds {array.dtype} of shape {array.shape}; only numbers can be sent")
        table.append((name, little.dtype.str, little.shape))
        parts.append(little.reshape(-1).view(np.uint8).data)
    header, body = json.dumps(frame.header | {"arrays": table}).encode(), sum(map(len, parts))
    _check_sizes(len(header), body)
    return b"".join([_PREFIX.pack(_MAGIC, len(header), body), header, *parts])  # joined once: it may be most of memory


def read_prefix(data: bytes) -> tuple[int, int]:
    """How many bytes of header and of body follow these first `PREFIX_BYTES`."""
    magic, header, body = _PREFIX.unpack(data)
    if magic != _MAGIC:
        raise EtudeError("what came from the other side is no frame; are both sides of one version?")
    _check_sizes(header, body)
    return header, body


def read_frame(head: bytes, body: bytes) -> Frame:
    try:
        header = json.loads(head)
    # Deep nesting ends in a RecursionError: a refusal like any other.
    except (ValueError, RecursionError) as broken:
        raise EtudeError(f"a frame's header is not JSON ({broken})") from None
    if not isinstance(header, dict) or not isinstance(header.get("arrays"), list):
        raise EtudeError("a frame's header is not a JSON object with a table of arrays")
    arrays: dict[str, Array] = {}
    at = 0
    for described in header.pop("arrays"):
        name, dtype, shape = _described(described)
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if name in arrays:
            raise EtudeError(f"a frame has two arrays {name!r}")
        if size > len(body) - at:
            raise EtudeError(f"an array of {size} bytes is announced where {len(body) - at} are left")
        array = np.frombuffer(body, dtype, math.prod(shape), at).reshape(shape)
        arrays[name] = array.astype(array.dtype.newbyteorder("="))  # a copy: aligned, writable, in this byte order
        at += size
    if at != len(body):
        raise EtudeError(f"{len(body) - at} bytes of a frame belong to no array")
    return Frame(header, arrays)


def _described(described: Any) -> tuple[str, str, list[int]]:
    match described:
        case [str(name), str(dtype), list(shape)] if dtype in _DTYPES and len(shape) <= MOST_DIMENSIONS:
            # `type(...) is int`, because True and False are ints as well.
            if all(type(count) is int and count >= 0 for count in shape):
                return name, dtype, shape
    raise EtudeError(f"an array is described as {described!r}; it takes a name, a dtype and a shape")


def _check_sizes(header: int, body: int) -> None:
    if header > HEADER_BYTES or body > BODY_BYTES:
        raise EtudeError(f"a frame of {header} + {body} bytes is too large; at most {HEADER_BYTES} + {BODY_BYTES} go")


# Messages in frames


def pack(message: Any, **header: Any) -> Frame:
    """A dataclass as a frame; `header` are further keys beside it."""
    arrays: dict[str, Array] = {}
    return Frame(header | {"message": _write(message, "", arrays)}, arrays)


def unpack(kind: type[Message], frame: Frame) -> Message:
    """The message of a frame; refused if anything is missing, superfluous or of another type."""
    arrays = dict(frame.arrays)
    # Frames may say infinity: a correction without an upper bound has it.
    message: Message = _read(kind, frame.header.get("message"), "", _Source(arrays, finite=False))
    if arrays:
        raise EtudeError(f"the array {next(iter(arrays))!r} belongs to no field")
    return message


def from_json(kind: type[Message], value: Any) -> Message:
    """A dataclass without arrays, from a JSON object; fields that have a default may be left out."""
    message: Message = _read(kind, value, "", _Source({}, finite=True))
    return message


def to_json(message: Any) -> Any:
    """A dataclass without arrays, for `from_json`."""
    return _write(message, "", {})


class _Source(NamedTuple):
    arrays: dict[str, Array]  # those that no field has taken yet
    finite: bool  # whether infinite numbers are refused, as in JSON proper


def _write(value: Any, path: str, arrays: dict[str, Array]) -> Any:
    if isinstance(value, np.ndarray):
        arrays[path] = value
        return None
    if isinstance(value, Version | Path):
        return str(value)
    if is_dataclass(value):
        written = {name: _write(part, _join(path, name), arrays) for name, part in vars(value).items()}
        # The class goes along: where a field may hold several dataclasses, it says which one this is.
        return {"class": type(value).__name__} | written
    if isinstance(value, list | tuple):
        return [_write(part, _join(path, place), arrays) for place, part in enumerate(value)]
    return value


def _read(hint: Any, value: Any, path: str, source: _Source) -> Any:
    hint, origin, options, dataclass = _parts(hint)
    if origin is np.ndarray:
        return _take_array(options[1], path, source)
    if origin in (Union, UnionType):
        return _read_union(options, value, path, source)
    if dataclass:
        return _read_dataclass(hint, value, path, source)
    if hint is Path:
        return Path(_read_plain(str, value, path, source))
    if hint is Version:
        try:
            return Version.parse(value)
        except (AttributeError, ValueError):
            raise _wrong(path, f'look like "0.7" (lineage.step), not {value!r}', verb="must") from None
    if options == (int, ...):
        if isinstance(value, list) and {*map(type, value)} <= {int}:  # of which there may be very many
            return tuple(value)
        raise _wrong(path, "a list of token ids")
    if origin in (list, tuple, collections.abc.Sequence):
        several = origin is not tuple or options[1:] == (...,)
        if not isinstance(value, list) or not (several or len(value) == len(options)):
            raise _wrong(path, "a list" if several else f"a list of {len(options)}")
        hints = options[:1] * len(value) if several else options
        parts = (
            _read(one, part, _join(path, i), source) for i, (one, part) in enumerate(zip(hints, value, strict=True))
        )
        return tuple(parts) if origin is tuple else list(parts)
    if origin is dict:
        if not isinstance(value, dict):
            raise _wrong(path, "an object")
        return {key: _read(options[1], part, _join(path, key), source) for key, part in value.items()}
    return _read_plain(hint, value, path, source)


@cache
def _parts(hint: Any) -> tuple[Any, Any, tuple[Any, ...], bool]:
    """What the hint stands for, its origin, its arguments, and whether it is a dataclass.

    Asked for every field of every message: to take hints apart each time was a third of reading one.
    """
    hint = _without_alias(hint)
    return hint, get_origin(hint), get_args(hint), is_dataclass(hint)


def _without_alias(hint: Any) -> Any:
    """What an alias stands for: on Python 3.12 NumPy declares `NDArray` with the `type` statement."""
    value = getattr(get_origin(hint) or hint, "__value__", None)
    if value is None:
        return hint
    return value[get_args(hint)] if get_args(hint) else value


def _read_plain(hint: Any, value: Any, path: str, source: _Source) -> Any:
    _, origin, options, _ = _parts(hint)
    if origin is Literal:
        if isinstance(value, str) and value in options:
            return value
        raise _wrong(path, f"one of {', '.join(options)}, not {value!r}")
    if hint is float:
        # JSON may hold a whole number that is larger than any float; NaN compares with nothing.
        if type(value) in (int, float) and -sys.float_info.max <= value <= sys.float_info.max:
            return float(value)
        if type(value) is float and math.isinf(value) and not source.finite:
            return value
        raise _wrong(path, f"a number, not {value!r}")
    if hint is not Any and type(value) is not hint:
        wanted = {int: "a whole number", str: "a text", bool: "true or false", dict: "an object"}
        raise _wrong(path, f"{wanted.get(hint, 'null')}, not {value!r}")
    return value


def _read_dataclass(kind: Any, value: Any, path: str, source: _Source) -> Any:
    if not isinstance(value, dict):
        raise EtudeError(f"{repr(path) if path else 'the body'} must be a JSON object")
    declared = _fields(kind)
    if unknown := sorted(value.keys() - declared.keys() - {"class"}):
        raise EtudeError(f"unknown key {_join(path, unknown[0])!r}; there are: {', '.join(declared) or 'none'}")
    read = {}
    for name, (field, hint) in declared.items():
        if name in value:
            read[name] = _read(hint, value[name], _join(path, name), source)
        elif field.default is MISSING and field.default_factory is MISSING:
            raise EtudeError(f"{_join(path, name)!r} is missing")
    return kind(**read)


@cache
def _fields(kind: type) -> dict[str, tuple[Field[Any], Any]]:
    hints = get_type_hints(kind)
    return {field.name: (field, hints[field.name]) for field in fields(kind)}


def _read_union(options: tuple[Any, ...], value: Any, path: str, source: _Source) -> Any:
    if NoneType in options and value is None and path not in source.arrays:
        return None
    options = tuple(option for option in options if option is not NoneType)
    kinds: dict[str, Any] = {str(option.__name__): option for option in options if isinstance(option, type)}
    kinds = {name: option for name, option in kinds.items() if is_dataclass(option)}
    if kinds:
        name = value.get("class") if isinstance(value, dict) else None
        if not isinstance(name, str) or name not in kinds:
            raise EtudeError(f"the class of {path!r} is {name!r}; there are: {', '.join(kinds)}")
        return _read(kinds[name], value, path, source)
    refused: EtudeError | None = None
    for option in options:
        try:
            return _read(option, value, path, source)
        except EtudeError as wrong:
            refused = refused or wrong
    assert refused is not None
    raise refused


def _take_array(dtype: Any, path: str, source: _Source) -> Array:
    """An array by its field's name, whose suffix says how many dimensions it has (`_T`, `_TBK`; one without any)."""
    array = source.arrays.pop(path, None)
    (wanted,) = get_args(dtype)
    number = np.floating if issubclass(wanted, np.floating) else wanted
    name = path.rpartition(".")[2]
    dimensions = len(name.rpartition("_")[2]) if "_" in name else 1
    if array is None or not np.issubdtype(array.dtype, number) or array.ndim != dimensions:
        raise _wrong(path, f"an array of {wanted.__name__} with {dimensions} dimensions")
    return array


def _join(path: str, part: object) -> str:
    return f"{path}.{part}" if path else str(part)


def _wrong(path: str, wanted: str, verb: str = "must be") -> EtudeError:
    return EtudeError(f"{path!r} {verb} {wanted}")
