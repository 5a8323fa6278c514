"""The OpenAPI description of the server: requests from the models that validate them, answers from the models here.

Answers are described in full, so that a client made from this page finds what it expects. They are not made with these
models (`responses` writes plain dictionaries, once a chunk); the tests compare what goes out with what stands here.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from etude.core.version import __version__
from etude.serve.openai.request_base import RequestObject

Finish = Literal["stop", "length", "tool_calls"]


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class Error(BaseModel):
    error: ErrorDetail


class TokenLogprob(BaseModel):
    token: str
    logprob: float
    bytes: list[int]


class SampledLogprob(TokenLogprob):
    top_logprobs: list[TokenLogprob]


class ChatLogprobs(BaseModel):
    content: list[SampledLogprob]


class CompletionLogprobs(BaseModel):
    tokens: list[str]
    token_logprobs: list[float | None]  # null: the first of an echoed prompt
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class PromptTokensDetails(BaseModel):
    cached_tokens: int


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class AnsweredFunction(BaseModel):
    name: str
    arguments: str


class AnsweredCall(BaseModel):
    id: str
    type: Literal["function"]
    function: AnsweredFunction


class AnsweredMessage(BaseModel):
    role: Literal["assistant"]
    content: str | None
    reasoning_content: str = ""
    tool_calls: list[AnsweredCall] = []


class ChatChoice(BaseModel):
    index: int
    message: AnsweredMessage
    finish_reason: Finish
    logprobs: ChatLogprobs | None
    token_ids: list[int] = []


class ChatCompletion(BaseModel):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: list[int] = []


class CompletionChoice(BaseModel):
    index: int
    text: str
    finish_reason: Finish
    logprobs: CompletionLogprobs | None
    token_ids: list[int] = []
    prompt_token_ids: list[int] = []


class Completion(BaseModel):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage


class Model(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class Models(BaseModel):
    object: Literal["list"]
    data: list[Model]


class Health(BaseModel):
    ok: bool


class Tokenized(BaseModel):
    tokens: list[int]
    count: int
    max_model_len: int


class Detokenized(BaseModel):
    prompt: str


class Response(BaseModel):
    id: str
    object: Literal["response"]
    created_at: int
    status: str
    model: str
    output: list[dict[str, Any]]


ANSWERS = (Error, ChatCompletion, Completion, Models, Health, Tokenized, Detokenized, Response)


def document(*bodies: type[RequestObject], key: bool) -> dict[str, Any]:
    """The whole page. With an API key, every route but /health asks for it."""
    models: list[Any] = [(model, "validation") for model in (*bodies, *ANSWERS)]
    _, schemas = models_json_schema(models, ref_template="#/components/schemas/{model}")
    name = {"name": "model", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    paths: dict[str, Any] = {
        "/v1/chat/completions": {"post": _post("Answer a conversation.", "ChatRequest", "ChatCompletion")},
        "/v1/completions": {"post": _post("Continue text or token ids.", "CompletionRequest", "Completion")},
        "/v1/responses": {"post": _post("Answer a conversation, as items.", None, "Response")},
        "/tokenize": {"post": _post("Ids of a text or a conversation.", "TokenizeRequest", "Tokenized")},
        "/detokenize": {"post": _post("The text of ids.", "DetokenizeRequest", "Detokenized")},
        "/v1/models": {"get": _get("The model that is served.", _ref("Models"), "500")},
        "/v1/models/{model}": {"get": _get("One model.", _ref("Model"), "404", "500") | {"parameters": [name]}},
        "/health": {"get": _get("Whether requests are taken.", _ref("Health"), "500", "503") | {"security": []}},
        "/metrics": {"get": _get("Counters for Prometheus.", {"type": "string"}, kind="text/plain")},
        "/openapi.json": {"get": _get("This page.", {"type": "object"})},
    }
    about = {"title": "Etude", "version": __version__, "description": "A model, served as OpenAI's clients expect."}
    components: dict[str, Any] = {"schemas": schemas["$defs"]}
    page: dict[str, Any] = {"openapi": "3.1.0", "info": about, "paths": paths, "components": components}
    if key:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        page["security"] = [{"key": []}]
    return page


def _post(about: str, body: str | None, answer: str) -> dict[str, Any]:
    statuses = ("400", "404", "408", "413", "415", "429", "500", "503", "504")
    route = _get(about, _ref(answer), *statuses)
    route["responses"]["200"]["content"]["text/event-stream"] = {}  # chunks of the same, then [DONE]
    # A body without a model of its own is translated to a chat, and validated as one.
    schema = {"type": "object", "required": ["model", "input"]} if body is None else _ref(body)
    return route | {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _get(about: str, schema: dict[str, Any], *errors: str, kind: str = "application/json") -> dict[str, Any]:
    failed = {"description": "An error, with its reason.", "content": {"application/json": {"schema": _ref("Error")}}}
    found = {"description": "The answer.", "content": {kind: {"schema": schema}}}
    return {"summary": about, "responses": {"200": found} | dict.fromkeys(("401", *errors), failed)}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}
