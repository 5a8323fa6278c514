"""Ids back to messages: the inverse of `render`, and the reading of what a model sampled.

A model may sample anything. Nothing here raises for it: a turn that does not follow the format comes back as
`Malformed`, which says what is wrong in words that an observation can carry, and holds what could be read.

Callers keep the ids they were given: parsing says what ids mean, and a turn is never tokenised again from the
messages found here (sampled ids need not be the ids that `encode` would choose for the same text). Append them
with `render.append_sampled`.

Knows nothing of tools: whether a call exists and its arguments make sense is for the harness to say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from etude.core.policy import Assistant, Call, Message, System, ToolResult, User
from etude.tokens.tokenizer import CONTROL_NAMES, Tokenizer

Kind = Literal[
    "CutOff",  # no end of turn: the token limit came first, or the request was stopped
    "WrongOrder",  # parts are thinking, final, calls; an argument needs a call, a value needs an argument
    "MissingValue",
    "DuplicateArgument",
    "TextOutsidePart",  # tokens before the first part of a turn, or before the first turn
    "UnexpectedToken",  # a control token that has no place inside this turn
    "UnnamedResult",  # a tool result without a name that answers no call
    "UnknownToken",  # an id outside the vocabulary
]


@dataclass(frozen=True)
class Malformed:
    """A turn that breaks the format: the kind of fault, one sentence about it, and all that came whole before it.

    `partial` keeps thinking and final text even when they were cut short, but only calls that were finished.
    """

    kind: Kind
    message: str
    partial: Assistant = field(default_factory=Assistant)


def parse_turn(ids: Sequence[int], tokenizer: Tokenizer) -> Assistant | Malformed:
    """Reads the ids that a model sampled after an open turn, its end of turn included. Never raises."""
    turn = _Turn()
    for marker, text in _pieces(ids, tokenizer):
        fault = turn.take(marker, text)
        if fault is not None:
            return Malformed(*fault, partial=turn.read())
        if turn.ended:
            break
    if not turn.ended:
        return Malformed("CutOff", "the turn was cut off before its end", turn.read())
    end = tokenizer.control["end_of_turn"]
    if ids.index(end) != len(ids) - 1:
        return Malformed("UnexpectedToken", "the turn goes on after its end", turn.read())
    return turn.read()


def parse(ids: Sequence[int], tokenizer: Tokenizer) -> tuple[Message | Malformed, ...]:
    """Reads a whole conversation. A malformed turn stands in its place as `Malformed`; an open, empty turn is none.

    An assistant's turn reaches to the first end of turn (or `cut`, which the harness writes behind a turn that has
    no end), whatever else the model sampled into it, so no sampled token can pass for a message of somebody else.
    """
    control = tokenizer.control
    starts = {control[name] for name in ("system", "user", "assistant", "tool")}
    turn_ends = {control["end_of_turn"], control["cut"]}
    messages: list[Message | Malformed] = []
    unanswered: list[str] = []
    position = 0
    while position < len(ids):
        first = ids[position]
        stops = turn_ends if first == control["assistant"] else starts
        end = next((i for i in range(position + 1, len(ids)) if ids[i] in stops), len(ids))
        if first == control["assistant"]:
            end = min(end + 1, len(ids))  # the end of turn is the turn's own
        body = ids[position + 1 : end]
        if first == control["assistant"]:
            if body:
                turn = parse_turn(body, tokenizer)
                messages.append(turn)
                unanswered = unanswered_calls(turn)
        elif first == control["tool"]:
            messages.append(_result(body, tokenizer, unanswered))
        elif first in starts:
            messages.append(_prompt(CONTROL_NAMES[first], body, tokenizer))
            unanswered = []
        else:
            messages.append(Malformed("TextOutsidePart", "there are tokens outside any turn"))
        position = end
    return tuple(messages)


def unanswered_calls(turn: Assistant | Malformed) -> list[str]:
    """Names of the calls whose results are due after a turn, in order."""
    return [call.name for call in (turn.partial if isinstance(turn, Malformed) else turn).calls]


@dataclass
class _Turn:
    """An assistant's turn while it is read, part by part."""

    thinking: str | None = None
    final: str | None = None
    calls: list[Call] = field(default_factory=list)
    name: str | None = None  # of the call being read, with its arguments so far
    arguments: dict[str, str] = field(default_factory=dict)
    argument: str | None = None  # a name that waits for its value
    ended: bool = False

    def take(self, marker: str, text: str) -> tuple[Kind, str] | None:
        """Adds what follows one control token ('' before the first); returns what is wrong with it, if anything."""
        if self.argument is not None and marker in ("call", "argument", "end_of_turn"):
            return "MissingValue", f"argument {_short(self.argument)} of call {_short(self.name)} has no value"
        match marker:
            case "thinking":
                if self.thinking is not None or self.final is not None or self._calling():
                    return "WrongOrder", "thinking comes once and first in a turn"
                self.thinking = text
            case "final":
                if self.final is not None or self._calling():
                    return "WrongOrder", "the message comes once in a turn, after thinking and before calls"
                self.final = text
            case "call":
                self._finish_call()
                self.name = text
            case "argument":
                if self.name is None:
                    return "WrongOrder", "an argument stands outside a call"
                self.argument = text
            case "value":
                if self.argument is None:
                    return "WrongOrder", "a value stands without the name of its argument"
                if self.argument in self.arguments:
                    return "DuplicateArgument", f"call {_short(self.name)} gives argument {_short(self.argument)} twice"
                self.arguments[self.argument] = text
                self.argument = None
            case "end_of_turn":
                self._finish_call()
                self.ended = True
            case "cut":
                return "CutOff", "the turn was cut off before its end"
            case "":
                return "TextOutsidePart", "text stands before the first part of the turn"
            case "unknown":
                return "UnknownToken", "the turn holds a token that is not in the vocabulary"
            case _:
                return "UnexpectedToken", f"the control token {marker} has no place in an assistant's turn"
        return None

    def read(self) -> Assistant:
        return Assistant(self.thinking or "", self.final or "", tuple(self.calls))

    def _calling(self) -> bool:
        return self.name is not None or bool(self.calls)

    def _finish_call(self) -> None:
        if self.name is not None:
            self.calls.append(Call(self.name, self.arguments))
            self.name, self.arguments = None, {}


def _pieces(ids: Sequence[int], tokenizer: Tokenizer) -> Iterator[tuple[str, str]]:
    """Control tokens by name, each with the text up to the next; text before the first comes under ''."""
    marker, start = "", 0
    for position, token in enumerate(ids):
        known = 0 <= token < tokenizer.vocab_size
        if not known or tokenizer.is_control(token):
            if marker or position > start:
                yield marker, tokenizer.decode(ids[start:position])
            marker, start = CONTROL_NAMES[token] if known else "unknown", position + 1
    if marker or len(ids) > start:
        yield marker, tokenizer.decode(ids[start:])


def _prompt(role: str, body: Sequence[int], tokenizer: Tokenizer) -> Message | Malformed:
    pieces = list(_pieces(body, tokenizer))
    for marker, _ in pieces:
        if marker:
            return Malformed("UnexpectedToken", f"the control token {marker} has no place in a {role} turn")
    text = pieces[0][1] if pieces else ""
    return System(text) if role == "system" else User(text)


def _result(body: Sequence[int], tokenizer: Tokenizer, unanswered: list[str]) -> ToolResult | Malformed:
    """A tool's turn: `name output text`, or the text alone when it answers the next of the unanswered calls."""
    pieces = list(_pieces(body, tokenizer))
    for marker, _ in pieces:
        if marker not in ("", "output"):
            return Malformed("UnexpectedToken", f"the control token {marker} has no place in a tool's turn")
    lead = pieces.pop(0)[1] if pieces and not pieces[0][0] else ""
    if len(pieces) > 1:
        return Malformed("UnexpectedToken", "a tool's turn has more than one output")
    if pieces:
        return ToolResult(lead, pieces[0][1])
    if unanswered:
        return ToolResult(unanswered.pop(0), lead)
    return Malformed("UnnamedResult", "a tool's result names no tool and answers no call")


def _short(name: str | None) -> str:
    """A sampled name as it may stand in a sentence: quoted, printable, and no longer than a line."""
    text = ascii(name or "")
    return text if len(text) <= 40 else text[:37] + "..."
