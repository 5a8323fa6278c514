"""Several streams of candidates as one: each gives its next in turn, and is left out once it has no more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def in_turns(streams: Iterable[Iterator[T]]) -> Iterator[T]:
    """A stream that is given several times has several turns in a round."""
    waiting = list(streams)
    while waiting:
        for stream in list(waiting):
            found = next(stream, None)
            if found is None:
                waiting = [each for each in waiting if each is not stream]
            else:
                yield found
