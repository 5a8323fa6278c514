"""The JSON that goes out: whole answers and chunks of streams, in OpenAI's two spellings.

Token ids go out in the way vLLM spells them. Knows no HTTP and no engine.
"""

from __future__ import annotations

import codecs
import json
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from etude.core.policy import Call
from etude.engine.request import Top
from etude.serve.openai.choices import Choice, ChoiceDelta
from etude.serve.openai.request_models import ToolFunction
from etude.serve.openai.streaming import Delta, token_bytes
from etude.tokens.dialect import Dialect

Json = dict[str, Any]


@dataclass(frozen=True)
class ResponseOptions:
    """What of an answer goes to the client."""

    model: str
    dialect: Dialect
    logprobs: bool = False
    tops: int = 0
    token_ids: bool = False
    include_usage: bool = False


class ResponseWriter:
    """One request's answers: `whole` at once, or `begin`, `say` and `usage` chunk by chunk."""

    ends_with_done = True  # a stream, with [DONE]

    def __init__(self, options: ResponseOptions, prefix: str, chunk_kind: str) -> None:
        self.options = options
        self._chunk_kind = chunk_kind
        self._id, self._created = f"{prefix}-{secrets.token_hex(12)}", int(time.time())

    def whole(self, choices: Sequence[Choice], wholes: Sequence[ChoiceDelta]) -> Json:
        """The answer at once; `wholes` are all of each choice."""
        raise NotImplementedError

    def begin(self, choice: Choice) -> Iterator[Json]:
        """The chunks before the first piece of a choice."""
        raise NotImplementedError

    def say(self, choice: Choice, piece: ChoiceDelta) -> Iterator[Json]:
        """The chunks of a piece."""
        raise NotImplementedError

    def usage(self, choices: Sequence[Choice]) -> Json:
        """The chunk that ends a stream for those who want to know its cost."""
        return self._envelope(self._chunk_kind, []) | {"usage": usage_of(choices)}

    def _envelope(self, kind: str, choices: list[Json]) -> Json:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self.options.model,
            "choices": choices,
        }

    def _chunk(self, choice: Json) -> Json:
        chunk = self._envelope(self._chunk_kind, [choice])
        return chunk | ({"usage": None} if self.options.include_usage else {})

    def _prompt(self, choice: Choice) -> Json:
        return {"prompt_token_ids": list(choice.prompt)} if self.options.token_ids else {}

    def _tells_of_tokens(self, piece: ChoiceDelta) -> bool:
        """Tokens without text have their log-probabilities and ids all the same."""
        return bool(piece.ids) and (self.options.logprobs or self.options.token_ids)

    def _tokens(self, piece: ChoiceDelta, logprobs: Json | None) -> Json:
        return {"logprobs": logprobs} | ({"token_ids": piece.ids} if self.options.token_ids else {})


class ChatWriter(ResponseWriter):
    def __init__(self, options: ResponseOptions, functions: Sequence[ToolFunction]) -> None:
        super().__init__(options, "chatcmpl", "chat.completion.chunk")
        self._types = {function.name: argument_types(function.parameters or {}) for function in functions}
        self._calls: dict[int, int] = {}  # sent so far, by choice

    def whole(self, choices: Sequence[Choice], wholes: Sequence[ChoiceDelta]) -> Json:
        said = []
        for choice, piece in zip(choices, wholes, strict=True):
            delta = piece.delta
            silent = not delta.text and (delta.calls or delta.thinking)
            message: Json = {"role": "assistant", "content": None if silent else delta.text, "refusal": None}
            if delta.thinking:
                message["reasoning_content"] = delta.thinking
            if delta.calls:
                message["tool_calls"] = [_call_id() | {"function": self.function(call)} for call in delta.calls]
            entry: Json = {"index": choice.index, "message": message, "finish_reason": piece.finish}
            said.append(entry | self._tokens(piece, self._logprobs(piece)))
        body = self._envelope("chat.completion", said) | {"usage": usage_of(choices)}
        return body | self._prompt(choices[0])

    def begin(self, choice: Choice) -> Iterator[Json]:
        delta = {"role": "assistant", "content": ""}
        chunk = self._chunk({"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None})
        yield chunk | (self._prompt(choice) if choice.index == 0 else {})

    def say(self, choice: Choice, piece: ChoiceDelta) -> Iterator[Json]:
        deltas = list(self._deltas(choice.index, piece.delta)) or [{}] * self._tells_of_tokens(piece)
        tokens = self._tokens(piece, self._logprobs(piece))
        for delta in deltas:
            yield self._chunk({"index": choice.index, "delta": delta, "finish_reason": None} | tokens)
            # A piece's log-probabilities and ids go out once, with its first chunk.
            tokens = {"logprobs": None}
        if piece.finish is not None:
            entry = {"index": choice.index, "delta": {}, "logprobs": None, "finish_reason": piece.finish}
            yield self._chunk(entry)

    def _deltas(self, index: int, delta: Delta) -> Iterator[Json]:
        if delta.thinking:
            yield {"reasoning_content": delta.thinking}
        if delta.text:
            yield {"content": delta.text}
        for call in delta.calls:
            number = self._calls.get(index, 0)
            self._calls[index] = number + 1
            function = self.function(call)
            start = {"index": number} | _call_id() | {"function": function | {"arguments": ""}}
            yield {"tool_calls": [start]}
            yield {"tool_calls": [{"index": number, "function": {"arguments": function["arguments"]}}]}

    def function(self, call: Call) -> Json:
        types = self._types.get(call.name, {})
        values = {_clean(name): to_value(_clean(text), types.get(name, ())) for name, text in call.arguments.items()}
        return {"name": _clean(call.name), "arguments": json.dumps(values, ensure_ascii=False)}

    def _logprobs(self, piece: ChoiceDelta) -> Json | None:
        """One entry a token, those of thinking, calls and turn marks included."""
        if not self.options.logprobs:
            return None
        tops: Sequence[Top] = piece.tops or [()] * len(piece.ids)
        entries = [
            self._logprob(token, logprob) | {"top_logprobs": [self._logprob(*other) for other in top]}
            for token, logprob, top in zip(piece.ids, piece.logprobs, tops, strict=True)
        ]
        return {"content": entries, "refusal": None}

    def _logprob(self, token: int, logprob: float | None) -> Json:
        data = token_bytes(self.options.dialect, token)
        return {"token": data.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(data)}


class CompletionWriter(ResponseWriter):
    def __init__(self, options: ResponseOptions) -> None:
        super().__init__(options, "cmpl", "text_completion")
        self._offsets: dict[int, _Offsets] = {}  # by choice

    def whole(self, choices: Sequence[Choice], wholes: Sequence[ChoiceDelta]) -> Json:
        said = [self._choice(*pair) | self._prompt(pair[0]) for pair in zip(choices, wholes, strict=True)]
        return self._envelope("text_completion", said) | {"usage": usage_of(choices)}

    def begin(self, choice: Choice) -> Iterator[Json]:
        if self.options.token_ids:
            yield self._chunk(self._choice(choice, ChoiceDelta.empty()) | self._prompt(choice))

    def say(self, choice: Choice, piece: ChoiceDelta) -> Iterator[Json]:
        if piece.delta or self._tells_of_tokens(piece) or piece.finish is not None:
            yield self._chunk(self._choice(choice, piece))

    def _choice(self, choice: Choice, piece: ChoiceDelta) -> Json:
        said: Json = {"index": choice.index, "text": piece.delta.text, "finish_reason": piece.finish}
        return said | self._tokens(piece, self._logprobs(choice, piece))

    def _logprobs(self, choice: Choice, piece: ChoiceDelta) -> Json | None:
        if not self.options.logprobs:
            return None
        offsets = self._offsets.setdefault(choice.index, _Offsets())
        tops = [{self._spelled(token): logprob for token, logprob in top} or None for top in piece.tops]
        return {
            "tokens": [self._spelled(token) for token in piece.ids],
            "token_logprobs": piece.logprobs,
            "top_logprobs": tops if self.options.tops else None,
            "text_offset": [offsets.take(token_bytes(self.options.dialect, token)) for token in piece.ids],
        }

    def _spelled(self, token: int) -> str:
        """A token's text; one that has none alone, part of a character or a control token, by its bytes or its id."""
        data = token_bytes(self.options.dialect, token)
        try:
            return data.decode() or f"token_id:{token}"
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


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


@dataclass
class _Offsets:
    """Where in the answer's text each token begins."""

    at: int = 0
    decoder: codecs.IncrementalDecoder = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))

    def take(self, data: bytes) -> int:
        before = self.at
        self.at += len(self.decoder.decode(data))
        return before


def argument_types(parameters: Json) -> dict[str, tuple[str, ...]]:
    """For each argument of a tool, the JSON types that its schema names."""
    properties = parameters.get("properties", {})
    return {name: tuple(_types(schema, parameters)) for name, schema in properties.items()}


def resolved(schema: Json, root: Json) -> Json:
    """The schema that a reference inside the document names; itself where there is none."""
    for _ in range(_DEEPEST):
        path = schema.get("$ref")
        if not isinstance(path, str) or not path.startswith("#/"):
            return schema
        found: Any = root
        for word in path[2:].split("/"):
            found = found.get(word.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
        if not isinstance(found, dict):
            return schema
        schema = found
    return schema


def _types(schema: Json, root: Json) -> Iterator[str]:
    left = [schema]
    # A schema may hold itself any number of times: only so many of its parts are looked at.
    for _ in range(_MOST_PARTS):
        if not left:
            return
        schema = resolved(left.pop(), root)
        said = schema.get("type")
        yield from (kind for kind in (said if isinstance(said, list) else [said]) if isinstance(kind, str))
        if said is None:
            yield from map(_kind, _listed(schema, "enum") or [schema[word] for word in ("const",) if word in schema])
        for word in ("anyOf", "oneOf", "allOf"):
            left += (option for option in _listed(schema, word) if isinstance(option, dict))


def _listed(schema: Json, word: str) -> list[Any]:
    found = schema.get(word)
    return found if isinstance(found, list) else []


def _kind(value: Any) -> str:
    return next((kind for kind, types in _KINDS.items() if type(value) in types), "string")


_DEEPEST, _MOST_PARTS = 8, 64
_KINDS: dict[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


def to_value(text: str, types: Sequence[str]) -> Any:
    """An argument as its schema wants it. Text stays text, also where it does not read as what is wanted."""
    wanted = [kind for name in types for kind in _KINDS.get(name, ())]
    if "string" in types or not wanted:
        return text
    try:
        value = json.loads(text)
        json.dumps(value, allow_nan=False)  # Python reads NaN and 1e999, which no client could
    except (ValueError, RecursionError):
        return text
    return value if type(value) in wanted else text


def _clean(text: str) -> str:
    """Bytes that are no UTF-8 replaced: what goes out is text that every client can read."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _call_id() -> Json:
    return {"id": f"call_{secrets.token_hex(12)}", "type": "function"}
