"""/v1/responses: OpenAI's newer spelling of a conversation, translated to a chat and back.

A request becomes the body of /v1/chat/completions and is validated as one; nothing is stored, so an earlier answer is
sent along as items and not named by its id. What comes out are items: reasoning, a message, function calls.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Any

from etude.serve.openai.choices import Choice, ChoiceDelta
from etude.serve.openai.errors import ApiError
from etude.serve.openai.request_models import ToolFunction
from etude.serve.openai.responses import ChatWriter, Json, ResponseOptions, ResponseWriter, usage_of

# Fields with another place or meaning in a chat, or none; all others are handed on, and refused there if unknown.
OWN = ("input", "instructions", "max_output_tokens", "tools", "tool_choice", "text", "reasoning", "background")
UNUSED = ("include", "truncation", "stream_options", "previous_response_id", "conversation", "max_tool_calls", "prompt")


def chat_body(body: Any) -> Any:
    """The body of a chat that asks for the same. What is wrong inside is left for the chat's own validation to say."""
    if not isinstance(body, dict):
        return body
    if any(body.get(name) is not None for name in ("previous_response_id", "conversation")):
        sentence = "nothing is stored here: send the earlier items as 'input'"
        raise ApiError(400, sentence, param="previous_response_id", code="unsupported_value")
    chat: Json = {name: value for name, value in body.items() if name not in (*OWN, *UNUSED)}
    if body.get("background"):
        raise ApiError(400, "'background' is not possible: nothing is stored", param="background")
    chat["messages"] = _messages(body.get("instructions"), body.get("input"))
    if body.get("max_output_tokens") is not None:
        chat["max_completion_tokens"] = body["max_output_tokens"]
    if isinstance(body.get("tools"), list) and body["tools"]:
        chat["tools"] = [_tool(tool) for tool in body["tools"]]
        chat["tool_choice"] = body.get("tool_choice")
    if isinstance(effort := (body.get("reasoning") or {}), dict) and effort.get("effort") is not None:
        chat["reasoning_effort"] = effort["effort"]
    form = body["text"].get("format") if isinstance(body.get("text"), dict) else None
    if isinstance(form, dict):
        inner = {name: form[name] for name in ("name", "schema", "strict", "description") if name in form}
        chat["response_format"] = {"type": form.get("type")} | ({"json_schema": inner} if inner else {})
    if chat.get("top_logprobs"):
        chat["logprobs"] = True
    return chat


def _messages(instructions: Any, given: Any) -> list[Any]:
    messages: list[Any] = [{"role": "system", "content": instructions}] if instructions is not None else []
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    if not isinstance(given, list):
        raise ApiError(400, "'input' must be text or a list of items", param="input", code="invalid_value")
    for item in given:
        kind = item.get("type", "message") if isinstance(item, dict) else None
        if kind == "message":
            messages.append({"role": item.get("role"), "content": _content(item.get("content"))})
        elif kind == "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            if messages and messages[-1]["role"] == "assistant":
                messages[-1].setdefault("tool_calls", []).append(call)
            else:
                messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        elif kind == "function_call_output":
            said = _content(item.get("output"))
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": said})
        elif kind != "reasoning":  # an earlier turn's thinking is not shown again
            raise ApiError(400, f"'input' has an item of the type {ascii(kind)[:64]}", param="input")
    return messages


def _content(content: Any) -> Any:
    """Parts of either side are plain text to a chat."""
    if not isinstance(content, list):
        return content
    kinds = {"input_text": "text", "output_text": "text"}
    told = []
    for part in content:
        if isinstance(part, dict):
            kind = part.get("type")
            words = {name: part[name] for name in ("text", "refusal") if name in part}
            part = {"type": kinds.get(kind, kind) if isinstance(kind, str) else kind} | words
        told.append(part)
    return told


def _tool(tool: Any) -> Any:
    if not isinstance(tool, dict) or tool.get("type") != "function":
        return tool
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}


class ResponsesWriter(ResponseWriter):
    """The answer as a response object, or as its events."""

    ends_with_done = False

    def __init__(self, options: ResponseOptions, functions: Sequence[ToolFunction]) -> None:
        super().__init__(options, "resp", "response")
        self._function = ChatWriter(options, functions).function

    def whole(self, choices: Sequence[Choice], wholes: Sequence[ChoiceDelta]) -> Json:
        piece = wholes[0]
        output: list[Json] = []
        if piece.delta.thinking:
            part = {"type": "reasoning_text", "text": piece.delta.thinking}
            output.append({"type": "reasoning", "id": _id("rs"), "summary": [], "content": [part]})
        if piece.delta.text or not piece.delta.calls:
            output.append(self._message(_id("msg"), piece.delta.text))
        output += [self._call_item(_id("fc"), self._function(call)) for call in piece.delta.calls]
        return self._response(output, piece.finish) | {"usage": _usage(choices)}

    def begin(self, choice: Choice) -> Iterator[Json]:
        self._items: list[Json] = []
        self._text = self._open = ""  # of the message, and its id until it has ended
        self._number = -1
        for kind in ("response.created", "response.in_progress"):
            yield self._event(kind, response=self._response([], None))

    def say(self, choice: Choice, piece: ChoiceDelta) -> Iterator[Json]:
        if piece.delta.text:
            if not self._text:
                yield from self._begin_message()
            self._text += piece.delta.text
            at = self._at(self._items[-1]["id"])
            yield self._event("response.output_text.delta", **at, delta=piece.delta.text, logprobs=[])
        if piece.delta.calls or piece.finish is not None:
            yield from self._end_message()
        for call in piece.delta.calls:
            yield from self._tell_call(self._call_item(_id("fc"), self._function(call)))
        if piece.finish is not None:
            if not self._items:
                yield from self._begin_message()
                yield from self._end_message()
            response = self._response(self._items, piece.finish) | {"usage": _usage([choice])}
            kind = "incomplete" if response["status"] == "incomplete" else "completed"
            yield self._event(f"response.{kind}", response=response)

    def usage(self, choices: Sequence[Choice]) -> Json:
        return {}

    def _begin_message(self) -> Iterator[Json]:
        self._items.append(self._message(_id("msg"), ""))
        item = self._items[-1]
        self._open = item["id"]
        added = item | {"status": "in_progress", "content": []}
        yield self._event("response.output_item.added", output_index=len(self._items) - 1, item=added)
        yield self._event("response.content_part.added", **self._at(item["id"]), part=item["content"][0])

    def _end_message(self) -> Iterator[Json]:
        item = self._items[-1] if self._items else None
        if item is None or item["id"] != self._open:
            return
        item["content"][0]["text"], self._open = self._text, ""
        yield self._event("response.output_text.done", **self._at(item["id"]), text=self._text, logprobs=[])
        yield self._event("response.content_part.done", **self._at(item["id"]), part=item["content"][0])
        yield self._event("response.output_item.done", output_index=len(self._items) - 1, item=item)

    def _tell_call(self, item: Json) -> Iterator[Json]:
        self._items.append(item)
        at: Json = {"output_index": len(self._items) - 1}
        start = item | {"arguments": "", "status": "in_progress"}
        yield self._event("response.output_item.added", **at, item=start)
        said = {"item_id": item["id"], **at}
        yield self._event("response.function_call_arguments.delta", **said, delta=item["arguments"])
        yield self._event("response.function_call_arguments.done", **said, arguments=item["arguments"])
        yield self._event("response.output_item.done", **at, item=item)

    def _event(self, kind: str, **fields: Any) -> Json:
        self._number += 1
        return {"type": kind, "sequence_number": self._number, **fields}

    def _at(self, item: str) -> Json:
        return {"item_id": item, "output_index": len(self._items) - 1, "content_index": 0}

    def _message(self, name: str, text: str) -> Json:
        part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        return {"type": "message", "id": name, "status": "completed", "role": "assistant", "content": [part]}

    def _call_item(self, name: str, function: Json) -> Json:
        call = f"call_{secrets.token_hex(12)}"
        return {"type": "function_call", "id": name, "call_id": call, "status": "completed", **function}

    def _response(self, output: Sequence[Json], finish: str | None) -> Json:
        status = "in_progress" if finish is None else "incomplete" if finish == "length" else "completed"
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "completed_at": int(time.time()) if finish is not None else None,
            "status": status,
            "model": self.options.model,
            "output": list(output),
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": None,
            "metadata": {},
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "temperature": None,
            "top_p": None,
            "usage": None,
        }


def _id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(12)}"


def _usage(choices: Sequence[Choice]) -> Json:
    told = usage_of(choices)
    return {
        "input_tokens": told["prompt_tokens"],
        "input_tokens_details": told["prompt_tokens_details"],
        "output_tokens": told["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": told["total_tokens"],
    }
