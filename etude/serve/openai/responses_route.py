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
UNUSED = ("include", "truncation", "stream_options", "previous_response_id", "conversation", "max_tool_calls")
# What the items that come out have no place for, and what of it asks for nothing.
NOT_TOLD = {"n": 1, "logprobs": False, "top_logprobs": 0, "return_token_ids": False, "prompt": None, "messages": None}
LOGPROBS = "message.output_text.logprobs"


def chat_body(body: Any) -> Any:
    """The body of a chat that asks for the same. What is wrong inside is left for the chat's own validation to say."""
    if not isinstance(body, dict):
        return body
    if any(body.get(name) is not None for name in ("previous_response_id", "conversation")):
        sentence = "nothing is stored here: send the earlier items as 'input'"
        raise ApiError(400, sentence, param="previous_response_id", code="unsupported_value")
    include = body.get("include")
    asked = [name for name, nothing in NOT_TOLD.items() if body.get(name) not in (None, nothing)]
    if asked := [*asked, *(["include"] if isinstance(include, list) and LOGPROBS in include else [])]:
        sentence = f"{asked[0]!r} is not possible in /v1/responses; ask /v1/chat/completions"
        raise ApiError(400, sentence, param=asked[0], code="unsupported_value")
    chat: Json = {name: value for name, value in body.items() if name not in (*OWN, *UNUSED, *NOT_TOLD)}
    if body.get("background"):
        raise ApiError(400, "'background' is not possible: nothing is stored", param="background")
    chat["messages"] = _messages(body.get("instructions"), body.get("input"))
    if body.get("max_output_tokens") is not None:
        chat["max_completion_tokens"] = body["max_output_tokens"]
    tools = body.get("tools")
    chat["tools"] = [_tool(tool) for tool in tools] if isinstance(tools, list) else tools
    chat["tool_choice"] = body.get("tool_choice")
    chat["reasoning_effort"] = _object(body, "reasoning").get("effort")
    text = _object(body, "text")
    chat["verbosity"], form = text.get("verbosity"), text.get("format")
    if isinstance(form, dict):
        inner = {name: form[name] for name in ("name", "schema", "strict", "description") if name in form}
        form = {"type": form.get("type")} | ({"json_schema": inner} if inner else {})
    chat["response_format"] = form
    return chat


def _object(body: Json, name: str) -> Json:
    found = body.get(name)
    if not isinstance(found, dict | None):
        raise ApiError(400, f"'{name}' must be an object or null", param=name, code="invalid_value")
    return found or {}


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
            output.append(_reasoning(piece.delta.thinking))
        if piece.delta.text or not piece.delta.calls:
            output.append(_message(piece.delta.text))
        output += [self._call_item(_id("fc"), self._function(call)) for call in piece.delta.calls]
        return self._response(output, piece.finish) | {"usage": _usage(choices)}

    def begin(self, choice: Choice) -> Iterator[Json]:
        self._items: list[Json] = []
        self._part: Json | None = None  # of the last item, while its text comes
        self._number = -1
        for kind in ("response.created", "response.in_progress"):
            yield self._event(kind, response=self._response([], None))

    def say(self, choice: Choice, piece: ChoiceDelta) -> Iterator[Json]:
        if piece.delta.thinking:
            yield from self._tell_text(_reasoning(""), piece.delta.thinking)
        if piece.delta.text:
            yield from self._tell_text(_message(""), piece.delta.text)
        if piece.delta.calls or piece.finish is not None:
            yield from self._end_text()
        for call in piece.delta.calls:
            yield from self._tell_call(self._call_item(_id("fc"), self._function(call)))
        if piece.finish is not None:
            if all(item["type"] == "reasoning" for item in self._items):
                yield from self._tell_text(_message(""), "")
                yield from self._end_text()
            response = self._response(self._items, piece.finish) | {"usage": _usage([choice])}
            kind = "incomplete" if response["status"] == "incomplete" else "completed"
            yield self._event(f"response.{kind}", response=response)

    def usage(self, choices: Sequence[Choice]) -> Json:
        return {}

    def _tell_text(self, item: Json, text: str) -> Iterator[Json]:
        """More text of the last item if that is of this one's kind, or the beginning of this one."""
        if self._part is None or self._items[-1]["type"] != item["type"]:
            yield from self._end_text()
            self._items.append(item)
            self._part = item["content"][0]
            added = item | {"status": "in_progress", "content": []}
            yield self._event("response.output_item.added", output_index=len(self._items) - 1, item=added)
            # A copy: events are written when all of a piece are there, and the part has its text by then.
            yield self._event("response.content_part.added", **self._at(), part=dict(self._part))
        if text:
            self._part["text"] += text
            yield self._event(f"response.{self._part['type']}.delta", **self._at(), **self._logprobs(), delta=text)

    def _end_text(self) -> Iterator[Json]:
        if self._part is None:
            return
        kind, text = self._part["type"], self._part["text"]
        yield self._event(f"response.{kind}.done", **self._at(), **self._logprobs(), text=text)
        yield self._event("response.content_part.done", **self._at(), part=self._part)
        yield self._event("response.output_item.done", output_index=len(self._items) - 1, item=self._items[-1])
        self._part = None

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

    def _at(self) -> Json:
        return {"item_id": self._items[-1]["id"], "output_index": len(self._items) - 1, "content_index": 0}

    def _logprobs(self) -> Json:
        return {name: [] for name in ("logprobs",) if self._part and name in self._part}

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


def _reasoning(text: str) -> Json:
    part = {"type": "reasoning_text", "text": text}
    return {"type": "reasoning", "id": _id("rs"), "summary": [], "content": [part]}


def _message(text: str) -> Json:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "message", "id": _id("msg"), "status": "completed", "role": "assistant", "content": [part]}


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
