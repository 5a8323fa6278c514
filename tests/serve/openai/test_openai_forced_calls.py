"""Calls that are asked for: whatever is sampled, the dialect's parser reads calls that fit their schemas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import openai
import pydantic
import pytest

from etude.core.policy import Assistant
from etude.serve.openai.errors import ApiError
from etude.serve.openai.grammar import Grammars
from etude.serve.openai.request_models import ChatRequest, request_models
from etude.serve.openai.responses import argument_types, to_value
from etude.serve.openai.steering import steering_of
from etude.serve.openai.validation import read_chat
from etude.tokens.dialect import Dialect, open_dialect


class Place(pydantic.BaseModel, extra="forbid", strict=True):
    x: bool


class Read(pydantic.BaseModel, extra="forbid", strict=True):
    """The reference: its schema is what is asked for, and it decides what fits."""

    path: str = ""
    line: int = pydantic.Field(ge=0, le=99)
    mode: Literal["r", "w"]
    level: Literal[1, 2]
    where: Place
    also: bool | None = None


class Nothing(pydantic.BaseModel, extra="forbid"):
    pass


PARAMETERS = Read.model_json_schema()
MODELS: dict[str, type[pydantic.BaseModel]] = {"read": Read, "reader.two": Nothing, "halt": Nothing}
FUNCTIONS = {"read": PARAMETERS, "reader.two": {"type": "object", "properties": {}}, "halt": None}
JSON_DIALECTS = ("qwen3", "hermes", "deepseek", "kimi")


def asked(dialect: Dialect, choice: Any = "required", strict: bool = False, **more: Any) -> ChatRequest:
    tools = [
        {"type": "function", "function": {"name": name, "strict": strict} | ({"parameters": schema} if schema else {})}
        for name, schema in FUNCTIONS.items()
    ]
    body = {"model": "m", "messages": [{"role": "user", "content": "?"}], "tools": tools, "tool_choice": choice}
    return read_chat(body | more, request_models("m", dialect.vocab_size)[0])


def sampled(dialect: Dialect, request: ChatRequest, seed: int, grammars: Grammars) -> Assistant:
    """A turn of uniform choices among what is allowed, short tokens of text preferred so that strings end."""
    steering = steering_of(request, dialect, grammars)
    constraint = steering.constraint(dialect, grammars, dialect.vocab_size)
    assert constraint is not None and steering.calls is not None
    dice, ids = np.random.default_rng(seed), []
    for _ in range(2000):
        allowed = constraint.allowed(ids)
        assert allowed is not None
        options = np.flatnonzero(allowed)
        ends = [token for token in options if not dialect.bytes_of(int(token)) or b'"' in dialect.bytes_of(int(token))]
        ids.append(int(dice.choice(ends if ends and dice.random() < 0.3 else options)))
        if ids[-1] in dialect.stop_ids:
            break
    turn = dialect.parse_turn([*steering.opening, *ids])
    assert isinstance(turn, Assistant), (turn, dialect.decode(ids))
    return turn


def check(turn: Assistant, most: int) -> None:
    assert 1 <= len(turn.calls) <= most and not turn.final
    for call in turn.calls:
        schema = FUNCTIONS[call.name] or {"type": "object", "properties": {}}
        types = argument_types(schema)
        arguments = {name: to_value(text, types[name]) for name, text in call.arguments.items()}
        MODELS[call.name].model_validate_json(json.dumps(arguments))


@pytest.mark.parametrize("name", ["native", *JSON_DIALECTS])
def test_whatever_is_sampled_calls_offered_functions_with_arguments_that_fit(
    name: str, tiny_model: Path, template_models: dict[str, Path]
) -> None:
    dialect = open_dialect(tiny_model if name == "native" else template_models[name])
    grammars = Grammars(dialect, dialect.vocab_size)
    turns: list[Assistant] = []
    called: list[str] = []
    # Which seed draws which function changes with the grammar library, so seeds are drawn until each was called.
    while len(turns) < 8 or set(called) != FUNCTIONS.keys() or len(called) == len(turns):
        assert len(turns) < 200, set(called)
        turns.append(sampled(dialect, asked(dialect), len(turns), grammars))
        check(turns[-1], 8)
        called += [call.name for call in turns[-1].calls]
    one = sampled(dialect, asked(dialect, parallel_tool_calls=False), 1, grammars)
    check(one, 1)
    named = {"type": "function", "function": {"name": "read"}}
    turn = sampled(dialect, asked(dialect, named, parallel_tool_calls=False), 2, grammars)
    assert [call.name for call in turn.calls] == ["read"]
    check(turn, 1)


def test_where_arguments_cannot_be_forced_only_strict_functions_are_refused(template_models: dict[str, Path]) -> None:
    dialect = open_dialect(template_models["qwen_coder"])
    grammars = Grammars(dialect, dialect.vocab_size)
    assert steering_of(asked(dialect), dialect, grammars).calls is None
    with pytest.raises(ApiError, match="cannot be forced to fit") as refused:
        steering_of(asked(dialect, strict=True), dialect, grammars)
    assert (refused.value.status, refused.value.param) == (400, "tools")


def test_types_of_arguments_are_found_behind_references_and_end_in_schemas_that_hold_themselves() -> None:
    types = argument_types(PARAMETERS)
    assert types["where"] == ("object",) and types["level"] == ("integer",) and types["mode"] == ("string",)
    assert argument_types({"properties": {"a": {"enum": [1, None]}}}) == {"a": ("integer", "null")}
    wide = {"anyOf": [{"$ref": "#/properties/a"}] * 50}
    assert argument_types({"properties": {"a": wide, "b": {"$ref": "#/properties/b"}}}) == {"a": (), "b": ()}
    assert to_value("NaN", ("number",)) == "NaN" and to_value("1e999", ("number",)) == "1e999"


def test_a_served_model_calls_with_arguments_that_fit(served: Any) -> None:
    tool: Any = {"type": "function", "function": {"name": "read", "parameters": PARAMETERS, "strict": True}}
    with openai.OpenAI(base_url=f"{served.address}/v1", api_key=served.key, max_retries=0, timeout=60) as client:
        for seed in range(3):
            answer = client.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": "call the tool"}],
                tools=[tool],
                tool_choice="required",
                parallel_tool_calls=False,
                seed=seed,
            )
            if answer.choices[0].finish_reason == "tool_calls":
                (call,) = answer.choices[0].message.tool_calls or ()
                assert call.type == "function" and call.function.name == "read"
                Read.model_validate_json(call.function.arguments)
