"""Messages to the OpenAI-compatible interface and back, and answers of every shape; no server needed."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from etude.core.errors import EtudeError
from etude.core.policy import Assistant, Call, Context, Message, Sample, Sampling, System, ToolResult, User
from etude.core.settings import EndpointSettings
from etude.harness.text_turns import read_turn, write_turn
from etude.policies.endpoint.limits import Cost
from etude.policies.endpoint.messages import native_messages, read_message, text_messages
from etude.policies.endpoint.policy import EndpointPolicy
from etude.policies.endpoint.transport import Transport
from etude.tokens.dialect import ToolSchema

READ = ToolSchema(
    "read",
    "Read a file.",
    {
        "type": "object",
        "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}, "all": {"type": "boolean"}},
        "required": ["path"],
    },
)
TALK: tuple[Message, ...] = (
    System("Be brief."),
    User("Read a.py and b.py."),
    Assistant("look first", "Reading.", (Call("read", {"path": "a.py", "lines": "3"}), Call("read", {"path": "b.py"}))),
    ToolResult("read", "A"),
    ToolResult("read", "B"),
    Assistant("", "", (Call("read", {"path": "c\udcff.py", "all": "true"}),)),
    ToolResult("read", "C"),
    Assistant("", "garbled <tool_call>{</tool_call>"),
    ToolResult("", "error: a call is not JSON"),
)


def test_native_calls_have_ids_and_each_result_answers_one() -> None:
    said = native_messages(TALK, [READ], EndpointSettings(thinking="reasoning_content"))
    assert [message["role"] for message in said] == [
        *("system", "user", "assistant", "tool", "tool", "assistant", "tool", "assistant", "user")
    ]
    calls = [call for message in said for call in message.get("tool_calls", ())]
    assert [call["id"] for call in calls] == [m["tool_call_id"] for m in said if m["role"] == "tool"]
    assert len({call["id"] for call in calls}) == 3
    assert json.loads(calls[0]["function"]["arguments"]) == {"path": "a.py", "lines": 3}
    assert json.loads(calls[2]["function"]["arguments"]) == {"path": "c\N{REPLACEMENT CHARACTER}.py", "all": True}
    assert said[2]["reasoning_content"] == "look first" and said[2]["content"] == "Reading."
    assert said[5]["content"] is None
    assert "reasoning_content" not in native_messages(TALK, [READ], EndpointSettings())[2]


def test_every_call_is_answered_even_when_its_result_never_came() -> None:
    talk = (User("x"), Assistant("", "", (Call("read"), Call("read"))), ToolResult("read", "A"), User("go on"))
    said = native_messages(talk, [], EndpointSettings(call_id="functions.{name}:{number}"))
    assert [(m["role"], m.get("tool_call_id")) for m in said[2:]] == [
        ("tool", "functions.read:0"),
        ("tool", "functions.read:1"),
        ("user", None),
    ]


def test_the_text_form_spells_calls_and_joins_results() -> None:
    said = text_messages(TALK, write_turn)
    assert [message["role"] for message in said] == [
        *("system", "user", "assistant", "user", "assistant", "user", "assistant", "user")
    ]
    assert read_turn(said[2]["content"]) == TALK[2]
    assert said[3]["content"].count('<tool_result name="read">') == 2
    json.dumps(said).encode()


def test_answers_of_every_shape_become_text() -> None:
    assert read_message({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, write_turn) == "ab"
    assert read_message({"content": None, "tool_calls": None}, write_turn) == ""
    assert read_message({"content": "half \ud83d"}, write_turn) == "half ?"
    spelled = 'x\n<tool_call>{"name": "read", "arguments": {}}</tool_call>'
    assert read_message({"content": spelled, "reasoning": "why"}, write_turn) == f"<think>why</think>\n{spelled}"


class Echo(Transport):
    """Answers with what it was made for, without a server."""

    def __init__(self, settings: EndpointSettings, answer: dict[str, Any]) -> None:
        super().__init__(settings)
        self.answer = answer

    async def post(self, path: str, body: dict[str, Any], worst: Cost) -> dict[str, Any]:
        json.dumps(body, allow_nan=False)
        return self.answer


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just(math.nan) | st.just(-0.5) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
FIELDS = ("finish_reason", "text", "token_ids", "logprobs", "message")
MESSAGES = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("content", "reasoning", "reasoning_content", "tool_calls"), JSON)
)
CHOICES = st.fixed_dictionaries({}, optional=dict.fromkeys(FIELDS, JSON) | {"message": MESSAGES | JSON})
ANSWERS = st.fixed_dictionaries({}, optional={"choices": st.lists(CHOICES | JSON, max_size=2) | JSON, "usage": JSON})


@given(ANSWERS, st.sampled_from([Context(ids=(1, 2)), Context((User("Hello?"),))]))
@hypothesis_settings(max_examples=300, deadline=None)
def test_whatever_a_server_answers_is_a_sample_or_a_sentence(answer: dict[str, Any], context: Context) -> None:
    settings = EndpointSettings(url="http://127.0.0.1:1/v1", model="m", form="tools")
    policy = EndpointPolicy(settings, write_turn=write_turn, tools=[READ], transport=Echo(settings, answer))
    try:
        sample = asyncio.run(policy.sample(context, Sampling(max_tokens=5)))
        assert isinstance(sample.text, str) and sample.stop in ("stop", "length", "abort")
    except EtudeError as error:
        assert "cannot be used" in str(error)


@given(JSON, st.integers(300, 599), st.text(max_size=6), st.dictionaries(st.just("error"), JSON, max_size=1))
@hypothesis_settings(max_examples=200, deadline=None)
def test_whatever_a_server_refuses_with_is_one_line(said: Any, status: int, after: str, answer: dict[str, Any]) -> None:
    transport = Transport(EndpointSettings(url="http://127.0.0.1:1/v1", model="m"))
    refusal = transport._refusal(status, answer, json.dumps(said).encode(), after)
    assert len(str(refusal)) < 700 and str(refusal).isprintable()


def completion(ids: list[Any], values: list[Any], **more: Any) -> dict[str, Any]:
    choice = {"text": "t", "token_ids": ids, "logprobs": {"token_logprobs": values}, "finish_reason": "stop"}
    return {"choices": [choice | more]}


def answered(answer: dict[str, Any], sampling: Sampling, **settings: Any) -> Sample:
    chosen = EndpointSettings(url="http://127.0.0.1:1/v1", model="m", **settings)
    policy = EndpointPolicy(chosen, write_turn=write_turn, transport=Echo(chosen, answer))
    return asyncio.run(policy.sample(Context(ids=(1, 2, 3)), sampling))


def test_raw_log_probabilities_of_another_temperature_are_left_out() -> None:
    answer = completion([4, 8], [-0.25, -0.5])
    for sampling in (Sampling(5, 0.5), Sampling(5, top_p=0.9), Sampling(5, top_k=3)):
        assert answered(answer, sampling).logprobs is None
        assert answered(answer, sampling, logprobs="sampled").logprobs == (-0.25, -0.5)
    assert answered(answer, Sampling(5)).logprobs == (-0.25, -0.5)


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (completion([4, 5], [-1.0]), "2 tokens and 1 log-probabilities"),
        (completion([4, 5], [-1.0, None]), "a log-probability is not one"),
        (completion([4, 5], [-1.0, 0.5]), "a log-probability is not one"),
        (completion([4, -5], [-1.0, -1.0]), "not all token ids"),
        (completion([4, True], [-1.0, -1.0]), "not all token ids"),
        (completion([], []), "it gives no token_ids"),
        (completion([1] * 6, [-1.0] * 6), "6 tokens where at most 5"),
        (completion([4], [-1.0], logprobs=None), "token ids without log-probabilities"),
        (completion([4], [-1.0], token_ids=None), "it gives no token_ids"),
        (completion([4], [-1.0], prompt_token_ids=[1, 2]), "another prompt than the one sent"),
    ],
)
def test_answers_whose_counts_disagree_are_refused(answer: dict[str, Any], sentence: str) -> None:
    with pytest.raises(EtudeError, match=sentence):
        answered(answer, Sampling(5))


def test_the_policy_never_imports_torch() -> None:
    code = "import sys, etude.policies.endpoint.policy; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
