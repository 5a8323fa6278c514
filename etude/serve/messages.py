"""The messages between engine server and client as JSON, and back; anything malformed is refused with a reason.

Imports no torch: the client lives in processes that never load it. Floats survive the journey exactly (JSON prints
enough digits); versions travel run-length encoded, as an answer rarely spans more than a few.
"""

from __future__ import annotations

import math
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from itertools import groupby
from typing import Any

import numpy as np

from etude.core.errors import EtudeError
from etude.core.policy import Experts, Sample, Sampling, Version

READY = "etude engine ready at"  # what a server prints, followed by its address, once it listens
FIRST = Version(0, 0)  # of weights that no learner has published
_SAMPLING = [field.name for field in fields(Sampling) if field.name != "top_logprobs"]  # an answer has no place for it
_STOPS = ("stop", "length", "abort")


def only(body: Any, *known: str) -> dict[str, Any]:
    """The body as an object with no other keys than these."""
    if not isinstance(body, dict):
        raise EtudeError("the body must be a JSON object")
    if unknown := sorted(set(body) - set(known)):
        raise EtudeError(f"unknown key {unknown[0]!r}; this call knows: {', '.join(known) or 'none'}")
    return body


def read_ids(value: Any, key: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(token) is int for token in value):
        raise EtudeError(f"{key!r} must be a list of token ids")
    return tuple(value)


def read_number(value: Any, key: str) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise EtudeError(f"{key!r} must be a number")
    return float(value)


def read_version(value: Any) -> Version:
    try:
        return Version.parse(value)
    except (AttributeError, ValueError):
        raise EtudeError(f"'version' must look like \"0.7\" (lineage.step), not {value!r}") from None


def read_sampling(body: Any) -> Sampling:
    values = only(body, *_SAMPLING)
    for key, value in values.items():
        if key == "stop_ids":
            values = {**values, key: read_ids(value, key)}
        elif key in ("temperature", "top_p"):
            read_number(value, key)
        elif type(value) is not int:
            raise EtudeError(f"{key!r} must be a whole number")
    return Sampling(**values)


def write_sampling(sampling: Sampling) -> dict[str, Any]:
    if sampling.top_logprobs:
        raise EtudeError("top_logprobs are told by the OpenAI routes only; ask for none here")
    values = asdict(sampling)
    return {name: values[name] for name in _SAMPLING} | {"stop_ids": list(sampling.stop_ids)}


def read_routed(body: Mapping[str, Any], ids: Sequence[int]) -> int:
    """How many leading tokens' experts the one who asks knows already."""
    routed = body.get("routed", 0)
    if type(routed) is not int or not 0 <= routed <= len(ids):
        raise EtudeError(f"'routed' must be a number of the request's {len(ids)} tokens")
    return routed


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
        versions, stop = read_versions(body["versions"]), body["stop"]
        cached = int(body["cached_tokens"])
        experts = read_experts(body["experts"]) if "experts" in body else None
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
