"""The JSON that goes out: whole answers and chunks of streams, in OpenAI's two spellings.

A `Voice` says one request's answers: `whole` at once, or `begin`, `say` and `usage` chunk by chunk. Token ids go out in
the way vLLM spells them. Knows no HTTP and no engine.
"""

from __future__ import annotations

import codecs
import json
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from etude.core.policy import Call
from etude.engine.request import Top
from etude.serve.openai.choices import Choice, ChoiceDelta
from etude.serve.openai.streaming import Delta, token_bytes
from etude.tokens.dialect import Dialect

Json = dict[str, Any]


@dataclass(frozen=True)
class ResponseOptions:
    """What of an answer is told."""

    model: str
    dialect: Dialect
    logprobs: bool = False
    tops: int = 0
    token_ids: bool = False
    include_usage: bool = False


class Voice(Protocol):
    def whole(self, choices: Sequence[Choice], wholes: Sequence[ChoiceDelta]) -> Json:
        """The answer at once; `wholes` are all of each choice."""

    def begin(self, choice: Choice) -> Iterator[Json]:
        """The chunks before the first piece of a choice."""

    def say(self, choice: Choice, piece: ChoiceDelta) -> Iterator[Json]:
        """The chunks of a piece."""

    def usage(self, choices: Sequence[Choice]) -> Json:
        """The chunk that ends a stream for those who want to know its cost."""


class ChatVoice:
    def __init__(self, manner: ResponseOptions, tools: Sequence[Json]) -> None:
        self.manner = manner
        self._id, self._created = f"chatcmpl-{secrets.token_hex(12)}", int(time.time())
        self._types = {tool["function"]["name"]: argument_types(tool) for tool in tools}
        self._calls: dict[int, int] = {}  # told so far, by choice

    def whole(self, choices: Sequence[Choice], wholes: Sequence[ChoiceDelta]) -> Json:
        said = []
        for choice, piece in zip(choices, wholes, strict=True):
            delta = piece.delta
            silent = not delta.text and (delta.calls or delta.thinking)
            message: Json = {"role": "assistant", "content": None if silent else delta.text, "refusal": None}
            if delta.thinking:
                message["reasoning_content"] = delta.thinking
            if delta.calls:
                message["tool_calls"] = [_call_id() | {"function": self._function(call)} for call in delta.calls]
            entry: Json = {"index": choice.index, "message": message, "finish_reason": piece.finish}
            said.append(entry | self._facts(piece))
        body = self._envelope("chat.completion", said) | {"usage": usage_of(choices)}
        return body | ({"prompt_token_ids": list(choices[0].prompt)} if self.manner.token_ids else {})

    def begin(self, choice: Choice) -> Iterator[Json]:
        delta = {"role": "assistant", "content": ""}
        chunk = self._chunk({"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None})
        if self.manner.token_ids and choice.index == 0:
            chunk["prompt_token_ids"] = list(choice.prompt)
        yield chunk

    def say(self, choice: Choice, piece: ChoiceDelta) -> Iterator[Json]:
        deltas = list(self._deltas(choice.index, piece.delta))
        if not deltas and piece.ids and (self.manner.logprobs or self.manner.token_ids):
            deltas = [{}]  # tokens without text have their facts all the same
        facts = self._facts(piece)
        for delta in deltas:
            yield self._chunk({"index": choice.index, "delta": delta, "finish_reason": None} | facts)
            facts = {"logprobs": None}
        if piece.finish is not None:
            entry = {"index": choice.index, "delta": {}, "logprobs": None, "finish_reason": piece.finish}
            yield self._chunk(entry)

    def usage(self, choices: Sequence[Choice]) -> Json:
        return self._envelope("chat.completion.chunk", []) | {"usage": usage_of(choices)}

    def _deltas(self, index: int, delta: Delta) -> Iterator[Json]:
        if delta.thinking:
            yield {"reasoning_content": delta.thinking}
        if delta.text:
            yield {"content": delta.text}
        for call in delta.calls:
            number = self._calls.get(index, 0)
            self._calls[index] = number + 1
            function = self._function(call)
            start = {"index": number} | _call_id() | {"function": function | {"arguments": ""}}
            yield {"tool_calls": [start]}
            yield {"tool_calls": [{"index": number, "function": {"arguments": function["arguments"]}}]}

    def _function(self, call: Call) -> Json:
        types = self._types.get(call.name, {})
        values = {_clean(name): _value(_clean(text), types.get(name, ())) for name, text in call.arguments.items()}
        return {"name": _clean(call.name), "arguments": json.dumps(values, ensure_ascii=False)}

    def _facts(self, piece: ChoiceDelta) -> Json:
        facts: Json = {"logprobs": None}
        if self.manner.logprobs:
            facts["logprobs"] = {"content": chat_logprobs(self.manner, piece), "refusal": None}
        if self.manner.token_ids:
            facts["token_ids"] = piece.ids
        return facts

    def _envelope(self, kind: str, choices: list[Json]) -> Json:
        return _envelope(self._id, kind, self._created, self.manner.model, choices)

    def _chunk(self, choice: Json) -> Json:
        chunk = self._envelope("chat.completion.chunk", [choice])
        return chunk | ({"usage": None} if self.manner.include_usage else {})


class CompletionVoice:
    def __init__(self, manner: ResponseOptions) -> None:
        self.manner = manner
        self._id, self._created = f"cmpl-{secrets.token_hex(12)}", int(time.time())
        self._offsets: dict[int, _Offsets] = {}

    def whole(self, choices: Sequence[Choice], wholes: Sequence[ChoiceDelta]) -> Json:
        said = [self._choice(*pair) | self._prompt(pair[0]) for pair in zip(choices, wholes, strict=True)]
        return self._envelope(said) | {"usage": usage_of(choices)}

    def begin(self, choice: Choice) -> Iterator[Json]:
        if self.manner.token_ids:
            yield self._chunk(self._choice(choice, ChoiceDelta.empty()) | self._prompt(choice))

    def say(self, choice: Choice, piece: ChoiceDelta) -> Iterator[Json]:
        told = piece.ids and (self.manner.logprobs or self.manner.token_ids)
        if piece.delta or told or piece.finish is not None:
            yield self._chunk(self._choice(choice, piece))

    def usage(self, choices: Sequence[Choice]) -> Json:
        return self._envelope([]) | {"usage": usage_of(choices)}

    def _choice(self, choice: Choice, piece: ChoiceDelta) -> Json:
        logprobs = None
        if self.manner.logprobs:
            offsets = self._offsets.setdefault(choice.index, _Offsets())
            logprobs = completion_logprobs(self.manner, piece, offsets)
        said: Json = {"index": choice.index, "text": piece.delta.text, "logprobs": logprobs}
        said["finish_reason"] = piece.finish
        return said | ({"token_ids": piece.ids} if self.manner.token_ids else {})

    def _prompt(self, choice: Choice) -> Json:
        return {"prompt_token_ids": list(choice.prompt)} if self.manner.token_ids else {}

    def _envelope(self, choices: list[Json]) -> Json:
        return _envelope(self._id, "text_completion", self._created, self.manner.model, choices)

    def _chunk(self, choice: Json) -> Json:
        return self._envelope([choice]) | ({"usage": None} if self.manner.include_usage else {})


def usage_of(choices: Sequence[Choice]) -> Json:
    """Each prompt counts once, whatever the number of its answers."""
    prompts = [choice for choice in choices if choice.number == 0]
    read, sampled = sum(len(choice.prompt) for choice in prompts), sum(choice.tokens for choice in choices)
    return {
        "prompt_tokens": read,
        "completion_tokens": sampled,
        "total_tokens": read + sampled,
        "prompt_tokens_details": {"cached_tokens": sum(choice.cached_tokens for choice in prompts)},
    }


def chat_logprobs(manner: ResponseOptions, piece: ChoiceDelta) -> list[Json]:
    """One entry a token, those of thinking, calls and turn marks included."""
    tops: Sequence[Top] = piece.tops or [()] * len(piece.ids)
    return [
        _logprob(manner, token, logprob) | {"top_logprobs": [_logprob(manner, *other) for other in top]}
        for token, logprob, top in zip(piece.ids, piece.logprobs, tops, strict=True)
    ]


def _logprob(manner: ResponseOptions, token: int, logprob: float) -> Json:
    data = token_bytes(manner.dialect, token)
    return {"token": data.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(data)}


@dataclass
class _Offsets:
    """Where in the answer's text each token begins."""

    at: int = 0
    decoder: codecs.IncrementalDecoder = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))

    def take(self, data: bytes) -> int:
        before = self.at
        self.at += len(self.decoder.decode(data))
        return before


def completion_logprobs(manner: ResponseOptions, piece: ChoiceDelta, offsets: _Offsets) -> Json:
    spelled = [{_spelled(manner, token): logprob for token, logprob in top} for top in piece.tops]
    return {
        "tokens": [_spelled(manner, token) for token in piece.ids],
        "token_logprobs": piece.logprobs,
        "top_logprobs": spelled if manner.tops else None,
        "text_offset": [offsets.take(token_bytes(manner.dialect, token)) for token in piece.ids],
    }


def _spelled(manner: ResponseOptions, token: int) -> str:
    """A token's text; one that has none alone, part of a character or a control token, by its bytes or its id."""
    data = token_bytes(manner.dialect, token)
    try:
        return data.decode() or f"token_id:{token}"
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def argument_types(tool: Json) -> dict[str, tuple[str, ...]]:
    """For each argument of a tool, the JSON types that its schema names."""
    parameters = tool["function"].get("parameters") or {}
    properties = parameters.get("properties")
    if not isinstance(properties, dict):
        return {}
    return {name: tuple(_types(schema)) for name, schema in properties.items() if isinstance(schema, dict)}


def _types(schema: Json) -> Iterator[str]:
    said = schema.get("type")
    yield from (kind for kind in (said if isinstance(said, list) else [said]) if isinstance(kind, str))
    for word in ("anyOf", "oneOf"):
        options = schema.get(word)
        for option in options if isinstance(options, list) else []:
            if isinstance(option, dict):
                yield from _types(option)


_KINDS: dict[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


def _value(text: str, types: Sequence[str]) -> Any:
    """An argument as its schema wants it. Text stays text, also where it does not read as what is wanted."""
    wanted = [kind for name in types for kind in _KINDS.get(name, ())]
    if "string" in types or not wanted:
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if type(value) in wanted else text


def _clean(text: str) -> str:
    """Bytes that are no UTF-8 replaced: what goes out is text that every client can read."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _call_id() -> Json:
    return {"id": f"call_{secrets.token_hex(12)}", "type": "function"}


def _envelope(number: str, kind: str, created: int, model: str, choices: list[Json]) -> Json:
    return {"id": number, "object": kind, "created": created, "model": model, "choices": choices}
