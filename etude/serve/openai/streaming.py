"""Sampled ids to what a client reads, while they arrive: text, thinking and calls, cut at a stop text.

What comes out piece by piece is, put together, what would come out at once: nothing depends on how many ids arrive at
a time. Half of a UTF-8 character is never sent. Knows dialects, no JSON and no HTTP.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from etude.core.policy import Assistant, Call
from etude.tokens.dialect import Dialect
from etude.tokens.parse import Malformed
from etude.tokens.tokenizer import to_bytes, to_text

AGAIN = 128  # a turn is read again when it has grown by this part of itself
_MARK = 32  # characters in which a mark of a template, begun with "<", shows whether it is one


@dataclass
class Delta:
    """What is new to a client."""

    text: str = ""
    thinking: str = ""
    calls: list[Call] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.text or self.thinking or self.calls)


class Reader(Protocol):
    used: int  # ids that belong to the answer: those after a stop text do not
    stopped: bool  # a stop text was found

    def take(self, ids: Sequence[int]) -> Delta:
        """Reads more ids."""

    def end(self) -> Delta:
        """What was held back, once there are no more ids."""


def find_stop(text: str, stops: Sequence[str]) -> int | None:
    """Where the stop text starts that is completed first; None if there is none."""
    ends = [(place + len(stop), place) for stop in stops if (place := text.find(stop)) >= 0]
    return min(ends)[1] if ends else None


def without_begun(text: str, stops: Sequence[str]) -> str:
    """The text without what, at its end, may be the beginning of a stop text."""
    longest = 0
    for stop in stops:
        counts = range(min(len(stop) - 1, len(text)), longest, -1)
        longest = next((count for count in counts if text.endswith(stop[:count])), longest)
    return text[: len(text) - longest]


class TextReader:
    """For /v1/completions: ids are text, and control tokens are none."""

    def __init__(self, dialect: Dialect, stops: Sequence[str]) -> None:
        self.used, self.stopped = 0, False
        self._dialect, self._stops = dialect, stops
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""  # may be the beginning of a stop text

    def take(self, ids: Sequence[int]) -> Delta:
        text = ""
        for token in ids:
            if self.stopped:
                break
            self.used += 1
            text += self._pass(self._decoder.decode(token_bytes(self._dialect, token)))
        return Delta(text)

    def end(self) -> Delta:
        text = self._pass(self._decoder.decode(b"", final=True))
        return Delta(text if self.stopped else text + self._held)

    def _pass(self, text: str) -> str:
        self._held += text
        place = find_stop(self._held, self._stops)
        self.stopped = place is not None
        passed = self._held[:place] if self.stopped else without_begun(self._held, self._stops)
        self._held = self._held[len(passed) :]
        return passed


class TurnReader:
    """For chats: thinking, text and calls of one turn.

    The turn is parsed again and again, each time as a whole, and what it has gained is sent; as it is parsed only when
    it has grown by a part of itself, the work stays in proportion. Stop texts are looked for in the text alone. No
    more than `calls` calls are sent: none where the request has no tools.
    """

    def __init__(self, dialect: Dialect, stops: Sequence[str], opening: Sequence[int] = (), calls: int = 0) -> None:
        self.used, self.stopped = 0, False
        self._dialect, self._stops, self._opening = dialect, stops, list(opening)
        self._ids: list[int] = []
        self._thinking = self._text = ""  # sent so far
        self._calls, self._most_calls = 0, calls

    def take(self, ids: Sequence[int]) -> Delta:
        self._ids += ids
        if self.stopped or len(self._ids) - self.used <= len(self._ids) // AGAIN:
            return Delta()
        return self._read(ended=False)

    def end(self) -> Delta:
        return Delta() if self.stopped else self._read(ended=True)

    def _read(self, ended: bool) -> Delta:
        turn = self._turn(len(self._ids))
        delta = Delta()
        thinking, text = _decode(turn.thinking, ended), _decode(turn.final, ended)
        place = find_stop(text, self._stops)
        if place is not None:
            self.stopped, text = True, text[:place]
        elif not ended and not turn.calls:  # words come before all calls: behind one nothing changes or ends them
            text = without_begun(_settled(text), self._stops)
        # Thinking is over once there is text behind it.
        if not ended and not text:
            thinking = _settled(thinking)
        # a parser may change its mind about the end of a text, but what was sent stays sent
        if thinking.startswith(self._thinking):
            delta.thinking, self._thinking = thinking[len(self._thinking) :], thinking
        if text.startswith(self._text):
            delta.text, self._text = text[len(self._text) :], text
        if self.stopped:
            self.used = self._shortest()
        else:
            self.used = len(self._ids)
            delta.calls = list(turn.calls[self._calls : self._most_calls])
            self._calls += len(delta.calls)
        return delta

    def _turn(self, count: int) -> Assistant:
        parsed = self._dialect.parse_turn(self._opening + self._ids[:count])
        if not isinstance(parsed, Malformed):
            return parsed
        if parsed.kind == "TextOutsidePart":  # a model that never learnt the format still says something
            return Assistant(final=to_text(b"".join(token_bytes(self._dialect, i) for i in self._ids[:count])))
        return parsed.partial

    def _shortest(self) -> int:
        """The fewest ids in whose text a stop text is whole, so that the count depends on nothing else."""
        low, high = self.used, len(self._ids)
        while low + 1 < high:
            middle = (low + high) // 2
            found = find_stop(_decode(self._turn(middle).final, False), self._stops) is not None
            low, high = (low, middle) if found else (middle, high)
        return high


def _decode(text: str, ended: bool) -> str:
    """Text as a client can read it: bytes that are no UTF-8 replaced, half a character at the end left out."""
    return codecs.getincrementaldecoder("utf-8")("replace").decode(to_bytes(text), final=ended)


def _settled(text: str) -> str:
    """The text without what a template's parser may still take from its end: space, or a mark that has begun."""
    mark = text.rfind("<", max(0, len(text) - _MARK))
    return (text[:mark] if mark >= 0 else text).rstrip()


def token_bytes(dialect: Dialect, token: int) -> bytes:
    """A model's vocabulary may be padded beyond its tokenizer's."""
    return dialect.bytes_of(token) if token < dialect.vocab_size else b""
