"""How a chat template lays out an assistant's turn, found by asking it: render a few turns of marks and look.

Templates differ in where they take thinking and arguments from, in white space, in what ends a turn, and in whether the
prompt opens the thinking. None of that is declared anywhere, and all of it shows in what they write. Knows no
vocabulary but its control tokens, and no real conversation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from etude.errors import EtudeError
from etude.tokens.formats.table import NONE, detect_format
from etude.tokens.hiding import mark
from etude.tokens.turns import END_THINK, THINK, TurnStyle

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
    thinking, final = mark("thinking"), mark("final")
    said = write([user, shape.assistant_row("", final, ())], False)
    behind = _next_control(said.partition(final)[2], control)
    if not behind:  # some close a turn only when something follows
        said = write([user, shape.assistant_row("", final, ()), {"role": "user", "content": mark("next")}], False)
        behind = _next_control(said.partition(final)[2].partition(mark("next"))[0], control)
    shape = Shape(shape.style, shape.reasoning, False, behind or default_end)
    around = re.compile(f"{THINK}(\\s*){thinking}(\\s*){END_THINK}(\\s*){final}")
    call = (style.format.call_id("read", 0), "read", {"path": "x"})
    shown = [_try(write, [user, shape.assistant_row(thinking, final, calls)]) for calls in ([], [call])]
    found = around.search(shown[0]) or around.search(shown[1])  # some keep thinking only beside calls
    if found:
        lead = style.lead if style.opens_thinking else found[1]
        style = TurnStyle(style.format, style.opens_thinking, lead, found[2], found[3], style.call_gap)
    return _calls(write, user, Shape(style, shape.reasoning, False, shape.end))


def _opening(write: Write, user: Row, style: TurnStyle) -> TurnStyle:
    """Whether the prompt opens the thinking, and how."""
    closed, prompt = _try(write, [user]), write([user], True)
    tail = prompt.removeprefix(closed)
    opened, _, behind = tail.rpartition(THINK)
    if not (opened or tail.startswith(THINK)) or behind.strip():
        return style
    tight = not behind
    return TurnStyle(style.format, True, behind, "" if tight else "\n", "" if tight else "\n\n", style.call_gap)


def _calls(write: Write, user: Row, shape: Shape) -> Shape:
    """How arguments must be given, and what stands before the first call; no format when calls are not shown."""
    final, value = mark("final"), mark("value")
    form = shape.style.format
    for as_text in (False, True) if form is not NONE else ():
        tried = Shape(shape.style, shape.reasoning, as_text, shape.end)
        row = tried.assistant_row("", final, [(form.call_id("read", 0), "read", {mark("name"): value})])
        shown = _try(write, [user, row])
        plain = re.search(rf'"{mark("name")}":\s*"{value}"', shown) if form.typed else value in shown
        if plain:
            gap = shown.partition(final)[2].partition(form.opener)[0]
            style = shape.style
            if not gap.strip():
                style = TurnStyle(form, style.opens_thinking, style.lead, style.tail, style.gap, gap)
            return Shape(style, shape.reasoning, as_text, shape.end)
    style = shape.style
    return Shape(
        TurnStyle(NONE, style.opens_thinking, style.lead, style.tail, style.gap), shape.reasoning, False, shape.end
    )


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
