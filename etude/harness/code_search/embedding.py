"""Words as vectors, trained so that a question and the code that answers it point the same way. numpy alone.

A text's vector is the sum of the vectors of its words, each by the logarithm of its count; a word's length is how much
it says, learnt with it. Words that training never saw say nothing here: that is what `lexical` is for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from etude.core.errors import EtudeError

LARGEST = 256 << 20  # bytes of a file of vectors


@dataclass(frozen=True, eq=False)
class WordVectors:
    """Word i is row i."""

    words: tuple[str, ...]
    vector_VD: npt.NDArray[np.float32]
    numbers: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "numbers", {word: number for number, word in enumerate(self.words)})

    def embed(self, counts: Mapping[str, float]) -> npt.NDArray[np.float32]:
        """A vector of length 1; zeros where no word is known."""
        known = [(self.numbers[word], count) for word, count in counts.items() if word in self.numbers]
        if not known:
            return np.zeros(self.vector_VD.shape[1], np.float32)
        rows, weights = zip(*known, strict=True)
        total = np.log1p(np.array(weights, np.float32)) @ self.vector_VD[list(rows)]
        return np.asarray(total / max(1e-9, float(np.linalg.norm(total))), np.float32)

    def save(self, file: Path) -> None:
        data: bytes = save({"vectors": self.vector_VD.astype(np.float16)}, {"words": json.dumps(self.words)})
        partial = file.with_name(f"{file.name}.partial")  # nobody reads half of it
        partial.write_bytes(data)
        partial.replace(file)

    @classmethod
    def load(cls, file: Path) -> WordVectors:
        """What `save` wrote; anything else is refused."""
        try:
            if file.stat().st_size > LARGEST:
                raise ValueError(f"it has more than {LARGEST} bytes")
            data = file.read_bytes()
            header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
            words, vectors = json.loads(header["__metadata__"]["words"]), load(data)["vectors"]
            if vectors.ndim != 2 or len(vectors) != len(words) or not all(isinstance(word, str) for word in words):
                raise ValueError("it does not have a row for each word")
        except OSError as error:
            raise EtudeError(f"the word vectors {file} cannot be read: {error.strerror}") from None
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise EtudeError(f"{file} holds no word vectors: {error}") from None
        return cls(tuple(words), vectors.astype(np.float32))
