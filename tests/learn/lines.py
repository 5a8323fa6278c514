"""Documents for tests of training stages: the lines of a text, again and again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from etude.tokens.tokenizer import Tokenizer


class Lines:
    def __init__(self, tokenizer: Tokenizer, text: str, shortest: int = 20) -> None:
        long = [line for line in text.splitlines() if len(line) > shortest]
        self.lines = [np.array(tokenizer.encode(line), np.uint16) for line in long]
        self.next = 0

    def take(self, tokens: int) -> list[np.ndarray]:
        found: list[np.ndarray] = []
        while tokens > 0:
            found.append(self.lines[self.next % len(self.lines)][: min(tokens, 64)])
            tokens -= len(found[-1])
            self.next += 1
        return found

    def position(self) -> dict[str, Any]:
        return {"next": self.next}

    def seek(self, position: Mapping[str, Any]) -> None:
        self.next = position["next"]
