"""What a tool-call format is: the marks it is made of, and how the calls between them are read.

Only reading lives here: a turn is written by the checkpoint's own chat template. A reader is given what a model
sampled, which may be anything, and never raises for it. Knows no vocabulary and no template.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from etude.core.errors import EtudeError
from etude.core.policy import Call
from etude.tokens.parse import Kind
from etude.tokens.tokenizer import to_bytes
from etude.tokens.vocabulary import MarkedText

MOST_JOINED = 16  # marks inside one call's JSON that are taken for text of an argument


@dataclass
class Calls:
    """The calls of a turn as far as they could be read, their ids where the format has them, and what was wrong."""

    calls: list[Call] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    fault: tuple[Kind, str] | None = None


@dataclass(frozen=True)
class Format:
    name: str
    marks: tuple[str, ...]  # all the marks it is made of
    opener: str  # the mark at which words end and calls begin
    call: str  # the mark at which each call begins
    read: Callable[[Sequence[MarkedText]], Calls]  # from the opener to the end of the turn
    detect: Callable[[str], bool]  # whether a chat template writes calls this way
    call_id: Callable[[str, int], str] = lambda name, number: f"call{number:05d}"  # for a call that has no id yet
    typed: bool = True  # arguments are JSON: the schema's integers and booleans are written as such


class Section(NamedTuple):
    """The marks of a format that has tokens for everything: a section of calls, each a head and JSON arguments."""

    begin: str
    end: str
    call: str
    arguments: str
    call_end: str


class Head(NamedTuple):
    """What stands before a call's arguments; `lead` is text that belongs to it behind the arguments' mark."""

    name: str
    id: str = ""
    lead: str = ""


def read_section(
    pieces: Sequence[MarkedText], marks: Section, head: Callable[[str, str], Head], tail: Sequence[str] = ("",)
) -> Calls:
    """The calls of a section. `head` reads the texts before and behind the arguments' mark; `tail` may follow JSON."""
    found = Calls()
    at = 1
    while at < len(pieces) and pieces[at].mark == marks.call:
        if at + 1 == len(pieces) or pieces[at + 1].mark != marks.arguments:
            found.fault = "WrongOrder", f"a call has no {marks.arguments} behind its name"
            return found
        name, number, lead = head(pieces[at].text, pieces[at + 1].text)
        value = read_json(pieces, at + 1, lead)
        if isinstance(value, str):
            # Without its end the call was cut off; with it, the model wrote it wrong.
            closed = any(piece.mark == marks.call_end for piece in pieces[at:])
            found.fault = ("WrongOrder", value) if closed else ("CutOff", f"a call has no {marks.call_end}")
            return found
        arguments, at, rest = value
        call = make_call(name, arguments)
        if isinstance(call, str):
            found.fault = "WrongOrder", call
            return found
        if rest.strip() not in tail or at + 1 == len(pieces) or pieces[at + 1].mark != marks.call_end:
            found.fault = "CutOff", f"a call has no {marks.call_end}"
            return found
        found.calls.append(call)
        found.ids.append(number)
        at += 2
    if at != len(pieces) - 1 or pieces[at].mark != marks.end or pieces[at].text.strip():
        found.fault = "CutOff", f"the calls are not closed by {marks.end}"
    return found


def read_json(pieces: Sequence[MarkedText], at: int, lead: str = "") -> tuple[Any, int, str] | str:
    """The JSON value that begins with the text of piece `at`, after `lead`.

    Returns it with the number of the piece in which it ends and the text behind it there, or a sentence when there is
    none. Marks inside it are text: a string may spell them.
    """
    text = pieces[at].text.lstrip().removeprefix(lead).lstrip()
    # A mark may be text inside a string: where the JSON does not end, it is read again with one piece more.
    for last in range(at, min(at + MOST_JOINED, len(pieces))):
        if last > at:
            text += pieces[last].mark + pieces[last].text
        try:
            value, end = json.JSONDecoder().raw_decode(text)
        except (ValueError, RecursionError):
            continue
        return value, last, text[end:]
    return "the arguments of a call are not JSON"


def make_call(name: Any, arguments: Any) -> Call | str:
    """A call from JSON values, or a sentence. Arguments are text; what is not is its JSON."""
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return 'a call needs a name and arguments: {"name": ..., "arguments": {...}}'
    call = Call(name, {key: argument_text(value) for key, value in arguments.items()})
    for said in (name, *call.arguments, *call.arguments.values()):
        try:
            to_bytes(said)
        except EtudeError:
            return "a call holds half of a surrogate pair"
    return call


def argument_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
