"""How a chat template lays out an assistant's turn, found by asking it: render a few turns of marks and look.

Templates differ in where they take thinking and arguments from, in white space, in what ends a turn, and in whether the
prompt opens the thinking. None of that is declared anywhere, and all of it shows in what they write. Knows no
vocabulary but its control tokens, and no real conversation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from etude.core.errors import EtudeError
from etude.tokens.formats.table import NONE, detect_format
from etude.tokens.template_escaping import mark
from etude.tokens.turn_parsing import END_THINK, THINK, TurnStyle

Row = dict[str, Any]  # a message as templates take it
Write = Callable[[list[Row], bool], str]  # messages, and whether to open a turn -> what the template writes


@dataclass(frozen=True)
class Shape:
    style: TurnStyle
    reasoning: str  # the field that thinking goes to; '' puts it into the content, between the tags
    text_arguments: bool  # arguments as one JSON text instead of an object
    end: str  # the control token behind a turn

    def assistant_row(self, thinking: str, final: str, calls: Collection[tuple[str, str, Mapping[str, Any]]]) -> Row:
        """A turn as the template takes it; `calls` are ids, names and arguments."""
        row: Row = {"role": "assistant", "content": final}
        style = self.style
        if thinking and self.reasoning:
            row[self.reasoning] = thinking
        elif thinking:
            row["content"] = f"{THINK}{style.lead}{thinking}{style.tail}{END_THINK}{style.gap}{final}"
        if calls:
            row["tool_calls"] = [
                {"id": number, "type": "function", "function": {"name": name, "arguments": self.arguments(arguments)}}
                for number, name, arguments in calls
            ]
        return row

    def arguments(self, values: Mapping[str, Any]) -> Mapping[str, Any] | str:
        return json.dumps(values, ensure_ascii=False) if self.text_arguments else dict(values)


def find_shape(write: Write, source: str, control: Collection[str], default_end: str) -> Shape:
    """The shape of the template with this source. Raises when it cannot write even one question and its answer."""
    user = {"role": "user", "content": mark("user")}
    style = _opening(write, user, TurnStyle(detect_format(source)))
    shape = Shape(style, _reasoning_field(source), False, default_end)
    shape = replace(shape, end=_end(write, user, shape, control) or default_end)
    shape = replace(shape, style=_thinking(write, user, shape))
    return _calls(write, user, shape)


def _opening(write: Write, user: Row, style: TurnStyle) -> TurnStyle:
    """Whether the prompt opens the thinking, and how."""
    closed, prompt = _try(write, [user]), write([user], True)
    tail = prompt.removeprefix(closed)
    _, found, behind = tail.rpartition(THINK)
    if not found or behind.strip():
        return style
    tight = not behind
    return replace(style, opens_thinking=True, lead=behind, tail="" if tight else "\n", gap="" if tight else "\n\n")


def _end(write: Write, user: Row, shape: Shape, control: Collection[str]) -> str:
    """The control token behind an assistant's turn; some templates write it only when something follows."""
    final, following = mark("final"), mark("next")
    turn = shape.assistant_row("", final, ())
    found = _next_control(write([user, turn], False).partition(final)[2], control)
    if found:
        return found
    said = write([user, turn, {"role": "user", "content": following}], False)
    return _next_control(said.partition(final)[2].partition(following)[0], control)


def _thinking(write: Write, user: Row, shape: Shape) -> TurnStyle:
    """The white space around thinking; some templates keep it only beside calls."""
    style, thinking, final = shape.style, mark("thinking"), mark("final")
    around = re.compile(rf"{THINK}(\s*){thinking}(\s*){END_THINK}(\s*){final}")
    call = (style.format.call_id("read", 0), "read", {"path": "x"})
    for calls in ([], [call]):
        found = around.search(_try(write, [user, shape.assistant_row(thinking, final, calls)]))
        if found:
            lead = style.lead if style.opens_thinking else found[1]
            return replace(style, lead=lead, tail=found[2], gap=found[3])
    return style


def _calls(write: Write, user: Row, shape: Shape) -> Shape:
    """How arguments must be given, and what stands before the first call; no format when calls are not shown."""
    form, final, name, value = shape.style.format, mark("final"), mark("name"), mark("value")
    for as_text in (False, True) if form is not NONE else ():
        tried = replace(shape, text_arguments=as_text)
        row = tried.assistant_row("", final, [(form.call_id("read", 0), "read", {name: value})])
        shown = _try(write, [user, row])
        if re.search(rf'"{name}":\s*"{value}"', shown) if form.typed else value in shown:
            gap = shown.partition(final)[2].partition(form.opener)[0]
            return tried if gap.strip() else replace(tried, style=replace(shape.style, call_gap=gap))
    return replace(shape, style=replace(shape.style, format=NONE))


def _try(write: Write, rows: list[Row]) -> str:
    """What the template writes, or nothing where it refuses."""
    try:
        return write(rows, False)
    except EtudeError:
        return ""


def _next_control(text: str, control: Collection[str]) -> str:
    found = [(text.index(one), -len(one), one) for one in control if one in text]
    return min(found)[2] if found else ""


def _reasoning_field(source: str) -> str:
    for name in ("reasoning_content", "reasoning", "thinking"):
        if re.search(rf"""\.{name}\b|\[['"]{name}['"]\]|\.get\(['"]{name}['"]""", source):
            return name
    return ""
