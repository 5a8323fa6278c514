"""What a request may say, field by field, as pydantic models: they validate it, and `/openapi.json` shows their schema.

Three kinds of fields: those that do something here; those that OpenAI's clients send and that change no answer, which
are taken and not looked at (IGNORED); and those that would change the answer if this server could do them, which are
refused with a sentence unless they ask for nothing. Any other field is refused too. How a refusal reads is the business
of `validation`.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, WithJsonSchema, create_model
from pydantic_core import PydanticCustomError

from etude.core.policy import Sampling
from etude.engine.logit_rules import MOST_BIASES, Constraint, LogitRules
from etude.engine.request import COLDEST, MOST_TOP
from etude.serve.openai.request_base import IGNORED, RequestObject, TolerantObject, Whole, refused, whole

MOST_CHOICES = 32  # n
MOST_PROMPTS = 256  # and prompts times n
MOST_STOPS = 64
MOST_TOOLS = 128
LEAST_TOP_P = 1e-6  # the likeliest token alone, whatever 0 would mean
COMPLETION_TOKENS = 16  # what /v1/completions samples when nobody says
_LARGE = 2**31 - 1


def _json_kind(value: Any) -> str | None:
    kinds = {str: ":text", list: ":list", type(None): ":null"}
    return kinds.get(type(value))


def _text_or_list(wanted: str) -> Discriminator:
    return Discriminator(_json_kind, custom_error_type="kind", custom_error_message=wanted)


Tokens = Annotated[int, Field(ge=1, le=_LARGE), BeforeValidator(whole)]
# The schema says 1: of 0, which needs `echo`, it could not say so.
TokensOrNone = Annotated[
    int,
    Field(ge=0, le=_LARGE),
    BeforeValidator(whole),
    WithJsonSchema({"type": "integer", "minimum": 1, "maximum": _LARGE}),
]
Tops = Annotated[int, Field(ge=0, le=MOST_TOP), BeforeValidator(whole)]
Choices = Annotated[int, Field(ge=1, le=MOST_CHOICES), BeforeValidator(whole)]
TopK = Annotated[int, Field(ge=-1, le=_LARGE), BeforeValidator(whole)]
Seed = Annotated[int, Field(ge=-(2**63), le=2**63 - 1), BeforeValidator(whole)]
Identifier = Annotated[str, Field(min_length=1, max_length=256)]
StopText = Annotated[str, Field(min_length=1, max_length=1000)]
Stop = Annotated[
    Annotated[StopText, Tag(":text")]
    | Annotated[list[StopText], Field(max_length=MOST_STOPS, fail_fast=True), Tag(":list")]
    | Annotated[None, Tag(":null")],
    _text_or_list("text or a list or null"),
]


def _ids_schema(vocab_size: int, **rules: int) -> dict[str, Any]:
    return {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": vocab_size - 1}, **rules}


def _are_ids(value: Any, vocab_size: int) -> bool:
    # a list may hold a million: compared by its ends, not one by one
    return isinstance(value, list) and (
        not value or ({*map(type, value)} == {int} and min(value) >= 0 and max(value) < vocab_size)
    )


def id_list(vocab_size: int, most: int) -> Any:
    def check(value: list[Any]) -> list[int]:
        ids = list(map(whole, value))
        if not _are_ids(ids, vocab_size):
            raise PydanticCustomError("kind", f"token ids from 0 to {vocab_size - 1}")
        return ids

    schema = _ids_schema(vocab_size, maxItems=most)
    return Annotated[list[Any], Field(max_length=most), AfterValidator(check), WithJsonSchema(schema)]


def _prompts(vocab_size: int) -> Any:
    """Text or token ids, or several of either; read as a list of prompts."""

    def read(value: Any) -> list[str | list[int]]:
        if value == "":
            raise PydanticCustomError("empty", "")
        several = isinstance(value, list) and value and isinstance(value[0], str | list)
        found = [p if isinstance(p, str) else _numbers(p) for p in (value if several else [value])]
        alike = len({*map(type, found)}) == 1 and len(found) <= MOST_PROMPTS
        if not alike or not all(p and (isinstance(p, str) or _are_ids(p, vocab_size)) for p in found):
            raise PydanticCustomError("kind", f"text, token ids below {vocab_size}, or a list of either, and not empty")
        return found

    text, ids = {"type": "string", "minLength": 1}, _ids_schema(vocab_size, minItems=1)
    many = [{"type": "array", "items": one, "minItems": 1, "maxItems": MOST_PROMPTS} for one in (text, ids)]
    about = "Text or token ids, or several of either."
    return Annotated[Any, AfterValidator(read), WithJsonSchema({"anyOf": [text, ids, *many], "description": about})]


def _numbers(value: Any) -> Any:
    return list(map(whole, value)) if isinstance(value, list) and float in {*map(type, value)} else value


# Messages and tools


class TextPart(TolerantObject):
    type: Literal["text"]
    text: str
    cache_control: dict[str, Any] | None = IGNORED


class RefusalPart(TolerantObject):
    type: Literal["refusal"]
    refusal: str


def _tag_by(key: str, tags: dict[str, str]) -> Discriminator:
    """The alternative that an object names by one of its fields."""

    def tag(value: Any) -> str | None:
        name = value.get(key) if isinstance(value, dict) else None
        return tags.get(name) if isinstance(name, str) else None

    return Discriminator(tag, custom_error_type=f"by_{key}", custom_error_message=", ".join(tags))


AssistantPart = Annotated[
    Annotated[TextPart, Tag(":text part")] | Annotated[RefusalPart, Tag(":refusal part")],
    _tag_by("type", {"text": ":text part", "refusal": ":refusal part"}),
]
Content = Annotated[
    Annotated[str, Tag(":text")]
    | Annotated[list[TextPart], Field(min_length=1, fail_fast=True), Tag(":list")]
    | Annotated[None, Tag(":null")],
    _text_or_list("text or a list or null"),
]
AssistantContent = Annotated[
    Annotated[str, Tag(":text")]
    | Annotated[list[AssistantPart], Field(min_length=1, fail_fast=True), Tag(":list")]
    | Annotated[None, Tag(":null")],
    _text_or_list("text or a list or null"),
]


class CalledFunction(TolerantObject):
    name: Identifier
    arguments: str = Field(description="A JSON object, as text.")


class ToolCall(TolerantObject):
    id: Identifier
    type: Literal["function"] = "function"
    index: Whole | None = IGNORED  # clients that put a stream together leave it in
    function: CalledFunction
    provider_specific_fields: dict[str, Any] | None = IGNORED


class PlainMessage(TolerantObject):
    role: Literal["system", "developer", "user"]
    name: str | None = IGNORED
    content: Content


class AssistantMessage(TolerantObject):
    role: Literal["assistant"]
    name: str | None = IGNORED
    content: AssistantContent = None
    reasoning_content: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=MOST_TOOLS, fail_fast=True)] | None = None
    refusal: str | None = None
    annotations: list[Any] | None = IGNORED
    provider_specific_fields: dict[str, Any] | None = IGNORED
    audio: Any = refused("'audio' is not possible: this server speaks text only")
    function_call: Any = refused("'function_call' is the old name of 'tool_calls'; use that")


class ToolMessage(TolerantObject):
    role: Literal["tool"]
    name: str | None = IGNORED
    content: Content
    tool_call_id: Identifier


Message = PlainMessage | AssistantMessage | ToolMessage
TaggedMessage = Annotated[
    Annotated[PlainMessage, Tag(":plain")]
    | Annotated[AssistantMessage, Tag(":assistant")]
    | Annotated[ToolMessage, Tag(":tool")],
    _tag_by(
        "role",
        {"system": ":plain", "developer": ":plain", "user": ":plain", "assistant": ":assistant", "tool": ":tool"},
    ),
]


def _argument_schema(parameters: dict[str, Any]) -> dict[str, Any]:
    """A JSON schema of which only as much is looked at as the server itself reads."""
    properties = parameters.get("properties", {})
    if not isinstance(properties, dict):
        raise PydanticCustomError("inside", "an object", {"path": ".properties", "value": properties})
    for name, schema in properties.items():
        if not isinstance(schema, dict):
            raise PydanticCustomError("inside", "an object", {"path": f".properties.{name}", "value": schema})
    return parameters


class ToolFunction(RequestObject):
    name: str = Field(pattern="^[a-zA-Z0-9_.-]{1,64}$")
    description: str | None = None
    parameters: (
        Annotated[
            dict[str, Any],
            AfterValidator(_argument_schema),
            WithJsonSchema(
                {
                    "type": "object",
                    "properties": {"properties": {"type": "object", "additionalProperties": {"type": "object"}}},
                    "description": "A JSON schema of the arguments.",
                }
            ),
        ]
        | None
    ) = None
    strict: bool | None = Field(None, description="Refuse where a call that is required cannot be forced to fit.")


class Tool(RequestObject):
    type: Literal["function"]
    function: ToolFunction
    cache_control: dict[str, Any] | None = IGNORED


class StreamOptions(RequestObject):
    include_usage: bool | None = Field(None, description="End the stream with a chunk that holds the usage.")
    include_obfuscation: bool | None = IGNORED


def _tool_choice(value: Any) -> Any:
    """A word, or the name of the one function that must be called."""
    if isinstance(value, dict):
        function = value.get("function", value)  # /v1/responses has the name beside the type
        name = function.get("name") if value.get("type") == "function" and isinstance(function, dict) else None
        if isinstance(name, str):
            return NamedChoice(name)
    elif value in (None, "auto", "none", "required"):
        return value
    wanted = '"auto", "none", "required" or {"type": "function", "function": {"name": ...}}'
    raise PydanticCustomError("kind", wanted)


@dataclass(frozen=True)
class NamedChoice:
    name: str


_NAMED = {"type": "object", "properties": {"type": {"const": "function"}}, "required": ["type"]}
ToolChoice = Annotated[
    Any, AfterValidator(_tool_choice), WithJsonSchema({"anyOf": [{"enum": [None, "auto", "none", "required"]}, _NAMED]})
]


class SchemaFormat(RequestObject):
    name: str | None = IGNORED
    description: str | None = IGNORED
    strict: bool | None = Field(None, description="Taken: answers always fit the schema.")
    schema_: dict[str, Any] | None = Field(None, alias="schema")


class ResponseFormat(RequestObject):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: SchemaFormat | None = None

    @property
    def json_rule(self) -> dict[str, Any] | None:
        """The JSON schema that the answer must fit; None where it is plain text."""
        if self.type == "text":
            return None
        wanted = self.json_schema.schema_ if self.type == "json_schema" and self.json_schema else None
        return wanted if wanted is not None else {"type": "object"}


def below(count: int) -> str:
    """A pattern of the decimal numbers from 0 to count - 1: schemas have no other way to bound a field's name."""
    last = str(count - 1)
    parts = [f"[0-9]{{1,{len(last) - 1}}}"] if len(last) > 1 else []
    for place, digit in enumerate(last):
        if digit != "0":
            parts.append(f"{last[:place]}[0-{int(digit) - 1}][0-9]{{{len(last) - place - 1}}}")
    return f"^({'|'.join([*parts, last])})$"


def _biases(vocab_size: int) -> Any:
    pattern = re.compile(below(vocab_size))

    def check(value: Any) -> dict[int, float]:
        if not isinstance(value, dict) or len(value) > MOST_BIASES or not all(map(pattern.fullmatch, value)):
            raise PydanticCustomError("kind", f"an object of at most {MOST_BIASES} token ids below {vocab_size}")
        if not all(type(bias) in (int, float) and -100 <= bias <= 100 for bias in value.values()):
            raise PydanticCustomError("kind", "an object of numbers from -100 to 100")
        return {int(key): float(bias) for key, bias in value.items()}

    schema: dict[str, Any] = {
        "type": "object",
        "maxProperties": MOST_BIASES,
        "propertyNames": {"pattern": pattern.pattern},
    }
    schema["additionalProperties"] = {"type": "number", "minimum": -100, "maximum": 100}
    return Annotated[Any, AfterValidator(check), WithJsonSchema(schema)]


Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]


# The two bodies


class GenerationRequest(RequestObject):
    """What both routes have in common."""

    model: str
    n: Choices | None = Field(1, description="Answers to each prompt.")
    temperature: float | None = Field(
        1, ge=0, le=2, allow_inf_nan=False, description="0 always takes the likeliest; below 0.001 counts as 0."
    )
    top_p: float | None = Field(
        1, ge=0, le=1, allow_inf_nan=False, description="Sample from the likeliest that reach this share."
    )
    top_k: TopK | None = Field(None, description="Sample from the k likeliest; 0 or -1 is off.")
    seed: Seed | None = Field(None, description="The same seed gives the same answer; choice i samples with seed + i.")
    stop: Stop = Field(None, description="Texts that end the answer and are cut from it.")
    stop_token_ids: list[int] | None = Field(None, description="Token ids that end the answer, beside the model's own.")
    ignore_eos: bool | None = Field(None, description="Sample on after the model's own end.")
    stream: bool | None = Field(None, description="Answer as server-sent events.")
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = Field(None, description="Tell the token ids of prompt and answer.")
    user: str | None = IGNORED
    logit_bias: dict[int, float] | None = Field(None, description="Added to the logits of token ids.")
    frequency_penalty: Penalty | None = Field(None, description="Taken from a token's logit for each time it came.")
    presence_penalty: Penalty | None = Field(None, description="Taken once from the logit of each token that came.")
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100, allow_inf_nan=False)] | None = Field(
        None, description="Divides positive logits of tokens of prompt and answer, and multiplies negative ones."
    )
    min_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = Field(
        None, description="Cut tokens below this share of the likeliest."
    )
    min_tokens: Annotated[int, Field(ge=0, le=_LARGE), BeforeValidator(whole)] | None = Field(
        None, description="Before so many tokens the answer does not end by itself."
    )

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def rules(self, constraint: Constraint | None = None) -> LogitRules:
        """New ones for each answer: they remember what came."""
        return LogitRules(
            frequency_penalty=self.frequency_penalty or 0.0,
            presence_penalty=self.presence_penalty or 0.0,
            repetition_penalty=self.repetition_penalty or 1.0,
            logit_bias=self.logit_bias or {},
            min_p=self.min_p or 0.0,
            min_tokens=self.min_tokens or 0,
            constraint=constraint,
        )

    def sampling(self, limit: int, tops: int) -> Sampling:
        """Of choice 0."""
        temperature = 1.0 if self.temperature is None else self.temperature
        return Sampling(
            max_tokens=limit,
            temperature=temperature if temperature >= COLDEST else 0.0,
            top_p=max(1.0 if self.top_p is None else self.top_p, LEAST_TOP_P),
            top_k=max(0, self.top_k or 0),
            # A seed of its own, so that equal requests without one differ.
            seed=self.seed if self.seed is not None else secrets.randbits(63),
            stop_ids=tuple(self.stop_token_ids or ()),
            top_logprobs=tops,
        )


class ChatRequest(GenerationRequest):
    """The body of /v1/chat/completions."""

    messages: list[TaggedMessage] = Field(min_length=1, fail_fast=True, description="The conversation so far.")
    max_completion_tokens: Tokens | None = Field(
        None, description="Most tokens to sample; by default as many as the context has room for."
    )
    max_tokens: Tokens | None = Field(
        None, description="The older name of max_completion_tokens; the smaller of both holds."
    )
    logprobs: bool | None = Field(None, description="Tell the log-probability of every sampled token.")
    top_logprobs: Tops | None = Field(None, description="Likeliest alternatives told for every token, with logprobs.")
    tools: Annotated[list[Tool], Field(max_length=MOST_TOOLS, fail_fast=True)] | None = None
    tool_choice: ToolChoice = Field(None, description="Whether a function must be called, or which.")
    parallel_tool_calls: bool | None = Field(None, description="false keeps only the first call of the answer.")
    store: bool | None = IGNORED
    metadata: dict[str, Any] | None = IGNORED
    prediction: dict[str, Any] | None = IGNORED
    safety_identifier: str | None = IGNORED
    prompt_cache_key: str | None = IGNORED
    prompt_cache_retention: str | None = IGNORED
    service_tier: str | None = IGNORED
    response_format: ResponseFormat | None = Field(None, description="Text, a JSON object, or what fits a schema.")
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="Variables for the model's chat template.")
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = Field(
        None, description="A variable for the chat template; none also turns its thinking off."
    )
    modalities: Any = refused("'modalities' may be [\"text\"] only", [], ["text"])
    audio: Any = refused("'audio' is not possible: this server speaks text only")
    verbosity: Any = refused("'verbosity' has no effect on this model; leave it out")
    web_search_options: Any = refused("'web_search_options' is not possible: nothing is searched")
    functions: Any = refused("'functions' is the old name of 'tools'; use that")
    function_call: Any = refused("'function_call' is the old name of 'tool_choice'; use that")

    @property
    def limit(self) -> int:
        """Most tokens of an answer; 0 where the context alone is the limit."""
        return min((most for most in (self.max_completion_tokens, self.max_tokens) if most is not None), default=0)

    @property
    def tops(self) -> int:
        return self.top_logprobs or 0

    @property
    def wants_logprobs(self) -> bool:
        return bool(self.logprobs or self.top_logprobs)

    @property
    def functions_offered(self) -> list[ToolFunction]:
        offered = [] if self.tool_choice == "none" else [tool.function for tool in self.tools or ()]
        named = self.tool_choice.name if isinstance(self.tool_choice, NamedChoice) else None
        return [one for one in offered if named in (None, one.name)]

    @property
    def must_call(self) -> bool:
        return self.tool_choice == "required" or isinstance(self.tool_choice, NamedChoice)

    @property
    def json_rule(self) -> dict[str, Any] | None:
        return self.response_format.json_rule if self.response_format is not None else None

    @property
    def template_options(self) -> dict[str, Any]:
        effort = self.reasoning_effort
        told: dict[str, Any] = {} if effort is None else {"reasoning_effort": effort}
        return told | ({"enable_thinking": False} if effort == "none" else {}) | (self.chat_template_kwargs or {})


class CompletionRequest(GenerationRequest):
    """The body of /v1/completions."""

    prompt: list[str | list[int]]
    max_tokens: TokensOrNone | None = Field(
        None, description="Most tokens to sample; 16 if not said; 0 only with echo."
    )
    logprobs: Tops | None = Field(
        None, description="Tell log-probabilities, with so many of the likeliest alternatives."
    )
    echo: bool | None = Field(None, description="Begin with the prompt; with logprobs, tell those of its tokens.")
    suffix: Any = refused("'suffix' is not possible: text is only continued", "")
    best_of: Any = refused("'best_of' may be 1 only; ask for 'n' and choose yourself", 1)

    @property
    def limit(self) -> int:
        return COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens

    @property
    def tops(self) -> int:
        return self.logprobs or 0

    @property
    def wants_logprobs(self) -> bool:
        return self.logprobs is not None


def request_models(model: str, vocab_size: int) -> tuple[type[ChatRequest], type[CompletionRequest]]:
    """The two bodies for a server of this model: its name and the size of its vocabulary are in their schemas."""
    name: Any = (str, Field(json_schema_extra={"enum": [model]}))
    stop_ids: Any = (id_list(vocab_size, MOST_STOPS) | None, GenerationRequest.model_fields["stop_token_ids"])
    biases: Any = (_biases(vocab_size) | None, GenerationRequest.model_fields["logit_bias"])
    own: dict[str, Any] = {"model": name, "stop_token_ids": stop_ids, "logit_bias": biases}
    chat = create_model("ChatRequest", __base__=ChatRequest, **own)
    prompt: Any = (_prompts(vocab_size), ...)
    completion = create_model("CompletionRequest", __base__=CompletionRequest, **own, prompt=prompt)
    return chat, completion
