"""Our messages as the OpenAI-compatible interface has them, and its answers as a turn of ours.

Two forms. *Text*: a turn is what `write_turn` makes of it, calls spelled inside. *Tools*: calls are native, with ids,
and each result answers one. Calls come back as text arguments either way, so the harness sees no difference. Pure
functions; knows no transport, and no spelling of its own: whoever builds the policy hands one in.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from etude.core.errors import EtudeError
from etude.core.policy import Assistant, Call, Message, System, ToolResult, User
from etude.core.settings import EndpointSettings
from etude.harness.tools.base import UNREADABLE
from etude.tokens.dialect import ToolSchema
from etude.tokens.tokenizer import to_bytes

WriteTurn = Callable[[Assistant], str]


def text_messages(messages: Sequence[Message], write_turn: WriteTurn) -> list[dict[str, Any]]:
    """For models that spell their calls: tool results are the user's words, as no call of theirs has an id."""
    out: list[dict[str, Any]] = []
    before: Message | None = None
    for message in messages:
        match message:
            case System(text):
                out.append({"role": "system", "content": plain(text)})
            case User(text):
                out.append({"role": "user", "content": plain(text)})
            case Assistant():
                out.append({"role": "assistant", "content": plain(write_turn(message))})
            case ToolResult(name, text):
                said = plain(f"<tool_result name={json.dumps(name)}>\n{text}\n</tool_result>" if name else text)
                if isinstance(before, ToolResult):
                    out[-1]["content"] += f"\n{said}"  # many templates want the roles to alternate
                else:
                    out.append({"role": "user", "content": said})
        before = message
    return out


def native_messages(
    messages: Sequence[Message], schemas: Sequence[ToolSchema], settings: EndpointSettings
) -> list[dict[str, Any]]:
    """With native tool calls: every call has an id, and exactly one tool message answers it."""
    types = {schema.name: _types(schema) for schema in schemas}
    out: list[dict[str, Any]] = []
    open_calls: list[str] = []  # ids that no result has answered yet
    number = 0

    def leave_none_open() -> Iterator[dict[str, Any]]:
        # A rollout may have ended in the middle of its calls; every call needs its one answer.
        while open_calls:
            yield {"role": "tool", "tool_call_id": open_calls.pop(0), "content": ""}

    for message in messages:
        if isinstance(message, ToolResult) and open_calls:
            out.append({"role": "tool", "tool_call_id": open_calls.pop(0), "content": plain(message.text)})
            continue
        out.extend(leave_none_open())
        match message:
            case System(text):
                out.append({"role": "system", "content": plain(text)})
            case User(text) | ToolResult(_, text):  # a result of no call is the harness speaking
                out.append({"role": "user", "content": plain(text)})
            case Assistant(thinking, final, calls):
                said: dict[str, Any] = {"role": "assistant", "content": plain(final) or None}
                if thinking and settings.thinking != "drop":
                    said[settings.thinking] = plain(thinking)
                for call in calls:
                    name = plain(call.name)
                    open_calls.append(settings.call_id.replace("{name}", name).replace("{number}", str(number)))
                    number += 1
                    values = {
                        plain(key): _value(plain(text), types.get(name, {}).get(key))
                        for key, text in call.arguments.items()
                    }
                    function = {"name": name, "arguments": json.dumps(values)}
                    said.setdefault("tool_calls", []).append(
                        {"id": open_calls[-1], "type": "function", "function": function}
                    )
                if "tool_calls" not in said and said["content"] is None:
                    said["content"] = ""
                out.append(said)
    out.extend(leave_none_open())
    return out


def native_tools(schemas: Sequence[ToolSchema]) -> list[dict[str, Any]]:
    return [
        {
            "type": "function",
            "function": {"name": schema.name, "description": schema.description, "parameters": dict(schema.parameters)},
        }
        for schema in schemas
    ]


def read_message(message: Mapping[str, Any], write_turn: WriteTurn) -> str:
    """The text of an answered message. Raises on what no server should send; a model's mistakes stay in the text."""
    final = _words(message.get("content"))
    thinking = message.get("reasoning_content") or message.get("reasoning") or ""
    calls = message.get("tool_calls") or []
    if not isinstance(thinking, str) or not isinstance(calls, list):
        raise EtudeError("its message has reasoning or tool calls of a wrong type")
    text = write_turn(Assistant(thinking, final, tuple(map(_call, calls))))
    return text.encode("utf-8", "replace").decode()  # JSON can hold half of a surrogate pair, which is no text


def plain(text: str) -> str:
    """Text that JSON and its readers can take: bytes that are no UTF-8 become replacement characters."""
    return to_bytes(text).decode("utf-8", "replace")


def _words(content: Any) -> str:
    """Content is text, nothing, or a list of parts of which some are text."""
    if content is None:
        return ""
    if isinstance(content, list):
        parts = [part.get("text", "") for part in content if isinstance(part, dict)]
        content = "".join(part for part in parts if isinstance(part, str))
    if not isinstance(content, str):
        raise EtudeError("its message has a content of a wrong type")
    return content


def _call(item: Any) -> Call:
    function = item.get("function") if isinstance(item, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise EtudeError("it made a tool call without a function or a name")
    raw = function.get("arguments")
    values = raw
    if isinstance(raw, str):
        try:
            values = json.loads(raw or "{}")
        except (ValueError, RecursionError):
            values = None
    if not isinstance(values, dict):
        # The model's own mistake: the harness tells it what is wrong.
        return Call(function["name"], {UNREADABLE: raw if isinstance(raw, str) else json.dumps(raw)})
    return Call(function["name"], {key: _text(value) for key, value in values.items()})


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _types(schema: ToolSchema) -> dict[str, str]:
    properties = schema.parameters.get("properties", {})
    return {name: str(facts.get("type", "string")) for name, facts in properties.items() if isinstance(facts, dict)}


def _value(text: str, kind: str | None) -> Any:
    """An argument as its schema says: our text "3" is the number 3 again."""
    if kind in (None, "string"):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
