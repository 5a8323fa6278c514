"""What a request may say, field by field, as JSON schema: what validates is also what `/openapi.json` shows.

Three kinds of fields: those that do something here; those that OpenAI's clients send and that change no answer, which
are taken and not looked at; and those that would change the answer if this server could do them, which are refused with
a sentence unless they ask for nothing. A field in no table is refused too. Knows no HTTP.
"""

from __future__ import annotations

from typing import Any

from etude.engine.request import MOST_TOP

Table = dict[str, Any]

MOST_CHOICES = 32  # n
MOST_PROMPTS = 256  # and prompts times n
MOST_STOPS = 4
MOST_TOOLS = 128
_LARGE = 2**31 - 1


def chat_table(model: str, vocab_size: int) -> Table:
    """The body of /v1/chat/completions."""
    return _body(
        ["model", "messages"],
        {
            "messages": {"type": "array", "items": MESSAGE, "minItems": 1, "description": "The conversation so far."},
            "max_completion_tokens": _tokens("Most tokens to sample; by default as many as the context has room for."),
            "max_tokens": _tokens("The older name of max_completion_tokens; the smaller of both holds."),
            "logprobs": _flag("Tell the log-probability of every sampled token."),
            "top_logprobs": _top("Likeliest alternatives told for every token, with logprobs."),
            "tools": {"type": ["array", "null"], "items": TOOL, "maxItems": MOST_TOOLS},
            "tool_choice": TOOL_CHOICE,
            "parallel_tool_calls": _flag("false keeps only the first call of the answer."),
            **_shared(model, vocab_size),
            "store": _ignored("boolean"),
            "metadata": _ignored("object"),
            "prediction": _ignored("object"),
            "safety_identifier": _ignored("string"),
            "prompt_cache_key": _ignored("string"),
            "prompt_cache_retention": _ignored("string"),
            "service_tier": _ignored("string"),
            "response_format": _refused(
                '\'response_format\' may be {"type": "text"} only: answers cannot be forced into a schema here',
                type=["object", "null"],
                properties={"type": {"enum": ["text"]}},
                required=["type"],
                additionalProperties=False,
            ),
            "modalities": _refused(
                "'modalities' may be [\"text\"] only", type=["array", "null"], items={"enum": ["text"]}, maxItems=1
            ),
            "audio": _refused("'audio' is not possible: this server speaks text only", type="null"),
            "reasoning_effort": _refused("'reasoning_effort' has no effect on this model; leave it out", type="null"),
            "verbosity": _refused("'verbosity' has no effect on this model; leave it out", type="null"),
            "web_search_options": _refused("'web_search_options' is not possible: nothing is searched", type="null"),
            "functions": _refused("'functions' is the old name of 'tools'; use that", type="null"),
            "function_call": _refused("'function_call' is the old name of 'tool_choice'; use that", type="null"),
        },
    )


def completion_table(model: str, vocab_size: int) -> Table:
    """The body of /v1/completions."""
    ids: Table = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": vocab_size - 1}, "minItems": 1}
    text: Table = {"type": "string", "minLength": 1}
    return _body(
        ["model", "prompt"],
        {
            "prompt": {
                "anyOf": [
                    text,
                    {"type": "array", "items": text, "minItems": 1, "maxItems": MOST_PROMPTS},
                    ids,
                    {"type": "array", "items": ids, "minItems": 1, "maxItems": MOST_PROMPTS},
                ],
                "x-wanted": f"text, token ids below {vocab_size}, or a list of either, and not empty",
                "description": "Text or token ids, or several of either.",
            },
            "max_tokens": _tokens("Most tokens to sample; 16 if not said."),
            "logprobs": _top("Tell log-probabilities, with so many of the likeliest alternatives."),
            **_shared(model, vocab_size),
            "echo": _refused("'echo' is not possible: the answer never repeats the prompt", enum=[False, None]),
            "suffix": _refused("'suffix' is not possible: text is only continued", enum=["", None]),
            "best_of": _refused("'best_of' may be 1 only; ask for 'n' and choose yourself", enum=[1, None]),
        },
    )


def _shared(model: str, vocab_size: int) -> Table:
    stop: Table = {"type": "string", "minLength": 1, "maxLength": 1000}
    return {
        "model": {"type": "string", "enum": [model]},
        "n": _number("integer", "Answers to each prompt.", minimum=1, maximum=MOST_CHOICES, default=1),
        "temperature": _number(
            "number", "0 always takes the likeliest; below 0.001 counts as 0.", minimum=0, maximum=2, default=1
        ),
        "top_p": _number("number", "Sample from the likeliest that reach this share.", minimum=0, maximum=1, default=1),
        "top_k": _number("integer", "Sample from the k likeliest; 0 or -1 is off.", minimum=-1, maximum=_LARGE),
        "seed": _number(
            "integer",
            "The same seed gives the same answer; choice i samples with seed + i.",
            minimum=-(2**63),
            maximum=2**63 - 1,
        ),
        "stop": {
            "anyOf": [stop, {"type": "array", "items": stop, "maxItems": MOST_STOPS}, {"type": "null"}],
            "description": "Texts that end the answer and are cut from it.",
        },
        "stop_token_ids": {
            "type": ["array", "null"],
            "items": {"type": "integer", "minimum": 0, "maximum": vocab_size - 1},
            "maxItems": 64,
            "description": "Token ids that end the answer, beside the model's own.",
        },
        "ignore_eos": _flag("Sample on after the model's own end."),
        "stream": _flag("Answer as server-sent events."),
        "stream_options": {
            "type": ["object", "null"],
            "properties": {
                "include_usage": _flag("End the stream with a chunk that holds the usage."),
                "include_obfuscation": _ignored("boolean"),
            },
            "additionalProperties": False,
        },
        "return_token_ids": _flag("Tell the token ids of prompt and answer."),
        "user": _ignored("string"),
        "logit_bias": _refused(
            "'logit_bias' is not possible here; leave it out", type=["object", "null"], maxProperties=0
        ),
        "frequency_penalty": _refused(
            "'frequency_penalty' may be 0 only", type=["number", "null"], minimum=0, maximum=0
        ),
        "presence_penalty": _refused("'presence_penalty' may be 0 only", type=["number", "null"], minimum=0, maximum=0),
    }


def _body(required: list[str], properties: Table) -> Table:
    return {"type": "object", "required": required, "properties": properties, "additionalProperties": False}


def _number(kind: str, about: str, **rules: Any) -> Table:
    return {"type": [kind, "null"], **rules, "description": about}


def _tokens(about: str) -> Table:
    return _number("integer", about, minimum=1, maximum=_LARGE)


def _top(about: str) -> Table:
    return _number("integer", about, minimum=0, maximum=MOST_TOP)


def _flag(about: str) -> Table:
    return {"type": ["boolean", "null"], "description": about}


def _ignored(kind: str) -> Table:
    return {"type": [kind, "null"], "description": "Taken and not looked at."}


def _refused(sentence: str, **harmless: Any) -> Table:
    return {**harmless, "x-refused": sentence, "description": sentence}


# Messages


def _part(kind: str) -> Table:
    properties = {"type": {"type": "string", "enum": [kind]}, kind: {"type": "string"}}
    if kind == "text":
        properties["cache_control"] = _ignored("object")
    return {"type": "object", "required": ["type", kind], "properties": properties, "additionalProperties": False}


def _content(*kinds: str, null: bool = False) -> Table:
    parts = [_part(kind) for kind in kinds]
    item = parts[0] if len(parts) == 1 else {"anyOf": parts, "x-told-apart-by": "type"}
    options: list[Table] = [{"type": "string"}, {"type": "array", "items": item, "minItems": 1}]
    return {"anyOf": [*options, {"type": "null"}] if null else options}


def _message(role: str, required: list[str], **fields: Table) -> Table:
    properties = {"role": {"type": "string", "enum": [role]}, "name": _ignored("string"), **fields}
    return {
        "type": "object",
        "required": ["role", *required],
        "properties": properties,
        "additionalProperties": False,
    }


_NAME: Table = {"type": "string", "pattern": "^[a-zA-Z0-9_.-]{1,64}$"}

_CALL: Table = {
    "type": "object",
    "required": ["id", "function"],
    "properties": {
        "id": {"type": "string", "minLength": 1, "maxLength": 256},
        "type": {"type": "string", "enum": ["function"]},
        "index": _ignored("integer"),  # clients that put a stream together leave it in
        "function": {
            "type": "object",
            "required": ["name", "arguments"],
            "properties": {
                "name": {"type": "string", "minLength": 1, "maxLength": 256},
                "arguments": {"type": "string", "description": "A JSON object, as text."},
            },
            "additionalProperties": False,
        },
        "provider_specific_fields": _ignored("object"),
    },
    "additionalProperties": False,
}

MESSAGE: Table = {
    "anyOf": [
        _message("system", ["content"], content=_content("text")),
        _message("developer", ["content"], content=_content("text")),
        _message("user", ["content"], content=_content("text")),
        _message(
            "assistant",
            [],
            content=_content("text", "refusal", null=True),
            reasoning_content={"type": ["string", "null"]},
            tool_calls={"type": ["array", "null"], "items": _CALL, "maxItems": MOST_TOOLS},
            refusal={"type": ["string", "null"]},
            annotations=_ignored("array"),
            provider_specific_fields=_ignored("object"),
            audio=_refused("'audio' is not possible: this server speaks text only", type="null"),
            function_call=_refused("'function_call' is the old name of 'tool_calls'; use that", type="null"),
        ),
        _message(
            "tool",
            ["content", "tool_call_id"],
            content=_content("text"),
            tool_call_id={"type": "string", "minLength": 1, "maxLength": 256},
        ),
    ],
    "x-told-apart-by": "role",
}

TOOL: Table = {
    "type": "object",
    "required": ["type", "function"],
    "properties": {
        "type": {"type": "string", "enum": ["function"]},
        "function": {
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": _NAME,
                "description": {"type": ["string", "null"]},
                "parameters": {
                    "type": ["object", "null"],
                    "properties": {"properties": {"type": "object", "additionalProperties": {"type": "object"}}},
                    "description": "A JSON schema of the arguments.",
                },
                "strict": {"type": ["boolean", "null"], "description": "Taken; arguments are not forced to fit."},
            },
            "additionalProperties": False,
        },
        "cache_control": _ignored("object"),
    },
    "additionalProperties": False,
}

TOOL_CHOICE: Table = _refused(
    '\'tool_choice\' may be "auto", "none" or "required"; to ask for one function, send only that one as a tool, '
    'with "required"',
    enum=["auto", "none", "required", None],
)
