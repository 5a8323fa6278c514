"""Calls in a section, each with an id that names its function and counts: Kimi K2.

    <|tool_calls_section_begin|><|tool_call_begin|>functions.read:0<|tool_call_argument_begin|>{"path": "a.py"}
    <|tool_call_end|><|tool_calls_section_end|>                                             (all in one line)

Results name the id of their call, so the id is kept as it was sampled.
"""

from __future__ import annotations

from etude.tokens.formats.base import Format, Head, Section, read_section

MARKS = Section(
    begin="<|tool_calls_section_begin|>",
    end="<|tool_calls_section_end|>",
    call="<|tool_call_begin|>",
    arguments="<|tool_call_argument_begin|>",
    call_end="<|tool_call_end|>",
)


def _head(before: str, behind: str) -> Head:
    """`functions.read:0` is a call of `read`."""
    number = before.strip()
    # A model that forgets the count, or the word before the name, has still said which tool it means.
    name, colon, count = number.removeprefix("functions.").rpartition(":")
    return Head(name if colon and count.isdigit() else number.removeprefix("functions."), number)


KIMI = Format(
    name="kimi",
    marks=MARKS,
    opener=MARKS.begin,
    call=MARKS.call,
    read=lambda pieces: read_section(pieces, MARKS, _head),
    detect=lambda template: MARKS.begin in template,
    call_id=lambda name, number: f"functions.{name}:{number}",
)
