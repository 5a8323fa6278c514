"""A trajectory as a directory: `messages.jsonl` for people, `tokens.safetensors` beside it, `trajectory.json` of facts.

A directory may come from anywhere, so reading trusts nothing: three fixed names that must be plain files of bounded
size, no pickle, every type, shape, range and reference checked, one sentence about whatever is wrong. What was
saved comes back equal. Knows nothing of how a trajectory came about.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import stat
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pydantic
from safetensors import numpy as safetensors_numpy

from etude.core.errors import EtudeError
from etude.core.policy import UNROUTED, Sampling, StopReason, Version
from etude.core.recipe import first_problem
from etude.core.settings import AgentLimits
from etude.core.terms import NO_TERMS, Terms
from etude.harness.failures import ErrorClass
from etude.harness.trajectory import (
    ORIGINS,
    PARTS,
    Cause,
    MessageRecord,
    Parent,
    Purpose,
    Segment,
    StopCause,
    Trajectory,
)
from etude.tokens.conversations import message_from_json, message_to_json
from etude.tokens.render import Rendered, Span

MESSAGES, TOKENS, FACTS = "messages.jsonl", "tokens.safetensors", "trajectory.json"
LARGEST = {MESSAGES: 256 << 20, TOKENS: 1 << 30, FACTS: 4 << 20}  # bytes
ARRAYS: dict[str, tuple[type[np.generic], tuple[int, ...]]] = {
    "ids": (np.int32, ()),
    "origin": (np.uint8, ()),
    "logprob": (np.float32, ()),
    "version": (np.int32, (2,)),
    "spans": (np.int32, (5,)),
}
EXPERTS = "experts"  # only where a model with experts sampled: [tokens, blocks, experts of a token]


class _SegmentFacts(pydantic.BaseModel, extra="forbid", strict=True):
    cause: Cause
    parent: tuple[int, int] | None
    copied: int
    messages: list[int]
    untrained: list[int] = []


class _Facts(pydantic.BaseModel, extra="forbid", strict=True):
    format: Literal[1]
    task: str
    policy: str
    tokenizer: str
    tools: tuple[str, ...]
    limits: AgentLimits
    sampling: Sampling
    terms: Terms = NO_TERMS  # files from before there were any have none
    stop: StopCause
    seconds: pydantic.FiniteFloat
    segments: list[_SegmentFacts]
    # For readers with no more than a JSON parser: all of it follows from the rest.
    versions: list[str] = []
    answer: str = ""
    effort: dict[str, int | bool] = {}
    trainable: str = ""


class _Extras(pydantic.BaseModel, extra="forbid", strict=True):
    """What a line of messages.jsonl says beside the message."""

    segment: int = 0
    error: ErrorClass | None = None
    note: str = ""
    stop: StopReason | None = None
    seconds: pydantic.FiniteFloat = 0.0
    purpose: Purpose = ""


# Saving


def save_trajectory(trajectory: Trajectory, directory: Path) -> None:
    """Writes the three files. The directory appears whole or not at all; one that is there is not overwritten."""
    if directory.exists():
        raise EtudeError(f"cannot save a trajectory to {directory}: it exists already; choose another name")
    working = directory.with_name(f".{directory.name}.saving")
    try:
        shutil.rmtree(working, ignore_errors=True)
        working.mkdir(parents=True)
        lines = [json.dumps(_line(entry)) + "\n" for entry in trajectory.entries]
        (working / MESSAGES).write_text("".join(lines), encoding="ascii")
        arrays = {
            f"{number}.{name}": array
            for number, segment in enumerate(trajectory.segments)
            for name, array in segment.arrays().items()
        }
        (working / TOKENS).write_bytes(safetensors_numpy.save(arrays))
        (working / FACTS).write_text(json.dumps(_facts(trajectory), indent=1) + "\n", encoding="ascii")
        working.rename(directory)
    except OSError as error:
        shutil.rmtree(working, ignore_errors=True)
        raise EtudeError(f"cannot save a trajectory to {directory}: {error.strerror}") from error


def _line(entry: MessageRecord) -> dict[str, Any]:
    extras = {
        field.name: value
        for field in dataclasses.fields(entry)[1:]
        if (value := getattr(entry, field.name)) != field.default
    }
    return message_to_json(entry.message) | extras


def _facts(trajectory: Trajectory) -> dict[str, Any]:
    return {
        "format": 1,
        "task": readable(trajectory.task),
        "policy": readable(trajectory.policy),
        "tokenizer": trajectory.tokenizer,
        "tools": [readable(name) for name in trajectory.tools],
        "stop": trajectory.stop,
        "answer": readable(trajectory.answer),
        "seconds": trajectory.seconds,
        "effort": dataclasses.asdict(trajectory.effort),
        "trainable": trajectory.trainable.why_not or "yes",
        "versions": [str(version) for version in trajectory.versions],
        "limits": dataclasses.asdict(trajectory.limits),
        "sampling": dataclasses.asdict(trajectory.sampling),
        "terms": dataclasses.asdict(trajectory.terms),
        "segments": [
            {
                "cause": s.cause,
                "parent": s.parent,
                "copied": s.copied,
                "messages": s.messages,
                "untrained": s.untrained,
            }
            for s in trajectory.segments
        ],
    }


def readable(text: str) -> str:
    """Facts are for any JSON reader, and most refuse the lone surrogates that messages may hold."""
    return text.encode("utf-8", "backslashreplace").decode()


# Loading


def load_trajectory(directory: Path) -> Trajectory:
    """Reads and checks a saved trajectory; `EtudeError` says what is wrong with it."""
    try:
        return _load(directory)
    except _Refused as refused:
        raise EtudeError(f"{directory} is not a trajectory that can be read: {refused}") from refused


class _Refused(Exception):
    """Why, in a few words."""


def _load(directory: Path) -> Trajectory:
    try:
        facts = _Facts.model_validate_json(_contents(directory, FACTS))
    except pydantic.ValidationError as error:
        raise _Refused(f"{FACTS}: {first_problem(error)}") from error
    entries = [
        _entry(line, f"{MESSAGES}, line {number}", len(facts.segments))
        for number, line in enumerate(_contents(directory, MESSAGES).split(b"\n"), start=1)
        if line
    ]
    arrays = _arrays(_contents(directory, TOKENS), len(facts.segments))
    segments: list[Segment] = []
    for number, (segment_facts, found) in enumerate(zip(facts.segments, arrays, strict=True)):
        segments.append(_segment(number, segment_facts, found, entries, segments))
    return Trajectory(
        task=facts.task,
        policy=facts.policy,
        tokenizer=facts.tokenizer,
        tools=facts.tools,
        limits=facts.limits,
        sampling=facts.sampling,
        terms=facts.terms,
        entries=entries,
        segments=segments,
        stop=facts.stop,
        seconds=facts.seconds,
    )


def _contents(directory: Path, name: str) -> bytes:
    """A plain file of bounded size; opening a link fails, and opening a pipe does not wait for its other end."""
    try:
        handle = os.open(directory / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise _Refused(f"{name}: {error.strerror}") from error
    try:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode):
            raise _Refused(f"{name} is not a plain file")
        if facts.st_size > LARGEST[name]:
            raise _Refused(f"{name} is larger than {LARGEST[name] >> 20} MiB")
        with os.fdopen(handle, "rb", closefd=False) as file:
            return file.read(facts.st_size)
    finally:
        os.close(handle)


def _entry(line: bytes, where: str, segments: int) -> MessageRecord:
    try:
        value = json.loads(line)
        if not isinstance(value, dict):
            raise _Refused(f"{where} is not a JSON object")
        extras = _Extras.model_validate({key: value.pop(key) for key in _Extras.model_fields if key in value})
        message = message_from_json(value, where)
    except pydantic.ValidationError as error:
        raise _Refused(f"{where}: {first_problem(error)}") from error
    except (ValueError, RecursionError, EtudeError) as error:
        raise _Refused(f"{where}: {error}") from error
    # Text alone has no segments; its contexts are counted all the same.
    if extras.segment < -1 or (segments and extras.segment >= segments):
        raise _Refused(f"{where}: there is no segment {extras.segment}")
    return MessageRecord(message, **dict(extras))


def _arrays(data: bytes, segments: int) -> list[dict[str, np.ndarray]]:
    try:
        loaded = safetensors_numpy.load(data)
    except Exception as error:  # the library raises several kinds of its own for a file that is not one
        raise _Refused(f"{TOKENS} cannot be read: {error}") from error
    experts = {number: loaded.pop(f"{number}.{EXPERTS}", None) for number in range(segments)}
    expected = {f"{number}.{name}" for number in range(segments) for name in ARRAYS}
    if set(loaded) != expected:
        odd = sorted(set(loaded) ^ expected)[0]
        raise _Refused(f"{TOKENS} and {FACTS} do not agree about {odd[:40]!r}")
    found = [{name: _checked(loaded[f"{n}.{name}"], f"{n}.{name}", name) for name in ARRAYS} for n in range(segments)]
    for number, array in experts.items():
        if array is not None:
            if array.dtype != np.int16 or array.ndim != 3 or (array < UNROUTED).any():
                raise _Refused(f"{TOKENS}: {number}.{EXPERTS} is not a table of experts")
            found[number][EXPERTS] = array
    return found


def _checked(array: np.ndarray, where: str, name: str) -> np.ndarray:
    kind, inner = ARRAYS[name]
    if array.dtype != kind or array.ndim != 1 + len(inner) or array.shape[1:] != inner:
        raise _Refused(f"{TOKENS}: {where} is {array.dtype}{list(array.shape)}, not {np.dtype(kind)} with rows {inner}")
    return array


def _segment(
    number: int, facts: _SegmentFacts, found: dict[str, np.ndarray], entries: list[MessageRecord], before: list[Segment]
) -> Segment:
    where = f"segment {number}"
    length = len(found["ids"])
    if any(len(found[name]) != length for name in ("origin", "logprob", "version", EXPERTS) if name in found):
        raise _Refused(f"{where}: its arrays have different lengths")
    if length and found["ids"].min() < 0:
        raise _Refused(f"{where} has a negative token id")
    if length and found["origin"].max() >= len(ORIGINS):
        raise _Refused(f"{where} has an origin that does not exist")
    # Rounding may put a log-probability a little above 0.
    if not np.isfinite(found["logprob"]).all() or (found["logprob"] > 1e-3).any():
        raise _Refused(f"{where} has a log-probability that is not one")
    if (found["version"] < -1).any():
        raise _Refused(f"{where} has a version below -1")
    versioned = (found["version"] >= 0).any(axis=1)
    # Otherwise a forged file could have tokens trained that no policy wrote.
    if ((found["origin"] != ORIGINS.index("sampled")) & (versioned | (found["logprob"] != 0))).any():
        raise _Refused(f"{where} has a version or a log-probability on a token that was not sampled")
    if not 0 <= facts.copied <= length:
        raise _Refused(f"{where} says that {facts.copied} of its {length} tokens are copied")
    if (facts.parent is None) != (facts.cause == "start"):
        raise _Refused(f"{where}: a start has no parent, anything else has one")
    if facts.parent is not None:
        parent, offset = facts.parent
        if not 0 <= parent < number or not 0 <= offset <= len(before[parent].ids):
            raise _Refused(f"{where} names a parent that does not exist")
    if any(not 0 <= entry < len(entries) for entry in facts.messages):
        raise _Refused(f"{where} names a message that does not exist")
    spans = _spans(found["spans"], found["origin"], len(facts.messages), where)
    return Segment(
        cause=facts.cause,
        parent=Parent(*facts.parent) if facts.parent is not None else None,
        copied=facts.copied,
        untrained=facts.untrained,
        rendered=Rendered(found["ids"].tolist(), spans),
        messages=facts.messages,
        origins=[ORIGINS[code] for code in found["origin"].tolist()],
        logprobs=found["logprob"].tolist(),
        versions=[Version(*pair) for pair in found["version"].tolist()],
        experts=[found[EXPERTS][: _routed(found[EXPERTS])]] if EXPERTS in found else [],
    )


def _routed(experts_TBK: np.ndarray) -> int:
    """Leading tokens whose experts are known."""
    unknown = np.flatnonzero((experts_TBK == UNROUTED).any(axis=(1, 2)))
    return int(unknown[0]) if len(unknown) else len(experts_TBK)


def _spans(rows: np.ndarray, origins: np.ndarray, messages: int, where: str) -> list[Span]:
    """Spans must lie end to end, cover all tokens, count messages up, and own what the policy wrote."""
    spans: list[Span] = []
    at, last = 0, 0
    for message, part, start, end, own in rows.tolist():
        if start != at or end <= start or end > len(origins):
            raise _Refused(f"{where}: its spans do not lie end to end")
        # A turn may stand open, still without its message; and a chat template need not give each message tokens.
        if not last <= message <= messages:
            raise _Refused(f"{where}: its spans name messages out of order")
        if not 0 <= part < len(PARTS) or own not in (0, 1):
            raise _Refused(f"{where} has a span of a part that does not exist")
        if not own and origins[start:end].any():
            raise _Refused(f"{where}: tokens of the policy stand outside its turns")
        spans.append(Span(message, PARTS[part], start, end, bool(own)))
        at, last = end, message
    if at != len(origins):
        raise _Refused(f"{where}: its spans do not cover all tokens")
    return spans
