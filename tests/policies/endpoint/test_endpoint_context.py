"""The end of an endpoint's context and of a model's turn: respected before, a score after, the same on every server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from etude.core.policy import Call, Context, ContextOverflow, Sample, Sampling
from etude.core.settings import AgentLimits
from etude.harness.failures import ToolError
from etude.harness.loop import run_agent
from etude.harness.tools.base import read_arguments
from etude.harness.tools.read import Read
from etude.policies.endpoint.messages import UNREADABLE
from etude.policies.endpoint.policy import EndpointPolicy
from tests.policies.endpoint.test_endpoint import ASKED, Theatre, ask, chat, completion, refuses, run, says

LISTED = {"data": [{"id": "other", "max_model_len": 9}, {"id": "m", "max_model_len": 2048}]}
# What vLLM says when prompt and answer together do not fit.
VLLM = (
    "This model's maximum context length is 2048 tokens. However, you requested 2147 tokens "
    "(100 in the messages, 2047 in the completion). Please reduce the length of the messages or completion."
)


def with_models(*plays: Any) -> Theatre:
    theatre = Theatre(*plays)
    theatre.models = LISTED
    return theatre


def test_no_more_tokens_are_asked_for_than_the_model_has_room_for() -> None:
    theatre = with_models(says(completion([4, 8], [-0.25, -0.5])))

    async def asked(policy: EndpointPolicy) -> Any:
        return await policy.sample(Context(ids=(1,) * 48), Sampling(max_tokens=4096, stop_ids=(8,)))

    run(theatre, asked)
    assert theatre.bodies[0]["max_tokens"] == 2000
    theatre = with_models(says(completion([4, 8], [-0.25, -0.5])))
    run(theatre, asked, max_model_len=64)  # a setting comes before what the server says
    assert theatre.bodies[0]["max_tokens"] == 16


def test_ids_that_fill_the_context_are_not_even_sent() -> None:
    theatre = with_models(says(completion([4], [-0.25])))
    with pytest.raises(ContextOverflow, match=r"2048 tokens.*2048"):
        run(theatre, lambda policy: policy.sample(Context(ids=(1,) * 2048), Sampling(max_tokens=4)))
    assert not theatre.bodies


def test_an_answer_that_does_not_fit_beside_its_messages_is_asked_for_shorter() -> None:
    theatre = with_models(refuses(400, VLLM), says(chat("hi")))
    sample, _ = run(theatre, lambda policy: policy.sample(ASKED, Sampling(max_tokens=4096)))
    assert sample.text == "hi"
    assert [body["max_tokens"] for body in theatre.bodies] == [2047, 1948]


@pytest.mark.parametrize(
    "refusal",
    [
        says({"error": {"message": "too much", "code": "context_length_exceeded"}}, 400),
        refuses(400, "This model's maximum context length is 10 tokens. Your prompt contains 12 input tokens."),
        refuses(400, "The decoder prompt (length 5000) is longer than the maximum model length of 4096."),
        refuses(413, "prompt is too long: 210000 tokens > 200000 maximum"),
        refuses(400, "the request exceeds the available context size, try increasing it"),
        refuses(422, "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens"),
    ],
)
def test_a_context_that_is_too_long_is_known_from_the_words_of_many_servers(refusal: Any) -> None:
    theatre = Theatre(refusal)
    with pytest.raises(ContextOverflow, match="has no room for an answer"):
        run(theatre, ask)
    assert len(theatre.bodies) == 1


def test_a_rollout_that_fills_the_context_ends_with_a_result() -> None:
    class Full:
        async def sample(self, context: Context, sampling: Sampling) -> Sample:
            raise ContextOverflow("the endpoint has no room for an answer")

    trajectory = asyncio.run(
        run_agent(
            *("do it", None, Full()),  # type: ignore[arg-type]
            dialect=None,
            tools={},
            limits=AgentLimits(),
            sampling=Sampling(),
        )
    )
    assert trajectory.stop == "context"


def test_a_model_that_goes_past_its_end_of_turn_is_cut_where_our_engine_stops() -> None:
    theatre = Theatre(says(completion([4, 8, 5, 8, 6], [-0.1, -0.2, -0.3, -0.4, -0.5], "length")))

    async def asked(policy: EndpointPolicy) -> Any:
        return await policy.sample(Context(ids=(1, 2)), Sampling(max_tokens=5, stop_ids=(8, 9)))

    sample, _ = run(theatre, asked, decode=lambda ids: "/".join(map(str, ids)))
    assert (sample.ids, sample.logprobs, sample.stop, sample.text) == ((4, 8), (-0.1, -0.2), "stop", "4/8")


@pytest.mark.parametrize(
    ("raw", "why"), [('{"path": ', "Expecting value"), ('["a.py"]', "it is a list"), ('"a.py"', "it is text")]
)
def test_broken_arguments_are_told_to_the_model_as_what_they_are(raw: str, why: str) -> None:
    with pytest.raises(ToolError) as told:
        read_arguments(Read(Read.Settings()), Call("read", {UNREADABLE: raw}).arguments)
    assert told.value.error == "InvalidArguments"
    assert "the arguments of read are not a JSON object" in told.value.text and why in told.value.text
    assert UNREADABLE not in told.value.text
