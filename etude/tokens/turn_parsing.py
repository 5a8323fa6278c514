"""What a model sampled under a chat template, read back: thinking, words, calls, and where in the tokens each begins.

A model may sample anything, and nothing here raises for it: `Malformed` says what is wrong, in the same kinds as our
own format's. Only tokens count as marks where the vocabulary has tokens for them, so a turn that quotes `<tool_call>`
in ordinary tokens makes no call. Knows no template and no vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from etude.core.policy import Assistant, Part
from etude.tokens.formats.base import Calls, Format
from etude.tokens.parse import Kind, Malformed
from etude.tokens.vocabulary import UNKNOWN, MarkedText

THINK, END_THINK = "<think>", "</think>"


@dataclass(frozen=True)
class TurnStyle:
    """How a template lays out an assistant's turn."""

    format: Format
    opens_thinking: bool = False  # the prompt ends inside the thinking, so the model does not open it
    lead: str = "\n"  # between <think> and the thinking, unless the prompt has it already
    tail: str = "\n"  # between the thinking and </think>
    gap: str = "\n\n"  # between </think> and the words
    call_gap: str = "\n"  # between the words and the first call

    @property
    def marks(self) -> tuple[str, ...]:
        return THINK, END_THINK, *self.format.marks


@dataclass
class Turn:
    """A turn as it was read."""

    message: Assistant | Malformed
    call_ids: list[str] = field(default_factory=list)  # '' where the format gives a call none
    parts: list[tuple[Part, int]] = field(default_factory=list)  # each part and the token that it begins with


def read_turn(pieces: Sequence[MarkedText], style: TurnStyle, ends: Collection[str]) -> Turn:
    """Reads a turn, its end included. `ends` are the tokens that end one."""
    stop = next((place for place, piece in enumerate(pieces) if piece.mark in ends), len(pieces))
    reader = _Reader(style)
    fault = reader.take(pieces[:stop])
    if fault is None and stop == len(pieces):
        fault = "CutOff", "the turn was cut off before its end"
    elif fault is None and (pieces[stop].text or stop + 1 < len(pieces)):
        fault = "UnexpectedToken", "the turn goes on after its end"
    elif fault is not None and stop == len(pieces) and fault[0] in ("WrongOrder", "CutOff"):
        fault = "CutOff", "the turn was cut off before its end"  # what it had not got to is no fault of its own
    message = reader.read()
    ids = [*reader.calls.ids, *[""] * len(message.calls)][: len(message.calls)]
    return Turn(Malformed(*fault, partial=message) if fault else message, ids, reader.parts)


class _Reader:
    def __init__(self, style: TurnStyle) -> None:
        self.style = style
        self.thinking: list[str] | None = [] if style.opens_thinking else None
        self.open = style.opens_thinking  # inside the thinking
        self.marked = False  # the model itself opened the thinking
        self.words: list[str] = []
        self.calls = Calls()
        self.parts: list[tuple[Part, int]] = [("thinking" if self.open else "final", 0)]

    def take(self, pieces: Sequence[MarkedText]) -> tuple[Kind, str] | None:
        """Reads up to the first fault and returns that."""
        for place, piece in enumerate(pieces):
            mark, text = piece.mark, piece.text
            if mark == THINK and self._may_open():
                self.thinking, self.open, self.marked = [text], True, True
                # White space before the thinking is layout, not words.
                self.words.clear()
                self.parts.append(("thinking", piece.start))
            elif mark == END_THINK and self.open:
                self.open = False
                self.words = [text]
                self.parts.append(("final", piece.start + 1))
            elif mark and mark == self.style.format.opener and not self.open:
                self.parts += _call_parts(pieces[place:], self.style.format)
                return self._take_calls(pieces[place:])
            elif not mark or piece.literal:  # a mark that is only text, in a place where it means nothing
                (self.thinking if self.open and self.thinking is not None else self.words).append(mark + text)
            elif mark == UNKNOWN:
                return "UnknownToken", "the turn holds a token that is not in the vocabulary"
            elif mark in (THINK, END_THINK):
                return "WrongOrder", "thinking comes once and first in a turn"
            elif mark in self.style.format.marks:
                where = "inside the thinking" if self.open else "outside a call"
                return "WrongOrder", f"the token {mark} stands {where}"
            else:
                return "UnexpectedToken", f"the token {mark} has no place in an assistant's turn"
        if self.open:
            return "CutOff", "the thinking has no end"
        return None

    def _take_calls(self, pieces: Sequence[MarkedText]) -> tuple[Kind, str] | None:
        odd = next((p for p in pieces if p.mark and p.mark not in self.style.format.marks), None)
        self.calls = self.style.format.read(pieces)
        # A control token in the middle of a call explains the fault better than the JSON that it broke.
        if self.calls.fault is None or odd is None:
            return self.calls.fault
        if odd.mark == UNKNOWN:
            return "UnknownToken", "the turn holds a token that is not in the vocabulary"
        return "UnexpectedToken", f"the token {odd.mark} has no place in a call"

    def _may_open(self) -> bool:
        nothing = not "".join(self.words).strip() and not "".join(self.thinking or ()).strip()
        return nothing and not self.marked and (self.thinking is None or self.open)

    def read(self) -> Assistant:
        style = self.style
        thinking, words = "".join(self.thinking or ()), "".join(self.words)
        if self.marked or not style.opens_thinking:
            thinking = thinking.removeprefix(style.lead)
        if not self.open:
            thinking = thinking.removesuffix(style.tail)
            if self.thinking is not None:
                # A turn that was cut inside the gap has only the beginning of it.
                words = "" if style.gap.startswith(words) else words.removeprefix(style.gap)
        if self.calls.calls:
            words = words.removesuffix(style.call_gap) if words.strip() else ""
        return Assistant(thinking, words, tuple(self.calls.calls))


def _call_parts(pieces: Sequence[MarkedText], form: Format) -> list[tuple[Part, int]]:
    """Each call is a part of its own; the first takes along what opens them all."""
    starts = [piece.start for piece in pieces if piece.mark == form.call]
    return [("call", pieces[0].start), *(("call", start) for start in starts[1:])]
