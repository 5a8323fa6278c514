"""Conversations as JSONL, one a line, to messages and back: what `etude sft` learns from.

    {"messages": [{"role": "system", "content": "..."},
                  {"role": "user", "content": "..."},
                  {"role": "assistant", "thinking": "...", "final": "...",
                   "calls": [{"name": "read", "arguments": {"path": "a.py"}}]},
                  {"role": "tool", "name": "read", "content": "..."}]}

An assistant's fields are all optional and `content` may stand for `final`. A byte that is not valid UTF-8 is
written as a lone surrogate (`"\\udcff"` is the byte FF). Every fault names its file, line and field. Knows no tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from etude.core.errors import EtudeError
from etude.core.policy import Assistant, Call, Message, System, ToolResult, User
from etude.tokens.tokenizer import to_bytes, to_text


def read_conversations(path: Path | str) -> list[tuple[Message, ...]]:
    """All conversations of a file, in order; empty lines are skipped."""
    conversations = []
    try:
        lines = Path(path).read_bytes().split(b"\n")
    except OSError as error:
        raise EtudeError(f"cannot read the conversations in {path}: {error.strerror}") from None
    for number, line in enumerate(lines, start=1):
        if line.strip():
            conversations.append(_conversation(line, f"{path}, line {number}"))
    if not conversations:
        raise EtudeError(f"{path} holds no conversation: write one JSON object a line")
    return conversations


def write_conversations(path: Path | str, conversations: Iterable[Iterable[Message]]) -> None:
    try:
        # ASCII with escapes: UTF-8 cannot hold the lone surrogates that stand for stray bytes.
        with Path(path).open("w", encoding="ascii") as file:
            for messages in conversations:
                file.write(json.dumps({"messages": [message_to_json(message) for message in messages]}) + "\n")
    except OSError as error:
        raise EtudeError(f"cannot write conversations to {path}: {error.strerror}") from None


def message_to_json(message: Message) -> dict[str, Any]:
    match message:
        case System(text):
            return {"role": "system", "content": text}
        case User(text):
            return {"role": "user", "content": text}
        case ToolResult(name, text):
            return {"role": "tool", "name": name, "content": text}
        case Assistant(thinking, final, calls):
            value: dict[str, Any] = {"role": "assistant"}
            if thinking:
                value["thinking"] = thinking
            if final:
                value["final"] = final
            if calls:
                value["calls"] = [{"name": call.name, "arguments": dict(call.arguments)} for call in calls]
            return value


def message_from_json(value: Any, where: str) -> Message:
    """One message; `where` names the place in errors, such as 'chats.jsonl, line 3: messages[1]'."""
    fields = _object(value, where)
    role = fields.get("role")
    match role:
        case "system" | "user":
            _only(fields, ("role", "content"), where)
            text = _text(fields, "content", where)
            return System(text) if role == "system" else User(text)
        case "tool":
            _only(fields, ("role", "name", "content"), where)
            return ToolResult(_text(fields, "name", where), _text(fields, "content", where))
        case "assistant":
            _only(fields, ("role", "thinking", "final", "content", "calls"), where)
            if fields.get("final") is not None and fields.get("content") is not None:
                raise EtudeError(f"{where} has both 'final' and 'content', which mean the same: keep one")
            final = "content" if fields.get("content") is not None else "final"
            return Assistant(
                _text(fields, "thinking", where, default=""),
                _text(fields, final, where, default=""),
                tuple(_calls(fields.get("calls"), f"{where}.calls")),
            )
        case _:
            raise EtudeError(f"{where}.role is {role!r}: it must be 'system', 'user', 'assistant' or 'tool'")


def _conversation(line: bytes, where: str) -> tuple[Message, ...]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:  # the second for brackets within brackets, thousands deep
        raise EtudeError(f"{where} is not JSON: {error}") from None
    fields = _object(value, where)
    _only(fields, ("messages",), where)
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise EtudeError(f"{where}: 'messages' must be a list of at least one message")
    return tuple(message_from_json(item, f"{where}: messages[{index}]") for index, item in enumerate(messages))


def _calls(value: Any, where: str) -> Iterator[Call]:
    if value is None:
        return
    if not isinstance(value, list):
        raise EtudeError(f"{where} must be a list of calls, not {_kind(value)}")
    for index, item in enumerate(value):
        place = f"{where}[{index}]"
        fields = _object(item, place)
        _only(fields, ("name", "arguments"), place)
        arguments = _object(fields.get("arguments", {}), f"{place}.arguments")
        texts = {_checked(name, place): _text(arguments, name, f"{place}.arguments") for name in arguments}
        yield Call(_text(fields, "name", place), texts)


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise EtudeError(f"{where} must be a JSON object, not {_kind(value)}")
    return value


def _only(fields: dict[str, Any], allowed: tuple[str, ...], where: str) -> None:
    unknown = [name for name in fields if name not in allowed]
    if unknown:
        raise EtudeError(f"{where} has an unknown field {unknown[0]!r}: {', '.join(allowed)} are known")


def _text(fields: dict[str, Any], name: str, where: str, default: str | None = None) -> str:
    value = fields.get(name)
    if value is None and default is not None:
        return default
    if name not in fields:
        raise EtudeError(f"{where} lacks the field {name!r}")
    if not isinstance(value, str):
        raise EtudeError(f"{where}.{name} must be text in quotes, not {_kind(value)}")
    return _checked(value, f"{where}.{name}")


def _checked(text: str, where: str) -> str:
    """The text in the one form that stands for its bytes, so that it is equal to what comes back from tokens."""
    try:
        return to_text(to_bytes(text))
    except EtudeError as error:
        raise EtudeError(f"{where}: {error}") from None


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
