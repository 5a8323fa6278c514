"""A trajectory in the Agent Trajectory Interchange Format (ATIF 1.8), for other people's viewers and trainers.

Each segment becomes a document, as the format wants it where history was rewritten or summarised: what another one
said already is marked as copied, and a document names the one that goes on from it. A tool's results stand in the step
of the turn that called it. Token ids, log-probabilities and versions go along where they are known. One way only:
nothing here is read back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from etude.core.policy import Assistant, System, ToolResult, User
from etude.core.version import __version__
from etude.harness.trajectory import NO_VERSION, MessageRecord, Segment, Trajectory
from etude.harness.trajectory_files import readable
from etude.tokens.dialect import ToolSchema

SCHEMA = "ATIF-v1.8"


def file_name(segment: int) -> str:
    """The document of a segment: viewers look for `trajectory.json`."""
    return f"trajectory.{segment}.json" if segment else "trajectory.json"


def to_atif(trajectory: Trajectory, session: str, tools: Sequence[ToolSchema] = ()) -> list[dict[str, Any]]:
    """The documents of a trajectory, in the order of its segments; one where the policy gave no token ids."""
    segments: list[Segment | None] = [*trajectory.segments] or [None]
    return [_document(trajectory, number, segment, session, tools) for number, segment in enumerate(segments)]


def _document(
    trajectory: Trajectory, number: int, segment: Segment | None, session: str, tools: Sequence[ToolSchema]
) -> dict[str, Any]:
    numbers = range(len(trajectory.entries)) if segment is None else segment.messages
    model = readable(trajectory.policy)
    steps: list[dict[str, Any]] = []
    for place, entry in enumerate(numbers):
        record = trajectory.entries[entry]
        metrics = _metrics(trajectory, segment, place) if segment is not None else {}
        copied = segment is not None and record.segment != number
        _add(steps, record, metrics, copied, model)
    agent: dict[str, Any] = {"name": "etude", "version": __version__, "model_name": model}
    if tools:
        agent["tool_definitions"] = [{"type": "function", "function": asdict(tool)} for tool in tools]
    document: dict[str, Any] = {
        "schema_version": SCHEMA,
        "session_id": session,
        "trajectory_id": f"{session}/{number}",
        "agent": agent,
        "steps": steps,
        "extra": {"task": readable(trajectory.task), "stop": trajectory.stop, "tokenizer": trajectory.tokenizer},
    }
    after = [at for at, other in enumerate(trajectory.segments) if other.parent and other.parent.segment == number]
    if after:
        document["continued_trajectory_ref"] = file_name(after[0])
    if segment is not None:
        sampled = sum(origin != "environment" for origin in segment.origins[segment.copied :])
        document["final_metrics"] = {"total_completion_tokens": sampled, "total_steps": len(steps)}
        document["extra"] |= {"cause": segment.cause, "copied_tokens": segment.copied}
    return document


def _add(steps: list[dict[str, Any]], record: MessageRecord, metrics: dict[str, Any], copied: bool, model: str) -> None:
    """A message as a step of its own, or as an observation of the step before."""
    message = record.message
    extra = {name: value for name in ("error", "note", "stop", "seconds") if (value := getattr(record, name))}
    if isinstance(message, ToolResult) and steps and steps[-1]["source"] == "agent":
        results = steps[-1].setdefault("observation", {"results": []})["results"]
        calls = steps[-1].get("tool_calls", ())
        result: dict[str, Any] = {"content": readable(message.text), "extra": {"tool": readable(message.name), **extra}}
        if len(results) < len(calls):
            result["source_call_id"] = calls[len(results)]["tool_call_id"]
        results.append(result)
        return
    step: dict[str, Any] = {"step_id": len(steps) + 1, "extra": extra}
    match message:
        case Assistant():
            step |= {"source": "agent", "message": readable(message.final), "model_name": model}
            if message.thinking:
                step["reasoning_content"] = readable(message.thinking)
            if message.calls:
                step["tool_calls"] = [
                    {
                        "tool_call_id": f"call_{step['step_id']}_{at}",
                        "function_name": readable(call.name),
                        "arguments": {readable(name): readable(value) for name, value in call.arguments.items()},
                    }
                    for at, call in enumerate(message.calls)
                ]
            if metrics:
                step["metrics"] = metrics
        case System():
            step |= {"source": "system", "message": readable(message.text)}
        case User() | ToolResult():  # a result that answers nothing is what the user's side said
            step |= {"source": "user", "message": readable(message.text)}
    if copied:
        step["is_copied_context"] = True
    steps.append(step)


def _metrics(trajectory: Trajectory, segment: Segment, place: int) -> dict[str, Any]:
    """Ids, log-probabilities and versions of a turn; nothing for what no policy wrote."""
    own = [span for span in segment.rendered.spans if span.message == place and span.own]
    if not own:
        return {}
    start, end = own[0].start, own[-1].end
    extra: dict[str, Any] = {"origin": segment.origins[start], "sampling": asdict(trajectory.sampling)}
    found: dict[str, Any] = {
        "prompt_tokens": start,
        "completion_tokens": end - start,
        "completion_token_ids": segment.ids[start:end],
        "extra": extra,
    }
    if segment.origins[start] == "sampled":
        found["logprobs"] = segment.logprobs[start:end]
        extra["policy_versions"] = list(_runs(segment, start, end))
    return found


def _runs(segment: Segment, start: int, end: int) -> Iterator[dict[str, Any]]:
    """Which weights sampled how many tokens in a row."""
    for version, tokens in groupby(segment.versions[start:end]):
        yield {"version": None if version == NO_VERSION else str(version), "tokens": len(list(tokens))}
