"""ATIF documents: the published schema written down again here, and what a person expects to find in them."""

from __future__ import annotations

import json
from typing import Any, Literal

import pydantic
import pytest

from etude.core.policy import Assistant, Call, Message, System, ToolResult, User, Version
from etude.harness.atif import file_name, to_atif
from etude.harness.trajectory import MessageRecord, Parent, Segment, Trajectory
from etude.tokens.dialect import ToolSchema


class Closed(pydantic.BaseModel, extra="forbid", strict=True):
    """The format forbids every key that it does not name."""


class ToolCall(Closed):
    tool_call_id: str
    function_name: str
    arguments: dict[str, Any]
    extra: dict[str, Any] | None = None


class ObservationResult(Closed):
    source_call_id: str | None = None
    content: str | None = None
    extra: dict[str, Any] | None = None


class Observation(Closed):
    results: list[ObservationResult]


class Metrics(Closed):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    cost_usd: float | None = None
    prompt_token_ids: list[int] | None = None
    completion_token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    extra: dict[str, Any] | None = None


class Step(Closed):
    step_id: int
    timestamp: str | None = None
    source: Literal["system", "user", "agent"]
    message: str
    model_name: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    metrics: Metrics | None = None
    observation: Observation | None = None
    is_copied_context: bool | None = None
    extra: dict[str, Any] | None = None


class Agent(Closed):
    name: str
    version: str
    model_name: str | None = None
    tool_definitions: list[dict[str, Any]] | None = None


class FinalMetrics(Closed):
    total_prompt_tokens: int | None = None
    total_completion_tokens: int | None = None
    total_steps: int | None = None


class Document(Closed):
    schema_version: Literal["ATIF-v1.8"]
    session_id: str
    trajectory_id: str
    agent: Agent
    steps: list[Step]
    final_metrics: FinalMetrics | None = None
    continued_trajectory_ref: str | None = None
    extra: dict[str, Any] | None = None


def checked(documents: list[dict[str, Any]]) -> list[Document]:
    """Read as another program would: through JSON, against the schema, with the rules between fields."""
    found = [Document.model_validate_json(json.dumps(document)) for document in documents]
    for document in found:
        assert [step.step_id for step in document.steps] == list(range(1, len(document.steps) + 1))
        for step in document.steps:
            if step.source != "agent":
                assert not any((step.tool_calls, step.metrics, step.model_name, step.reasoning_content))
            calls = {call.tool_call_id for call in step.tool_calls or ()}
            for result in step.observation.results if step.observation else ():
                assert result.source_call_id is None or result.source_call_id in calls
    return found


def test_a_rollout_becomes_steps_with_the_exact_tokens_of_each_turn(rollouts: Any, script: Any, say_call: Any) -> None:
    (rollouts.sandbox.root / "a.py").write_text("x = 1\n")
    turns = [say_call("read", path="a.py"), Assistant("It is one.", "x is 1.")]
    trajectory = rollouts.play(script(rollouts.dialect, turns, Version(0, 3)), system="Be brief.")
    (document,) = checked(to_atif(trajectory, "s1", [ToolSchema("read", "Show a file.")]))
    assert [step.source for step in document.steps] == ["system", "user", "agent", "agent"]
    read, answer = document.steps[2:]
    assert read.tool_calls is not None and read.tool_calls[0].arguments == {"path": "a.py"}
    assert read.observation is not None and "x = 1" in (read.observation.results[0].content or "")
    assert (answer.message, answer.reasoning_content) == ("x is 1.", "It is one.")
    (segment,) = trajectory.segments
    for step, turn in zip((read, answer), turns, strict=True):
        assert step.metrics is not None and step.metrics.extra is not None
        ids = rollouts.dialect.turn_ids(turn)
        assert step.metrics.completion_token_ids == ids
        start = step.metrics.prompt_tokens
        assert start is not None and segment.ids[start : start + len(ids)] == ids
        assert step.metrics.logprobs == segment.logprobs[start : start + len(ids)]
        assert step.metrics.extra["policy_versions"] == [{"version": "0.3", "tokens": len(ids)}]
    assert document.agent.tool_definitions == [
        {"type": "function", "function": {"name": "read", "description": "Show a file.",
                                          "parameters": {"type": "object", "properties": {}}}}
    ]  # fmt: skip


def test_parallel_calls_keep_their_results_in_order_and_a_result_too_many_answers_nothing() -> None:
    said: list[Message] = [
        User("go"),
        Assistant(calls=(Call("grep", {"pattern": "a"}), Call("list"))),
        ToolResult("grep", "one"),
        ToolResult("list", "two"),
        ToolResult("list", "three"),
    ]
    (document,) = checked(to_atif(Trajectory(entries=[MessageRecord(message) for message in said]), "s"))
    step = document.steps[1]
    assert step.observation is not None and step.tool_calls is not None
    ids = [call.tool_call_id for call in step.tool_calls]
    found = [(result.source_call_id, result.content) for result in step.observation.results]
    assert found == [(ids[0], "one"), (ids[1], "two"), (None, "three")]


def test_segments_are_documents_that_name_their_continuation_and_mark_what_was_copied() -> None:
    entries = [
        MessageRecord(System("s")),
        MessageRecord(User("u")),
        MessageRecord(Assistant(final="a"), segment=0),
        MessageRecord(User("v"), segment=1),
    ]
    first, second = Segment(messages=[0, 1, 2]), Segment("rewrite", Parent(0, 9), 4, messages=[0, 1, 3])
    documents = checked(to_atif(Trajectory(entries=entries, segments=[first, second]), "s"))
    assert documents[0].continued_trajectory_ref == file_name(1) == "trajectory.1.json"
    assert documents[1].continued_trajectory_ref is None
    assert [step.is_copied_context for step in documents[1].steps] == [True, True, None]
    assert [step.is_copied_context for step in documents[0].steps] == [None, None, None]


@pytest.mark.parametrize("text", ["\udcff\udc80", "\x00", "a\u2028b", "</s>"])
def test_odd_text_is_still_json_that_every_reader_takes(text: str) -> None:
    trajectory = Trajectory(
        entries=[MessageRecord(User(text)), MessageRecord(Assistant(text, text, (Call(text, {text: text}),)))]
    )
    (document,) = to_atif(trajectory, "s")
    json.dumps(document, ensure_ascii=False).encode()
    checked([document])
