"""Messages as chat templates take them (rows), and the state of a conversation between two calls of a dialect.

Every text goes into a row hidden (`template_escaping`). A turn that was sampled goes in as a stand-in: a turn of the
same parts whose texts are marks. The template cannot change what it does not see, and the marks show where it put the
turn and whether it kept all of it. Knows no tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from etude.core.policy import Assistant, Message, System, ToolResult, User
from etude.tokens.dialect import ToolSchema
from etude.tokens.template_escaping import mark
from etude.tokens.template_layout import Row, Shape

Hide = Callable[[str], str]


@dataclass(frozen=True)
class Conversation:
    """The state of a conversation between two calls."""

    rows: tuple[Row, ...] = ()
    text: str = ""  # what the template wrote for them, up to the last sampled turn
    phase: Literal["closed", "open", "sampled"] = "closed"  # of the last turn
    marks: tuple[str, ...] = ()  # of the last sampled turn: what the template must still show
    end: str = ""  # the token that ended it; none when it was cut off
    unanswered: tuple[tuple[str, str], ...] = ()  # names and ids of calls whose results are due, hidden
    calls: int = 0  # made so far


def add_messages(
    state: Conversation, messages: Sequence[Message], tools: Sequence[ToolSchema], shape: Shape, hide: Hide
) -> Conversation:
    """The state with further messages."""
    rows, unanswered, calls = list(state.rows), list(state.unanswered), state.calls
    for message in messages:
        match message:
            case System(text):
                rows.append({"role": "system", "content": hide(text)})
            case User(text):
                rows.append({"role": "user", "content": hide(text)})
            case Assistant():
                rows.append(_turn(message, calls, tools, shape, hide))
                calls += len(message.calls)
            case ToolResult(name, text):
                answered = next(((called, number) for called, number in unanswered if called == hide(name)), None)
                if answered is not None:
                    unanswered.remove(answered)
                row = {"role": "tool", "tool_call_id": answered[1] if answered else "", "content": hide(text)}
                rows.append(row | ({"name": hide(name)} if name else {}))
        if not isinstance(message, ToolResult):
            unanswered = list(calls_of(rows[-1]))
    return replace(state, rows=tuple(rows), unanswered=tuple(unanswered), calls=calls)


def add_sampled_turn(
    state: Conversation, turn: Assistant, ids: Sequence[str], end: str, shape: Shape, hide: Hide
) -> Conversation:
    """The state with a sampled turn; `ids` are those that its calls came with, '' for none."""
    form = shape.style.format
    numbers = [
        hide(number or form.call_id(call.name, state.calls + place))
        for place, (call, number) in enumerate(zip(turn.calls, ids, strict=True))
    ]
    thinks = bool(turn.thinking) or shape.style.opens_thinking
    row, marks = placeholder_turn(turn, numbers, len(state.rows), shape, hide, thinks=thinks)
    return replace(
        state,
        rows=(*state.rows, row),
        phase="sampled",
        marks=marks,
        end=end,
        unanswered=calls_of(row),
        calls=state.calls + len(numbers),
    )


def placeholder_turn(
    turn: Assistant, numbers: Sequence[str], place: int, shape: Shape, hide: Hide, *, thinks: bool
) -> tuple[Row, tuple[str, ...]]:
    """A turn of the same parts whose texts are marks, and those marks; `numbers` are the calls' ids, hidden."""
    marks: list[str] = []

    def new(name: str) -> str:
        marks.append(mark(f"t{place}{name}"))
        return marks[-1]

    thinking = new("thinking") if thinks else ""
    final = new("final") if turn.final or not turn.calls else ""
    calls = [
        (number, hide(call.name), {"text": new(f"call{place}x")})
        for place, (call, number) in enumerate(zip(turn.calls, numbers, strict=True))
    ]
    return shape.assistant_row(thinking, final, calls), tuple(marks)


def calls_of(row: Row) -> tuple[tuple[str, str], ...]:
    """Names and ids of a turn's calls."""
    return tuple((call["function"]["name"], call["id"]) for call in row.get("tool_calls", ()))


def value_of(text: str, kind: object) -> Any:
    """An argument as its schema has it, where the text says exactly such a value; otherwise the text."""
    if kind == "boolean" and text in ("true", "false"):
        return text == "true"
    # Only what a template writes as the same text again: no leading zeros, no digits that a float would lose.
    if kind == "integer" and re.fullmatch(r"0|-?[1-9]\d{0,14}", text, re.ASCII):
        return int(text)
    return text


def _turn(turn: Assistant, before: int, tools: Sequence[ToolSchema], shape: Shape, hide: Hide) -> Row:
    form = shape.style.format
    calls = []
    for place, call in enumerate(turn.calls):
        schema = next((tool.parameters for tool in tools if tool.name == call.name), {})
        kinds = _kinds(schema) if form.typed else {}
        values = {hide(key): value_of(hide(value), kinds.get(key)) for key, value in call.arguments.items()}
        calls.append((hide(form.call_id(call.name, before + place)), hide(call.name), values))
    return shape.assistant_row(hide(turn.thinking), hide(turn.final), calls)


def _kinds(schema: Any) -> dict[str, object]:
    """The types of a JSON schema's properties; schemas come from anywhere, and what is odd has none."""
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return {}
    return {name: field.get("type") for name, field in properties.items() if isinstance(field, dict)}
