"""The messages between engine server and client as JSON or frames, and back; malformed ones are refused with a reason.

Imports no torch: the client lives in processes that never load it. Floats survive the journey exactly (JSON prints
enough digits); versions travel run-length encoded, as an answer rarely spans more than a few.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from etude.core.errors import EtudeError
from etude.core.policy import Experts, Sample, Sampling, Version
from etude.core.settings import EngineSettings
from etude.core.transport import Frame, from_json

READY = "etude engine ready at"  # what a server prints, followed by its address, once it listens
FIRST = Version(0, 0)  # of weights that no learner has published
UNKNOWN = Version(-1, 0)  # of weights that are of no run: an engine that is lent to one
LENT = "lent"  # folder below RUN/rl where engines that are lent say how they are reached
GIVE_BACK = ".back"  # ending of a file beside such an address: its owner wants the engine back
_STOPS = ("stop", "length", "abort")


def frames_path(socket: str) -> str:
    """Where a server that listens on a local socket takes frames."""
    return f"{socket}.frames"


@dataclass(frozen=True)
class EngineSpec:
    """What an engine process is started with."""

    model: Path  # Hugging Face directory
    settings: EngineSettings
    device: str = "cpu"
    threads: int = 0  # 0 takes all cores
    board: Path | None = None  # weight board that updates are read from
    version: Version = FIRST  # of the weights in the directory
    chain: str = ""  # directory or address of the delta chain that updates are read from, before any board
    chain_seconds: float = 60.0  # that a version may take to be there


@dataclass(frozen=True)
class GenerateRequest:
    ids: tuple[int, ...]
    sampling: dict[str, Any] = field(default_factory=dict)  # see read_sampling
    id: str | None = None  # a name for `abort`
    routed: int = 0  # leading tokens whose experts the one who asks knows already
    version: Version | None = None  # pinned: all of the answer is of these weights
    every: int = 0  # tokens after which news of them is sent; frames only, 0 sends none


@dataclass(frozen=True)
class ScoreRequest:
    sequences: tuple[tuple[int, ...], ...]
    temperature: float = 1.0


@dataclass(frozen=True)
class AbortRequest:
    id: str


@dataclass(frozen=True)
class UpdateRequest:
    version: Version


@dataclass(frozen=True)
class EmptyRequest:
    """Of routes that take nothing."""


def read_sampling(body: Any) -> Sampling:
    if isinstance(body, dict) and "top_logprobs" in body:  # an answer has no place for them
        raise EtudeError("unknown key 'top_logprobs'; alternatives are told by the OpenAI routes only")
    if isinstance(body, dict) and "seconds" in body:
        raise EtudeError("unknown key 'seconds'; a client that has waited long enough aborts its request")
    return from_json(Sampling, body)


def write_sampling(sampling: Sampling) -> dict[str, Any]:
    # Not `asdict`, which copies every value: it took a twentieth of the orchestrator's time.
    values = vars(sampling) | {"stop_ids": list(sampling.stop_ids)}
    del values["seconds"]  # the client's to keep: it aborts the request
    if values.pop("top_logprobs"):
        raise EtudeError("top_logprobs are told by the OpenAI routes only; ask for none here")
    return values


def write_sample(sample: Sample) -> dict[str, Any]:
    return {
        "ids": list(sample.ids or ()),
        "logprobs": list(sample.logprobs or ()),
        "versions": write_versions(sample.versions or ()),
        "stop": sample.stop,
        "cached_tokens": sample.cached_tokens,
        **({} if sample.experts is None else {"experts": write_experts(sample.experts)}),
    }


def read_sample(body: Mapping[str, Any]) -> Sample:
    """An answer of the server; one whose per-token facts do not match its tokens is refused, never trained on."""
    try:
        ids, logprobs = tuple(map(int, body["ids"])), tuple(map(float, body["logprobs"]))
        experts = read_experts(body["experts"]) if "experts" in body else None
    except (KeyError, TypeError, ValueError) as wrong:
        raise EtudeError(f"the engine's answer cannot be read ({wrong!r}); are both sides of one version?") from None
    return _sample(body, ids, logprobs, experts)


def _sample(
    body: Mapping[str, Any], ids: tuple[int, ...], logprobs: tuple[float, ...], experts: Experts | None
) -> Sample:
    try:
        versions, stop = read_versions(body["versions"]), body["stop"]
        cached = int(body["cached_tokens"])
    except (KeyError, TypeError, ValueError) as wrong:
        raise EtudeError(f"the engine's answer cannot be read ({wrong!r}); are both sides of one version?") from None
    if not len(ids) == len(logprobs) == len(versions) or stop not in _STOPS:
        raise EtudeError("the engine's answer contradicts itself: its tokens, log-probabilities and versions differ")
    return Sample(
        text="", stop=stop, ids=ids, logprobs=logprobs, versions=versions, cached_tokens=cached, experts=experts
    )


def write_experts(experts: Experts) -> dict[str, Any]:
    """Small numbers, and very many: as text they would be most of an answer."""
    little = np.ascontiguousarray(experts, "<i2")
    return {"shape": list(little.shape), "data": b64encode(little.tobytes()).decode()}


def read_experts(body: Mapping[str, Any]) -> Experts:
    tokens, blocks, chosen = map(int, body["shape"])
    flat = np.frombuffer(b64decode(body["data"], validate=True), "<i2")
    return flat.astype(np.int16).reshape(tokens, blocks, chosen)


def write_versions(versions: Sequence[Version]) -> list[tuple[str, int]]:
    return [(str(version), len(list(run))) for version, run in groupby(versions)]


def read_versions(runs: Sequence[Sequence[Any]]) -> tuple[Version, ...]:
    return tuple(version for text, count in runs for version in [Version.parse(text)] * int(count))


# Samples in frames


def write_generate(body: Mapping[str, Any]) -> Frame:
    """A request for a sample, as `EngineClient` would send it in JSON; its ids are an array."""
    header = {name: value for name, value in body.items() if name != "ids"}
    return Frame({"verb": "generate", "message": header}, {"ids": np.array(body["ids"], np.int32)})


def read_generate(frame: Frame) -> tuple[GenerateRequest, Sampling]:
    ids, body = frame.arrays.get("ids"), frame.header.get("message")
    if ids is None or ids.dtype != np.int32 or ids.ndim != 1 or not isinstance(body, dict) or "ids" in body:
        raise EtudeError("a request for a sample needs its ids as one array of 32-bit numbers")
    request = from_json(GenerateRequest, body | {"ids": ids.tolist()})
    return request, read_sampling(request.sampling)


def write_sample_frame(sample: Sample) -> Frame:
    facts = {
        "versions": write_versions(sample.versions or ()),
        "stop": sample.stop,
        "cached_tokens": sample.cached_tokens,
    }
    # 64 bits: a log-probability arrives as the very number that was sampled with
    arrays: dict[str, Any] = {"ids": np.array(sample.ids or (), np.int32)}
    arrays["logprobs"] = np.array(sample.logprobs or (), np.float64)
    if sample.experts is not None:
        arrays["experts"] = np.ascontiguousarray(sample.experts, np.int16)
    return Frame({"message": facts}, arrays)


def read_sample_frame(frame: Frame) -> Sample:
    body, arrays = frame.header.get("message"), frame.arrays
    experts = arrays.get("experts")
    if not isinstance(body, dict) or not {"ids", "logprobs"} <= arrays.keys() <= {"ids", "logprobs", "experts"}:
        raise EtudeError("the engine's answer cannot be read: it is no sample; are both sides of one version?")
    if experts is not None and (experts.dtype != np.int16 or experts.ndim != 3):
        raise EtudeError("the engine's answer cannot be read: its experts are no table of small numbers")
    ids, logprobs = arrays["ids"], arrays["logprobs"]
    if not (np.issubdtype(ids.dtype, np.integer) and np.issubdtype(logprobs.dtype, np.floating)):
        raise EtudeError("the engine's answer cannot be read: its tokens are no numbers")
    return _sample(body, tuple(ids.ravel().tolist()), tuple(logprobs.ravel().tolist()), experts)
