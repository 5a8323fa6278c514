"""What other people's programs ask for beside plain sampling, by the `openai` package against the real process."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from etude.core.policy import Version
from etude.core.settings import EngineSettings
from etude.engine.engine import Engine
from etude.model.checkpoint.directory import load_model
from etude.serve.openai import request_base
from etude.serve.openai.request_models import request_models
from etude.serve.openai.validation import read_chat
from etude.tokens.dialect import open_dialect
from tests.serve.openai.test_openai_errors import ASK, post, run

MODEL = "tiny"
HELLO: list[Any] = [{"role": "user", "content": "say hello"}]
CALL: list[Any] = [{"role": "user", "content": "call the tool"}]
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "kind": {"enum": ["a", "b"]}},
    "required": ["ok", "kind"],
    "additionalProperties": False,
}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "verdict", "schema": SCHEMA, "strict": True}}


@pytest.fixture(scope="module")
def client(served: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.address}/v1", api_key=served.key, max_retries=0, timeout=60) as client:
        yield client


def tool(name: str) -> Any:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.parametrize("seed", range(4))
def test_an_answer_fits_its_schema_whatever_the_model_would_have_said(client: openai.OpenAI, seed: int) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, response_format=FORMAT, seed=seed)
    said = json.loads(answer.choices[0].message.content or "")
    assert said.keys() == {"ok", "kind"} and isinstance(said["ok"], bool) and said["kind"] in ("a", "b")
    assert answer.choices[0].finish_reason == "stop"
    whole = "".join(
        chunk.choices[0].delta.content or ""
        for chunk in client.chat.completions.create(
            model=MODEL, messages=HELLO, response_format=FORMAT, seed=seed, stream=True
        )
    )
    assert json.loads(whole) == said


def test_a_json_object_is_one_and_several_answers_keep_to_it(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=HELLO, response_format={"type": "json_object"}, n=3, seed=5
    )
    for choice in answer.choices:
        if choice.finish_reason == "stop":
            assert isinstance(json.loads(choice.message.content or ""), dict)


@pytest.mark.parametrize("name", ["read", "bash", "re", "other_one"])
def test_the_function_that_is_asked_for_is_called(client: openai.OpenAI, name: str) -> None:
    tools = [tool(one) for one in ("read", "bash", "re", "other_one")]
    choice: Any = {"type": "function", "function": {"name": name}}
    answer = client.chat.completions.create(
        model=MODEL, messages=HELLO, tools=tools, tool_choice=choice, temperature=0, parallel_tool_calls=False
    )
    calls: Any = answer.choices[0].message.tool_calls
    assert [call.function.name for call in calls] == [name]


def test_required_calls_one_of_the_offered_functions_and_no_other(client: openai.OpenAI) -> None:
    tools = [tool("inspect"), tool("bench")]
    for seed in range(6):
        answer = client.chat.completions.create(
            model=MODEL, messages=CALL, tools=tools, tool_choice="required", seed=seed, parallel_tool_calls=False
        )
        calls: Any = answer.choices[0].message.tool_calls
        if answer.choices[0].finish_reason != "length":
            assert [call.function.name in ("inspect", "bench") for call in calls] == [True]


def test_an_echoed_prompt_has_the_log_probabilities_of_the_model(client: openai.OpenAI, tiny_model: Path) -> None:
    dialect = open_dialect(tiny_model)
    ids = dialect.encode("say hello, wörld")
    engine = Engine(load_model(tiny_model), EngineSettings(cache_tokens=2048), Version(0, 0))
    wanted = engine.score([ids])[0]
    for most in (0, 3):
        answer = client.completions.create(
            model=MODEL, prompt=ids, echo=True, logprobs=2, max_tokens=most, temperature=0
        )
        logprobs = answer.choices[0].logprobs
        assert logprobs is not None and logprobs.token_logprobs is not None and logprobs.top_logprobs is not None
        assert answer.choices[0].text.startswith("say hello, wörld")
        assert logprobs.token_logprobs[0] is None and logprobs.top_logprobs[0] is None
        assert logprobs.token_logprobs[1 : len(ids)] == pytest.approx(wanted[1:], abs=1e-5)
        assert len(logprobs.tokens or ()) == len(ids) + most == len(logprobs.text_offset or ())
        # the likeliest alternative of a greedy token is the token: what lm-eval asks
        for token, top in zip(logprobs.token_logprobs[1:], logprobs.top_logprobs[1:], strict=True):
            assert token <= max(top.values())
    one = client.completions.create(model=MODEL, prompt=dialect.encode("x")[:1], echo=True, logprobs=1, max_tokens=2)
    told: Any = one.choices[0].logprobs  # a prompt of one token has nothing to predict, and is told all the same
    assert told.tokens[0] == "x" and told.token_logprobs[0] is None and told.text_offset[:2] == [0, 1]
    assert len(told.tokens) == len(told.top_logprobs) == 3
    stream = client.completions.create(model=MODEL, prompt="say hello", echo=True, max_tokens=2, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream).startswith("say hello")


def test_sampling_options_do_what_they_say(client: openai.OpenAI, tiny_model: Path) -> None:
    dialect = open_dialect(tiny_model)
    want = dialect.encode("x")[0]

    def ids(**options: Any) -> list[int]:
        extra = {"return_token_ids": True, "ignore_eos": True} | options
        answer = client.completions.create(model=MODEL, prompt="say", max_tokens=12, seed=1, extra_body=extra)
        return list(answer.choices[0].token_ids)  # type: ignore[attr-defined]

    assert set(ids(logit_bias={str(want): 100})) == {want}
    assert len(set(ids(logit_bias={str(want): 50}, frequency_penalty=2.0, presence_penalty=2.0))) <= 12
    assert ids(min_p=1.0) == ids(temperature=0)
    assert len(set(ids(repetition_penalty=100.0, temperature=0))) == 12
    answer = client.completions.create(model=MODEL, prompt="say", max_tokens=40, seed=3, extra_body={"min_tokens": 30})
    assert answer.usage is not None and answer.usage.completion_tokens >= 30
    stops = [f"stop{number}" for number in range(20)]
    client.completions.create(model=MODEL, prompt="say", max_tokens=4, stop=stops)


def test_unknown_and_null_fields_of_messages_are_left_out_with_one_warning(
    served: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    message = {"role": "user", "content": "say hello", "odd_field_of_a_client": 3, "tool_calls": None}
    for _ in range(3):
        status, _, _ = run(post(served, "/v1/chat/completions", ASK | {"messages": [message], "max_tokens": 2}))
        assert status == 200
    history = [message, {"role": "assistant", "content": None, "audio": None}, {"role": "user", "content": None}]
    assert run(post(served, "/v1/chat/completions", ASK | {"messages": history, "max_tokens": 2}))[0] == 200
    assert run(post(served, "/v1/chat/completions", ASK | {"unknown_and_null": None, "max_tokens": 2}))[0] == 200
    monkeypatch.setattr(request_base, "_warned", set())
    for _ in range(3):
        read_chat(ASK | {"messages": [message]}, request_models(MODEL, 320)[0])
    assert capsys.readouterr().err.count("odd_field_of_a_client") == 1


def test_text_and_conversations_are_tokenized_as_they_are_sampled_from(
    served: Any, client: openai.OpenAI, tiny_model: Path
) -> None:
    _, body, _ = run(post(served, "/tokenize", {"model": MODEL, "messages": HELLO}))
    extra = {"return_token_ids": True}
    answer: Any = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=1, extra_body=extra)
    assert body["tokens"] == answer.prompt_token_ids and body["count"] == len(body["tokens"])
    assert body["max_model_len"] == 128
    _, body, _ = run(post(served, "/tokenize", {"prompt": "wörld <|user|>"}))
    assert run(post(served, "/detokenize", {"tokens": body["tokens"]}))[1] == {"prompt": "wörld <|user|>"}
    half = [token for token in body["tokens"] if open_dialect(tiny_model).bytes_of(token) == b"\xc3"]
    if half:  # part of a character is told as a replacement, never as what is no text
        assert run(post(served, "/detokenize", {"tokens": half}))[1] == {"prompt": "\ufffd"}


def test_effort_and_template_variables_are_taken(client: openai.OpenAI) -> None:
    extra: Any = {"chat_template_kwargs": {"enable_thinking": False}}
    client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=2, reasoning_effort="low", extra_body=extra)


def test_log_probabilities_of_a_forced_token_are_certain(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=HELLO, response_format=FORMAT, seed=1, logprobs=True, top_logprobs=2
    )
    entries: Any = answer.choices[0].logprobs
    assert math.isclose(entries.content[0].logprob, 0.0, abs_tol=1e-6)  # an object can begin in one way only
    assert entries.content[0].token.startswith("{")


def test_responses_are_chats_in_another_spelling(client: openai.OpenAI, tiny_module: Any) -> None:
    wanted = tiny_module.EXAMPLES[0][1]
    answer = client.responses.create(model=MODEL, input="say hello", temperature=0)
    assert answer.output_text == wanted.final and answer.status == "completed"
    assert [item.type for item in answer.output] == ["reasoning", "message"]
    assert answer.usage is not None and answer.usage.total_tokens > 0
    with client.responses.stream(model=MODEL, input="say hello", temperature=0) as events:
        streamed = events.get_final_response()
    assert streamed.output_text == wanted.final
    told = list(client.responses.create(model=MODEL, input="say hello", temperature=0, stream=True))
    kinds = [event.item.type for event in told if event.type == "response.output_item.added"]
    assert kinds == ["reasoning", "message"] == [item.type for item in streamed.output]
    for kind, said in (("reasoning_text", wanted.thinking), ("output_text", wanted.final)):
        deltas = [event.delta for event in told if event.type == f"response.{kind}.delta"]
        ends = [event.text for event in told if event.type == f"response.{kind}.done"]
        assert "".join(deltas) == said == ends[0] and len(ends) == 1
    form: Any = {"format": {"type": "json_schema", "name": "verdict", "schema": SCHEMA, "strict": True}}
    assert "ok" in json.loads(client.responses.create(model=MODEL, input="say hello", text=form).output_text)
    with pytest.raises(openai.BadRequestError, match="nothing is stored"):
        client.responses.create(model=MODEL, input="x", previous_response_id="resp_1")


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"n": 2}, "n"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"return_token_ids": True}, "return_token_ids"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"messages": []}, "messages"),
        ({"tools": {"a": 1}}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"text": "json"}, "text"),
        ({"text": {"format": "json"}}, "response_format"),
        ({"text": {"verbosity": "low"}}, "verbosity"),
        ({"reasoning": "high"}, "reasoning"),
    ],
)
def test_what_a_response_cannot_say_is_refused(served: Any, asked: dict[str, Any], param: str) -> None:
    status, body, _ = run(post(served, "/v1/responses", {"model": MODEL, "input": "say hello"} | asked))
    assert (status, body["error"]["param"]) == (400, param), body


def test_calls_and_their_results_are_items_of_responses(client: openai.OpenAI, tiny_module: Any) -> None:
    tools: Any = [{"type": "function", "strict": False, **tool["function"]} for tool in tiny_module.TOOLS]
    asked: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": "call the tool"}]}]
    answer = client.responses.create(model=MODEL, input=asked, tools=tools, temperature=0)
    calls = [item for item in answer.output if item.type == "function_call"]
    assert [call.name for call in calls] == ["read", "bash"]
    assert json.loads(calls[0].arguments) == {"path": "a.py", "line": 3}
    with client.responses.stream(model=MODEL, input=asked, tools=tools, temperature=0) as events:
        streamed = events.get_final_response()
    assert [item.name for item in streamed.output if item.type == "function_call"] == ["read", "bash"]
    history: Any = [*asked, *(item.model_dump(exclude_none=True) for item in answer.output)]
    history += [{"type": "function_call_output", "call_id": call.call_id, "output": "hello"} for call in calls]
    again = client.responses.create(model=MODEL, input=history, tools=tools, max_output_tokens=3, temperature=0)
    assert again.status == "incomplete"
