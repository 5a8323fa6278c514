"""The `openai` package as a client of the real server process."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import openai
import pytest

from etude.core.policy import Assistant, Call, Sampling, ToolResult, User, Version
from etude.core.settings import EngineSettings
from etude.engine.engine import Engine
from etude.model.checkpoint.directory import load_model, save_model
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder
from etude.serve.openai.prompts import tool_schemas
from etude.serve.openai.request_models import ToolFunction
from etude.serve.openai.steering import call_opening
from etude.tokens.dialect import Dialect, open_dialect
from etude.tokens.render import Rendered

HELLO: list[Any] = [{"role": "user", "content": "say hello"}]
CALL: list[Any] = [{"role": "user", "content": "call the tool"}]

MODEL = "tiny"


@pytest.fixture(scope="module")
def client(served: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.address}/v1", api_key=served.key, max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def tools(tiny_module: ModuleType) -> Any:
    return tiny_module.TOOLS


@pytest.fixture(scope="module")
def dialect(tiny_model: Path) -> Dialect:
    return open_dialect(tiny_model)


@pytest.fixture(scope="module")
def reference(tiny_model: Path) -> Engine:
    """The same model in this process."""
    settings = EngineSettings(max_running=4, cache_tokens=2048, max_length=128)
    return Engine(load_model(tiny_model), settings, Version(0, 0))


def finish(engine: Engine, ids: list[int], sampling: Sampling) -> Any:
    request = engine.submit(ids, sampling)
    while engine.busy:
        engine.step()
    return request


def test_the_model_is_listed(client: openai.OpenAI) -> None:
    listed = client.models.list().data
    assert [model.id for model in listed] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "etude"
    with pytest.raises(openai.NotFoundError, match="this server has 'tiny'"):
        client.models.retrieve("gpt/5")


def test_a_conversation_is_answered_with_thinking_and_words(client: openai.OpenAI, tiny_module: ModuleType) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, temperature=0)
    message = answer.choices[0].message
    wanted = tiny_module.EXAMPLES[0][1]
    assert message.content == wanted.final
    assert message.reasoning_content == wanted.thinking  # type: ignore[attr-defined]
    assert message.tool_calls is None
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_stream_says_the_same(client: openai.OpenAI, tiny_module: ModuleType) -> None:
    options: Any = {"include_usage": True}
    chunks = list(
        client.chat.completions.create(model=MODEL, messages=HELLO, temperature=0, stream=True, stream_options=options)
    )
    wanted = tiny_module.EXAMPLES[0][1]
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == wanted.final
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == wanted.thinking
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens > 10
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_tools_are_called_with_arguments_as_their_schema_wants_them(client: openai.OpenAI, tools: Any) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=CALL, temperature=0, tools=tools)
    assert answer.choices[0].finish_reason == "tool_calls"
    calls: Any = answer.choices[0].message.tool_calls
    said = [(call.function.name, json.loads(call.function.arguments)) for call in calls]
    assert said == [("read", {"path": "a.py", "line": 3}), ("bash", {"command": "echo"})]
    assert len({call.id for call in calls}) == 2
    one = client.chat.completions.create(
        model=MODEL, messages=CALL, temperature=0, tools=tools, parallel_tool_calls=False
    )
    assert [call.function.name for call in one.choices[0].message.tool_calls or []] == ["read"]  # type: ignore[union-attr]


def test_streamed_calls_are_the_same(client: openai.OpenAI, tools: Any) -> None:
    calls: dict[int, dict[str, str]] = {}
    finish = None
    for chunk in client.chat.completions.create(model=MODEL, messages=CALL, temperature=0, tools=tools, stream=True):
        finish = chunk.choices[0].finish_reason or finish
        for delta in chunk.choices[0].delta.tool_calls or []:
            call = calls.setdefault(delta.index, {"id": "", "name": "", "arguments": ""})
            assert delta.function is not None
            call["id"] += delta.id or ""
            call["name"] += delta.function.name or ""
            call["arguments"] += delta.function.arguments or ""
    assert finish == "tool_calls"
    assert [call["name"] for call in calls.values()] == ["read", "bash"]
    assert json.loads(calls[0]["arguments"]) == {"path": "a.py", "line": 3}
    assert all(call["id"].startswith("call_") for call in calls.values())


def test_without_tools_none_is_called_and_required_makes_one_be_called(
    client: openai.OpenAI, tools: Any, dialect: Dialect
) -> None:
    for arguments in ({}, {"tools": tools, "tool_choice": "none"}):
        answer = client.chat.completions.create(model=MODEL, messages=CALL, temperature=0, **arguments)
        assert answer.choices[0].message.tool_calls is None
        assert answer.choices[0].finish_reason == "stop"
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "say nothing"}],
        temperature=0,
        tools=tools,
        tool_choice="required",
        extra_body={"return_token_ids": True},
    )
    assert dialect.turn_ids(Assistant(calls=(Call("x"),)))[0] == answer.prompt_token_ids[-1]  # type: ignore[attr-defined]


def test_a_whole_loop_of_calls_and_results_is_rendered_as_our_own_messages(
    client: openai.OpenAI, tools: Any, dialect: Dialect
) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=CALL, temperature=0, tools=tools)
    message = answer.choices[0].message
    calls: Any = message.tool_calls
    history: Any = [
        *CALL,
        message.model_dump(exclude_none=True),
        *({"role": "tool", "tool_call_id": call.id, "content": f"result {n}"} for n, call in enumerate(calls)),
        {"role": "user", "content": [{"type": "text", "text": "and "}, {"type": "text", "text": "now?"}]},
    ]
    second = client.chat.completions.create(
        model=MODEL, messages=history, tools=tools, max_tokens=1, extra_body={"return_token_ids": True}
    )
    rendered = Rendered()
    turn = Assistant(
        "I read.", "Reading.", (Call("read", {"path": "a.py", "line": "3"}), Call("bash", {"command": "echo"}))
    )
    messages = [
        User("call the tool"),
        turn,
        ToolResult("read", "result 0"),
        ToolResult("bash", "result 1"),
        User("and now?"),
    ]
    dialect.extend(rendered, messages, open_turn=True)
    assert second.prompt_token_ids == rendered.ids  # type: ignore[attr-defined]
    assert second.usage is not None
    assert second.usage.prompt_tokens == len(rendered.ids)


def test_text_and_ids_are_continued_as_by_an_engine_in_this_process(
    client: openai.OpenAI, reference: Engine, dialect: Dialect
) -> None:
    prompt = dialect.encode("say hello, ")
    sampling = Sampling(20, 0.9, top_p=0.95, top_k=50, seed=7, stop_ids=dialect.stop_ids, top_logprobs=3)
    expected = finish(reference, prompt, sampling)
    body: Any = {"return_token_ids": True, "top_k": 50}
    for said in ("say hello, ", prompt):
        answer = client.completions.create(
            model=MODEL, prompt=said, max_tokens=20, temperature=0.9, top_p=0.95, seed=7, logprobs=3, extra_body=body
        )
        choice: Any = answer.choices[0]
        assert choice.prompt_token_ids == prompt
        assert choice.token_ids == expected.sampled
        assert choice.text == b"".join(map(dialect.bytes_of, expected.sampled)).decode("utf-8", "replace")
        assert choice.logprobs.token_logprobs == pytest.approx(expected.logprobs, abs=1e-5)
        assert choice.logprobs.text_offset[0] == 0
        for top, known in zip(choice.logprobs.top_logprobs, expected.tops, strict=True):
            assert list(top.values()) == pytest.approx([logprob for _, logprob in known], abs=1e-5)
        assert choice.finish_reason == expected.stop


def test_log_probabilities_of_a_chat_add_up_to_its_tokens(client: openai.OpenAI) -> None:
    for stream in (False, True):
        got: Any = client.chat.completions.create(
            model=MODEL, messages=HELLO, temperature=0, logprobs=True, top_logprobs=4, stream=stream
        )
        parts = [chunk.choices[0].logprobs for chunk in got if chunk.choices] if stream else [got.choices[0].logprobs]
        entries = [entry for part in parts if part is not None for entry in part.content]
        data = b"".join(bytes(entry.bytes) for entry in entries)
        assert data.decode() == "short: naïve €Hello, wörld! € 🎉 done"
        assert all(len(entry.top_logprobs) == 4 for entry in entries)
        assert all(entry.logprob == pytest.approx(entry.top_logprobs[0].logprob) for entry in entries)  # greedy
        assert all(math.exp(entry.logprob) > 0.5 for entry in entries)


def test_several_answers_to_several_prompts_have_seeds_of_their_own(client: openai.OpenAI) -> None:
    ask: Any = {"model": MODEL, "max_tokens": 12, "temperature": 1.0, "seed": 5}
    many = client.completions.create(prompt=["say", "café x"], n=3, **ask)
    assert [choice.index for choice in many.choices] == list(range(6))
    alone = [client.completions.create(prompt=p, **{**ask, "seed": 5 + i}) for p in ("say", "café x") for i in range(3)]
    assert [choice.text for choice in many.choices] == [answer.choices[0].text for answer in alone]
    assert len({choice.text for choice in many.choices}) > 3
    assert many.usage is not None
    assert many.usage.prompt_tokens == sum(answer.usage.prompt_tokens for answer in alone[::3] if answer.usage)
    assert many.usage.completion_tokens == sum(answer.usage.completion_tokens for answer in alone if answer.usage)
    texts: dict[int, str] = {}
    for chunk in client.completions.create(prompt=["say", "café x"], n=3, stream=True, **ask):
        texts[chunk.choices[0].index] = texts.get(chunk.choices[0].index, "") + chunk.choices[0].text
    assert [texts[i] for i in range(6)] == [choice.text for choice in many.choices]


def test_without_a_seed_answers_differ(client: openai.OpenAI) -> None:
    texts = {client.completions.create(model=MODEL, prompt="x", temperature=2).choices[0].text for _ in range(4)}
    assert len(texts) > 1


@pytest.mark.parametrize(
    ("stop", "left"),
    [("wör", "Hello, "), (["zz", " €"], "Hello, wörld!"), (["€ 🎉 d"], "Hello, wörld! "), ("done!", None)],
)
def test_stop_texts_are_cut_from_the_answer(client: openai.OpenAI, stop: Any, left: str | None) -> None:
    whole = "Hello, wörld! € 🎉 done"
    body: Any = {"return_token_ids": True}
    got = client.chat.completions.create(model=MODEL, messages=HELLO, temperature=0, stop=stop, extra_body=body)
    assert got.choices[0].message.content == (whole if left is None else left)
    assert got.choices[0].finish_reason == "stop"
    text, ids = "", []
    stream = client.chat.completions.create(
        model=MODEL, messages=HELLO, temperature=0, stop=stop, stream=True, extra_body=body
    )
    for chunk in stream:
        text += chunk.choices[0].delta.content or ""
        ids += getattr(chunk.choices[0], "token_ids", [])
    assert text == got.choices[0].message.content
    assert ids == got.choices[0].token_ids  # type: ignore[attr-defined]
    assert got.usage is not None
    assert got.usage.completion_tokens == len(ids)


def test_an_answer_that_meets_its_limit_says_so_and_the_context_is_a_limit_too(client: openai.OpenAI) -> None:
    short = client.chat.completions.create(model=MODEL, messages=HELLO, temperature=0, max_completion_tokens=4)
    assert short.choices[0].finish_reason == "length"
    assert short.usage is not None
    assert short.usage.completion_tokens == 4
    body: Any = {"ignore_eos": True}
    filled = client.chat.completions.create(model=MODEL, messages=HELLO, seed=0, extra_body=body)
    assert filled.usage is not None
    assert filled.usage.total_tokens == 128
    assert filled.choices[0].finish_reason == "length"


def test_cached_tokens_are_told(client: openai.OpenAI) -> None:
    prompt = list(range(30, 94))
    first: Any = client.completions.create(model=MODEL, prompt=prompt, max_tokens=1).usage
    assert first.prompt_tokens_details.cached_tokens == 0
    for arguments in ({"max_tokens": 1}, {"seed": 1, "stop": ["e", "o", "a", "h"], "max_tokens": 60}):
        usage: Any = client.completions.create(model=MODEL, prompt=prompt, **arguments).usage
        assert usage.prompt_tokens_details.cached_tokens == 48  # whole blocks of 16, the last token always computed


def test_what_clients_send_and_changes_nothing_is_taken(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "developer", "content": "be kind", "name": "x"}, *HELLO],
        user="me",
        metadata={"a": "b"},
        store=False,
        service_tier="auto",
        response_format={"type": "text"},
        frequency_penalty=0.0,
        presence_penalty=0,
        logit_bias={},
        max_tokens=1,
    )
    assert len(answer.choices) == 1


def test_a_checkpoint_with_a_template_of_its_own_is_served_the_same_way(
    tiny_module: ModuleType, template_models: dict[str, Path], tools: Any, tmp_path: Path
) -> None:
    """A random model of another project's dialect: what it says makes no sense, how it is asked and read does."""
    folder = tmp_path / "qwen3"
    shutil.copytree(template_models["qwen3"], folder)
    theirs = open_dialect(folder)
    save_model(folder, Decoder(ModelConfig(theirs.vocab_size + 8, 32, 64, 2, 4, 2, 8, max_position_embeddings=2048), 1))
    with (
        tiny_module.served(folder, tmp_path / "log", "run.threads=1") as server,
        openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0, timeout=60) as client,
    ):
        ask: Any = {"model": MODEL, "messages": HELLO, "tools": tools, "seed": 5, "max_tokens": 60}
        ask["extra_body"] = {"return_token_ids": True}
        whole: Any = client.chat.completions.create(**ask)
        rendered = Rendered()
        theirs.extend(
            rendered,
            [User("say hello")],
            open_turn=True,
            tools=tool_schemas([ToolFunction(**tool["function"]) for tool in tools]),
        )
        assert whole.prompt_token_ids == rendered.ids
        text, ids = "", []
        for chunk in client.chat.completions.create(**ask, stream=True):
            text += chunk.choices[0].delta.content or ""
            ids += getattr(chunk.choices[0], "token_ids", [])
        assert ids == whole.choices[0].token_ids
        assert text == (whole.choices[0].message.content or "")
        forced: Any = client.chat.completions.create(**ask, tool_choice="required")
        assert forced.prompt_token_ids == rendered.ids + call_opening(theirs)
        assert "Traceback" not in (tmp_path / "log").read_text()
