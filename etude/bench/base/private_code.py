"""Code that is never trained on, as documents whose loss is measured during training: the same pieces each time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from etude.bench.base.code_text import Code
from etude.core.errors import EtudeError

Ids = npt.NDArray[np.integer[Any]]


class Encoder(Protocol):
    """What is needed of a tokenizer."""

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]: ...


class PrivateCode:
    """Pieces of at most `length` tokens, from the first file on; after the last it begins again."""

    def __init__(self, code: Code, text: Encoder, length: int) -> None:
        self.pieces: list[Ids] = []
        for found in text.encode_batch([source for _, source in code.files]):
            ids = np.array(found, np.int64)
            self.pieces += [ids[start : start + length] for start in range(0, len(ids), length)]
        # A single token predicts nothing.
        self.pieces = [piece for piece in self.pieces if len(piece) > 1]
        if not self.pieces:
            raise EtudeError(f"{code.name} is too little code to be measured on; correct pretrain.private")
        self.next = 0

    def take(self, tokens: int) -> list[Ids]:
        """Whole pieces as long as they fit, and at least one, cut to `tokens`."""
        taken: list[Ids] = []
        room = tokens
        while room > 0:
            piece = self.pieces[self.next % len(self.pieces)]
            if taken and len(piece) > room:
                break
            taken.append(piece[: max(2, room)])
            room -= len(taken[-1])
            self.next += 1
        return taken

    def position(self) -> dict[str, Any]:
        return {"next": self.next}

    def seek(self, position: Mapping[str, Any]) -> None:
        self.next = int(position["next"])
