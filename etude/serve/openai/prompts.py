"""Messages and tools of a request to token ids, in the way of the model that is served.

Checked requests in, ids out. What a message looks like in tokens is the dialect's business; here is only what
OpenAI's messages mean, such as whose call a tool's result answers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from etude.core.policy import Assistant, Call, Message, System, ToolResult, User
from etude.serve.openai.errors import ApiError
from etude.serve.openai.request_models import (
    AssistantMessage,
    ChatRequest,
    CompletionRequest,
    PlainMessage,
    RefusalPart,
    TextPart,
    ToolCall,
    ToolFunction,
)
from etude.serve.openai.request_models import Message as MessageModel
from etude.tokens.dialect import Dialect, ToolSchema
from etude.tokens.render import Rendered
from etude.tokens.template import RESERVED, TemplateDialect

NORMALISED = 4  # times a tokenizer may shorten a text before it encodes it
MOST_VARIANTS = 16  # sets of template variables whose dialects are kept
_PLAIN = re.compile(r"[\w .-]{0,64}", re.ASCII)  # of which no control token can be made


class Prompts:
    """Turns what is asked into ids, for contexts of so many tokens."""

    def __init__(self, dialect: Dialect, context: int) -> None:
        self.context = context
        self._dialect = dialect
        longest = max(len(dialect.bytes_of(token)) for token in range(dialect.vocab_size))
        self._most = NORMALISED * context * longest  # characters; no text that is longer can fit
        self._variants: dict[str, Dialect] = {}

    def refuse_sum(self, body: Any) -> None:
        """Refuses what cannot fit whatever it says: before it is validated, which costs more than to count."""
        messages = body.get("messages") if isinstance(body, dict) else None
        if not isinstance(messages, list):
            return
        if len(messages) > self.context:  # each is at least one token
            raise self._too_long(f"{len(messages)} messages")
        contents = (message.get("content") for message in messages if isinstance(message, dict))
        self._fit(sum(len(content) for content in contents if isinstance(content, str)))

    def dialect(self, options: Mapping[str, Any]) -> Dialect:
        """The model's dialect with further variables for its chat template; our own format has none."""
        if not options or not isinstance(self._dialect, TemplateDialect):
            return self._dialect
        for name, value in options.items():
            safe = isinstance(value, bool | int | float) or (isinstance(value, str) and _PLAIN.fullmatch(value))
            if not safe or not name.isidentifier() or name in RESERVED:
                sentence = f"the chat template's variable {name[:64]!a} must be a number, a flag or plain words"
                raise ApiError(400, sentence, param="chat_template_kwargs", code="invalid_value")
        key = json.dumps(options, sort_keys=True)
        if key not in self._variants:
            while len(self._variants) >= MOST_VARIANTS:
                del self._variants[next(iter(self._variants))]
            self._variants[key] = self._dialect.with_options(options)
        return self._variants[key]

    def of_chat(self, request: ChatRequest, *, open_turn: bool = True) -> list[int]:
        messages = read_messages(request.messages)
        self._fit(sum(len(one.final if isinstance(one, Assistant) else one.text) for one in messages))
        rendered = Rendered()
        dialect, tools = self.dialect(request.template_options), tool_schemas(request.functions_offered)
        dialect.extend(rendered, messages, open_turn=open_turn, tools=tools)
        return rendered.ids

    def of_texts(self, request: CompletionRequest) -> list[list[int]]:
        return [self.encoded(prompt) if isinstance(prompt, str) else prompt for prompt in request.prompt]

    def room(self, prompt: int, wanted: int) -> int:
        """How many tokens an answer may have: what was asked for, or what the context has room for if that is less."""
        room = self.context - prompt
        if room < 1:
            raise self._too_long(f"{prompt} tokens")
        return min(room, wanted) if wanted else room

    def encoded(self, text: str) -> list[int]:
        self._fit(len(text))
        return self._dialect.encode(text)

    def _fit(self, characters: int) -> None:
        """Encoding takes a hundred bytes of memory a token: a text that cannot fit is refused before."""
        if characters > self._most:
            raise self._too_long(f"{characters} characters")

    def _too_long(self, what: str) -> ApiError:
        # "maximum context length" are OpenAI's words, by which clients know this error from others.
        sentence = (
            f"this model's maximum context length is {self.context} tokens, answer included; the prompt has {what}"
        )
        return ApiError(400, sentence, code="context_length_exceeded")


def tool_schemas(functions: Sequence[ToolFunction]) -> list[ToolSchema]:
    nothing = {"type": "object", "properties": {}}
    return [ToolSchema(one.name, one.description or "", one.parameters or nothing) for one in functions]


def read_messages(messages: Sequence[MessageModel]) -> list[Message]:
    names: dict[str, str] = {}  # of the calls so far, by their id
    found: list[Message] = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if isinstance(message, PlainMessage):
            found.append((User if message.role == "user" else System)(_text(message.content)))
        elif isinstance(message, AssistantMessage):
            calls = message.tool_calls or []
            names |= {call.id: call.function.name for call in calls}
            said = _text(message.content) or message.refusal or ""
            made = tuple(_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls))
            found.append(Assistant(message.reasoning_content or "", said, made))
        elif (name := names.get(message.tool_call_id)) is not None:
            found.append(ToolResult(name, _text(message.content)))
        else:
            sentence = f"'{where}.tool_call_id' answers no call of an assistant's message before it"
            raise ApiError(400, sentence, param=f"{where}.tool_call_id", code="invalid_value")
    return found


def _text(content: str | Sequence[TextPart | RefusalPart] | None) -> str:
    """Content as one text; parts follow each other as they are."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text if isinstance(part, TextPart) else part.refusal for part in content)


def _call(call: ToolCall, where: str) -> Call:
    try:
        arguments = json.loads(call.function.arguments or "{}")
        json.dumps(arguments, ensure_ascii=False).encode()  # no half of a surrogate pair, which would pass for a byte
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        sentence = f"'{where}.function.arguments' must be a JSON object, as text"
        raise ApiError(400, sentence, param=f"{where}.function.arguments", code="invalid_value")
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in arguments.items()}
    return Call(call.function.name, texts)
