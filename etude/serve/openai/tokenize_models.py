"""The bodies of /tokenize and /detokenize, as vLLM has them."""

from __future__ import annotations

from typing import Any

from pydantic import Field, create_model

from etude.serve.openai.errors import ApiError
from etude.serve.openai.request_base import IGNORED, RequestObject
from etude.serve.openai.request_models import id_list
from etude.serve.openai.validation import read_body

MOST_TOKENS = 1 << 20


class TokenizeRequest(RequestObject):
    """A text, or a conversation with what its template needs."""

    model: str | None = None
    prompt: str | None = Field(None, description="Text; or give messages.")
    messages: list[dict[str, Any]] | None = Field(None, description="A conversation, as of /v1/chat/completions.")
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = Field(None, description="Open the turn of the assistant; true if not said.")
    add_special_tokens: bool | None = IGNORED
    return_token_strs: bool | None = IGNORED

    @property
    def chat_fields(self) -> dict[str, Any]:
        names = ("messages", "tools", "chat_template_kwargs")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


class DetokenizeRequest(RequestObject):
    model: str | None = None
    tokens: list[int]


def tokenize_models(model: str, vocab_size: int) -> tuple[type[TokenizeRequest], type[DetokenizeRequest]]:
    """The two bodies for a server of this model."""
    name: Any = (str | None, Field(None, json_schema_extra={"enum": [model, None]}))
    tokens: Any = (id_list(vocab_size, MOST_TOKENS), ...)
    return (
        create_model("TokenizeRequest", __base__=TokenizeRequest, model=name),
        create_model("DetokenizeRequest", __base__=DetokenizeRequest, model=name, tokens=tokens),
    )


def read_tokenize(body: Any, model: type[TokenizeRequest]) -> TokenizeRequest:
    request = read_body(body, model)
    if (request.prompt is None) == (request.messages is None):
        raise ApiError(400, "give either a 'prompt' or 'messages'", param="prompt", code="missing_field")
    return request


def read_detokenize(body: Any, model: type[DetokenizeRequest]) -> DetokenizeRequest:
    return read_body(body, model)
