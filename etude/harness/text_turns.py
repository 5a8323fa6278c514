"""A turn as plain text, for policies that return no token ids.

    <think>why</think>
    words for the user
    <tool_call>{"name": "read", "arguments": {"path": "a.py"}}</tool_call>

Most open models were trained on something like it. Calls are JSON, so any argument can be said exactly, also one that
spells these marks. Where we render tokens ourselves, `tokens.render` is used instead and nothing is spelled.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from etude.core.errors import EtudeError
from etude.core.policy import Assistant, Call, Sample
from etude.tokens.parse import Malformed
from etude.tokens.tokenizer import to_bytes, to_text

THINK, END_THINK = "<think>", "</think>"
CALL, END_CALL = "<tool_call>", "</tool_call>"


def write_turn(turn: Assistant) -> str:
    """The text of a turn. Thinking and words must not spell the marks themselves."""
    parts = [f"{THINK}{turn.thinking}{END_THINK}\n"] if turn.thinking else []
    parts.append(turn.final)
    for call in turn.calls:
        call_json = json.dumps({"name": call.name, "arguments": dict(call.arguments)}, ensure_ascii=True)
        parts.append(f"\n{CALL}{call_json}{END_CALL}")
    return "".join(parts)


def read_text_sample(sample: Sample) -> Assistant | Malformed:
    """The turn that a sample without ids stands for."""
    text = to_text(to_bytes(sample.text))
    cut = Malformed("CutOff", "the turn was cut off before its end")
    turn = cut if sample.stop == "length" else read_turn(text)
    # Where text is all there is, the next prompt must show it as it was.
    return replace(turn, partial=Assistant(final=text)) if isinstance(turn, Malformed) else turn


def read_turn(text: str) -> Assistant | Malformed:
    """The turn that a text stands for; what cannot be read comes back with what is wrong. Never raises."""
    thinking = ""
    rest = text.lstrip()
    if rest.startswith(THINK):
        thinking, found, rest = rest.removeprefix(THINK).partition(END_THINK)
        if not found:
            return Malformed("CutOff", "the thinking has no end", Assistant(thinking))
    words = rest.partition(CALL)[0]
    final = words.strip()
    calls: list[Call] = []
    rest = rest[len(words) :]
    while rest:
        call, behind = _call(rest.removeprefix(CALL).lstrip())
        if isinstance(call, str):
            return Malformed("WrongOrder", call, Assistant(thinking, final, tuple(calls)))
        behind = behind.lstrip()
        if not behind.startswith(END_CALL):
            return Malformed("CutOff", f"a call has no {END_CALL}", Assistant(thinking, final, tuple(calls)))
        calls.append(call)
        rest = behind.removeprefix(END_CALL).lstrip()
        if rest and not rest.startswith(CALL):
            fault = "words stand after a call: they come before all calls"
            return Malformed("WrongOrder", fault, Assistant(thinking, final, tuple(calls)))
    return Assistant(thinking, final, tuple(calls))


def _call(text: str) -> tuple[Call | str, str]:
    """The call at the start of a text and what follows it; a sentence instead when there is none."""
    try:
        # raw_decode ends where the JSON ends, so an argument may spell the end mark of a call.
        value, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return 'a call is not JSON: {"name": ..., "arguments": {...}}', ""
    name = value.get("name") if isinstance(value, dict) else None
    arguments = value.get("arguments", {}) if isinstance(value, dict) else None
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return "a call needs a name and arguments", ""
    call = Call(name, {key: _text(argument) for key, argument in arguments.items()})
    for text_part in (name, *call.arguments, *call.arguments.values()):
        try:
            to_bytes(text_part)
        except EtudeError:
            return "a call holds half of a surrogate pair", ""
    return call, text[end:]


def _text(value: Any) -> str:
    """Arguments are text; a number or a list that a model wrote as such is its JSON."""
    return value if isinstance(value, str) else json.dumps(value)
