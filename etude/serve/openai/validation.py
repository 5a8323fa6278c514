"""Reads a body with its pydantic model; what does not fit is refused with one sentence that names the field."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from etude.serve.openai.errors import ApiError
from etude.serve.openai.request_base import RequestObject
from etude.serve.openai.request_models import MOST_PROMPTS, ChatRequest, CompletionRequest

Body = TypeVar("Body", bound=RequestObject)

_WANTED = {  # by pydantic's name of the error
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "by_role": "an object",
    "by_type": "an object",
}


def read_chat(body: Any, model: type[ChatRequest]) -> ChatRequest:
    request = read_body(body, model)
    names = [tool.function.name for tool in request.tools or ()]
    if request.must_call and not names:
        raise ApiError(400, "'tool_choice' asks for a call, but there are no 'tools'", param="tool_choice")
    if request.must_call and not request.functions_offered:
        raise ApiError(400, "'tool_choice' names a function that is not among the 'tools'", param="tool_choice")
    if len(set(names)) < len(names):
        raise ApiError(400, "'tools' has two functions of one name", param="tools")
    return request


def read_completion(body: Any, model: type[CompletionRequest]) -> CompletionRequest:
    request = read_body(body, model)
    if len(request.prompt) * request.choices > MOST_PROMPTS:
        raise ApiError(400, f"'n' answers to each prompt are more than {MOST_PROMPTS} in all", param="n")
    if request.max_tokens == 0 and (request.stream or not request.echo):
        sentence = "'max_tokens' may be 0 only with 'echo', and without 'stream'"
        raise ApiError(400, sentence, param="max_tokens", code="invalid_value")
    return request


def read_body(body: Any, model: type[Body]) -> Body:
    """The body as its model has it, or a refusal in one sentence."""
    known: Any = model.model_fields["model"].json_schema_extra
    name = body.get("model") if isinstance(body, dict) else None
    if isinstance(name, str) and name not in known["enum"]:
        said = ascii(name) if len(name) <= 64 else "of that name"
        sentence = f"there is no model {said}; this server has {known['enum'][0]!r}"
        raise ApiError(404, sentence, param="model", code="model_not_found")
    try:
        return model.model_validate(body)
    except ValidationError as refused:
        errors = refused.errors(include_url=False)
        # A wrong value says more about the mistake than a field that is missing beside it.
        first = next((error for error in errors if error["type"] != "missing"), errors[0])
        raise _api_error(first, model) from None


def _api_error(error: ErrorDetails, model: type[RequestObject]) -> ApiError:
    kind, value, facts = error["type"], error["input"], error.get("ctx", {})
    # alternatives of a union have names that start with a colon (request_models)
    where = "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in error["loc"] if str(part)[:1] != ":"
    )[1:]
    if kind == "missing":
        return ApiError(400, f"'{where}' is missing", param=where, code="missing_field")
    if "field" in facts:
        name = facts["field"]
        field = f"{where}." * bool(where) + (name if len(name) <= 64 else name[:61] + "...")
        if kind == "refused":
            return ApiError(400, facts["sentence"], param=field, code="unsupported_value")
        return ApiError(400, f"'{field}' is not known here", param=field, code="unknown_field")
    if kind.startswith("by_") and isinstance(value, dict):
        where, value = f"{where}.{kind[3:]}", value.get(kind[3:])
        what = f"is {_short(value)}; it must be one of: {error['msg']}"
    elif kind == "inside":
        where, what = where + facts["path"], f"must be {error['msg']}, not {_short(facts['value'])}"
    else:
        field_info = model.model_fields.get(where)
        optional = field_info is not None and not field_info.is_required()
        what = _sentence(kind, value, facts, error["msg"], " or null" * optional)
    return ApiError(
        400, f"'{where}' {what}" if where else f"the body {what}", param=where or None, code="invalid_value"
    )


def _sentence(kind: str, value: Any, facts: dict[str, Any], message: str, or_null: str) -> str:
    match kind:
        case "kind":
            return f"must be {message}, not {_short(value)}"
        case "empty" | "string_too_short" | "too_short":
            return "must not be empty"
        case "string_too_long":
            return f"has {len(value)} characters; the most is {facts['max_length']}"
        case "too_long":
            return f"has {len(value)} entries; the most is {facts['max_length']}"
        case "greater_than_equal":
            return f"is {value}; the least is {facts['ge']:g}"
        case "less_than_equal":
            return f"is {value}; the most is {facts['le']:g}"
        case "literal_error":
            return f"is {_short(value)}; it must be one of: {facts['expected']}"
        case "string_pattern_mismatch":
            return f"is {_short(value)}; it must match {facts['pattern']}"
    return (
        f"must be {_WANTED.get(kind, 'an object' if kind.startswith('by_') else message)}{or_null}, not {_short(value)}"
    )


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else ascii(value)
    return text if len(text) <= 40 else text[:37] + "..."
