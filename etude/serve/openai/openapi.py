"""The OpenAPI description of the server, from the tables that validate its requests.

What a request may say is not written twice: a body that fits the tables here is one that `asks` reads. Answers are
described in full, so that a client made from this page finds what it expects.
"""

from __future__ import annotations

from typing import Any

from etude.core.version import __version__
from etude.serve.openai.schema import Table

_TEXT: Table = {"type": "string"}
_OR_NULL: Table = {"type": ["string", "null"]}
_COUNT: Table = {"type": "integer", "minimum": 0}
_IDS: Table = {"type": "array", "items": _COUNT}


def _object(required: str, **properties: Table) -> Table:
    return {"type": "object", "required": required.split(), "properties": properties}


def _list(items: Table) -> Table:
    return {"type": "array", "items": items}


def _or_null(table: Table) -> Table:
    return {"anyOf": [table, {"type": "null"}]}


_TOKEN = _object("token logprob bytes", token=_TEXT, logprob={"type": "number"}, bytes=_IDS)
_CHAT_LOGPROBS = _object(
    "content",
    content=_list(_object("token logprob bytes top_logprobs", **_TOKEN["properties"], top_logprobs=_list(_TOKEN))),
)
_COMPLETION_LOGPROBS = _object(
    "tokens token_logprobs top_logprobs text_offset",
    tokens=_list(_TEXT),
    token_logprobs=_list({"type": "number"}),
    top_logprobs=_or_null(_list({"type": "object", "additionalProperties": {"type": "number"}})),
    text_offset=_IDS,
)
_USAGE = _object(
    "prompt_tokens completion_tokens total_tokens",
    prompt_tokens=_COUNT,
    completion_tokens=_COUNT,
    total_tokens=_COUNT,
    prompt_tokens_details=_object("cached_tokens", cached_tokens=_COUNT),
)
_CALL = _object(
    "id type function",
    id=_TEXT,
    type={"enum": ["function"]},
    function=_object("name arguments", name=_TEXT, arguments=_TEXT),
)
_FINISH: Table = {"enum": ["stop", "length", "tool_calls"]}

COMPONENTS: dict[str, Table] = {
    "Error": _object(
        "error", error=_object("message type param code", message=_TEXT, type=_TEXT, param=_OR_NULL, code=_OR_NULL)
    ),
    "ChatCompletion": _object(
        "id object created model choices usage",
        id=_TEXT,
        object={"enum": ["chat.completion"]},
        created=_COUNT,
        model=_TEXT,
        choices=_list(
            _object(
                "index message finish_reason logprobs",
                index=_COUNT,
                message=_object(
                    "role content",
                    role={"enum": ["assistant"]},
                    content=_OR_NULL,
                    reasoning_content=_TEXT,
                    tool_calls=_list(_CALL),
                ),
                finish_reason=_FINISH,
                logprobs=_or_null(_CHAT_LOGPROBS),
                token_ids=_IDS,
            )
        ),
        usage=_USAGE,
        prompt_token_ids=_IDS,
    ),
    "Completion": _object(
        "id object created model choices usage",
        id=_TEXT,
        object={"enum": ["text_completion"]},
        created=_COUNT,
        model=_TEXT,
        choices=_list(
            _object(
                "index text finish_reason logprobs",
                index=_COUNT,
                text=_TEXT,
                finish_reason=_FINISH,
                logprobs=_or_null(_COMPLETION_LOGPROBS),
                token_ids=_IDS,
                prompt_token_ids=_IDS,
            )
        ),
        usage=_USAGE,
    ),
    "Model": _object(
        "id object created owned_by",
        id=_TEXT,
        object={"enum": ["model"]},
        created=_COUNT,
        owned_by=_TEXT,
        max_model_len=_COUNT,
    ),
    "Models": _object("object data", object={"enum": ["list"]}, data=_list({"$ref": "#/components/schemas/Model"})),
    "Health": _object("ok", ok={"type": "boolean"}),
}


def document(chat: Table, completion: Table, *, key: bool) -> dict[str, Any]:
    """The whole page. With an API key, every route but /health asks for it."""
    model = {"name": "model", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    paths: dict[str, Any] = {
        "/v1/chat/completions": {"post": _ask("Answer a conversation.", "ChatRequest", "ChatCompletion")},
        "/v1/completions": {"post": _ask("Continue text or token ids.", "CompletionRequest", "Completion")},
        "/v1/models": {"get": _get("The model that is served.", "Models")},
        "/v1/models/{model}": {"get": _get("One model.", "Model", "404") | {"parameters": [model]}},
        "/health": {"get": _get("Whether requests are taken.", "Health", "503") | {"security": []}},
        "/metrics": {"get": _plain("Counters for Prometheus.", "text/plain")},
        "/openapi.json": {"get": _plain("This page.", "application/json")},
    }
    page: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "Etude",
            "version": __version__,
            "description": "A model, served as OpenAI's clients expect.",
        },
        "paths": paths,
        "components": {"schemas": {"ChatRequest": chat, "CompletionRequest": completion, **COMPONENTS}},
    }
    if key:
        page["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        page["security"] = [{"key": []}]
    return page


def _ask(about: str, body: str, answer: str) -> dict[str, Any]:
    content: dict[str, Any] = {
        "application/json": {"schema": _ref(answer)},
        "text/event-stream": {},  # chunks of the same, then [DONE]
    }
    statuses = ("400", "401", "404", "408", "413", "415", "429", "500", "503", "504")
    return {
        "summary": about,
        "requestBody": {"required": True, "content": {"application/json": {"schema": _ref(body)}}},
        "responses": {"200": {"description": "The answer.", "content": content}} | _errors(*statuses),
    }


def _get(about: str, answer: str, *statuses: str) -> dict[str, Any]:
    content = {"application/json": {"schema": _ref(answer)}}
    return {
        "summary": about,
        "responses": {"200": {"description": "Found.", "content": content}} | _errors("401", "500", *statuses),
    }


def _plain(about: str, kind: str) -> dict[str, Any]:
    schema = {"type": "string"} if kind == "text/plain" else {"type": "object"}
    content = {kind: {"schema": schema}}
    return {"summary": about, "responses": {"200": {"description": "Found.", "content": content}} | _errors("401")}


def _errors(*statuses: str) -> dict[str, Any]:
    content = {"application/json": {"schema": _ref("Error")}}
    return {status: {"description": "An error, with its reason.", "content": content} for status in statuses}


def _ref(name: str) -> Table:
    return {"$ref": f"#/components/schemas/{name}"}
