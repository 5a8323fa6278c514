"""Tensors in safetensors files, whole or in parts: several ranks write what they hold, any number of ranks reads it.

    NAME.safetensors                   everything, by one writer
    NAME-00001-of-00004.safetensors    the rows that one of four writers held; its header says which

A part is a range of rows (the first dimension) of a tensor. A reader asks for rows, whoever wrote them. Torch's own
format for this (torch.distributed.checkpoint) keeps its index as a pickle, which may run code when it is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from etude.core.errors import EtudeError

HEADER = "parts"  # key in a file's own header: {name: [shape of the whole, first row]}


class Part(NamedTuple):
    """Rows of a tensor, the first of which is row `start` of the whole."""

    rows: Tensor
    shape: tuple[int, ...]
    start: int = 0


def file_name(name: str, writer: int, writers: int) -> str:
    return f"{name}.safetensors" if writers == 1 else f"{name}-{writer + 1:05}-of-{writers:05}.safetensors"


def write_parts(directory: Path, name: str, parts: Mapping[str, Part], writer: int, writers: int) -> None:
    """This writer's file; parts without rows are left out."""
    held = {key: part for key, part in parts.items() if part.rows.numel()}
    places = {key: [list(part.shape), part.start] for key, part in held.items()}
    tensors = {key: part.rows.detach().cpu().contiguous() for key, part in held.items()}
    save_file(tensors, directory / file_name(name, writer, writers), metadata={HEADER: json.dumps(places)})


class StoredParts:
    """The files `NAME*.safetensors` of a directory, headers only; `shapes` are those of whole tensors."""

    def __init__(self, directory: Path, name: str) -> None:
        self.where = directory / f"{name}.safetensors"
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._places: dict[str, list[tuple[int, int, Any]]] = {}  # first row, row after the last, file
        self._files = ExitStack()
        whole = [self.where] if self.where.is_file() else []
        paths = whole or sorted(directory.glob(f"{name}-?????-of-?????.safetensors"))
        try:
            if not paths or (not whole and paths != _complete(directory, name, paths[0])):
                raise FileNotFoundError("files are missing")
            for path in paths:
                self._open(path)
        except (SafetensorError, OSError, ValueError, TypeError, RecursionError) as broken:
            self._files.close()
            raise self._damaged(broken) from None
        except EtudeError:
            self._files.close()
            raise

    def _open(self, path: Path) -> None:
        file = self._files.enter_context(safe_open(path, framework="pt", device="cpu"))
        header = json.loads((file.metadata() or {}).get(HEADER, "{}"))
        if not isinstance(header, dict):
            raise ValueError(f"{HEADER} in its header is no table")
        for key in file.keys():  # noqa: SIM118 (safe_open cannot be iterated)
            shape = tuple(file.get_slice(key).get_shape())
            whole, start = header.get(key, (shape, 0))
            if any(type(number) is not int for number in (*whole, start)) or len(whole) != len(shape):
                raise ValueError(f"{HEADER} in its header does not say which rows {key!r} are")
            whole, stop = tuple(whole), start + (shape[0] if shape else 1)
            rows = whole[0] if whole else 1
            if whole[1:] != shape[1:] or self.shapes.setdefault(key, whole) != whole or not 0 <= start < stop <= rows:
                raise EtudeError(
                    f"{path} says that {key!r} is rows {start} to {stop} of {list(whole)}, which cannot be"
                )
            self._places.setdefault(key, []).append((start, stop, file))

    def read(self, key: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Rows `start` to `stop` of a tensor, or all of it."""
        shape, places = self.shapes[key], sorted(self._places[key], key=lambda place: place[:2])
        try:
            if not shape:
                whole: Tensor = places[0][2].get_tensor(key)
                return whole
            stop = shape[0] if stop is None else stop
            pieces, at = [], start
            for first, last, file in places:
                if at < stop and first <= at < last:
                    piece = file.get_slice(key)[at - first : min(last, stop) - first]
                    pieces.append(piece)
                    at += len(piece)
        except SafetensorError as broken:
            raise self._damaged(broken) from None
        if at < stop:
            raise EtudeError(f"{self.where} and its parts lack row {at} of {key!r}; the checkpoint is damaged")
        return torch.cat(pieces) if pieces else torch.empty((0, *shape[1:]))

    def _damaged(self, why: Exception) -> EtudeError:
        return EtudeError(f"{self.where} cannot be read ({why}); the checkpoint is damaged or cut short")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.close()


def _complete(directory: Path, name: str, first: Path) -> list[Path]:
    """All files that belong to one of them."""
    writers = int(first.stem.rpartition("-")[2])
    return [directory / file_name(name, writer, writers) for writer in range(writers)]
