"""What is wrong with the token side of a sample, if anything: a policy must keep its promises exactly."""

from __future__ import annotations

import math

from etude.core.errors import EtudeError
from etude.core.policy import Sample
from etude.harness.trajectory import Segment


def fault_of(sample: Sample, room: int, segment: Segment) -> str:
    """The first fault in a few words; empty: it can be used."""
    ids = sample.ids
    if ids is None:
        raise EtudeError("the policy returns no token ids: run it without a tokenizer, its trajectories are text alone")
    if not ids:
        return "it has no tokens"
    if len(ids) > room:
        return f"it has {len(ids)} tokens where at most {room} were asked for"
    if min(ids) < 0:
        return "it has a negative token id"
    if sample.logprobs is not None and len(sample.logprobs) != len(ids):
        return f"it has {len(ids)} tokens and {len(sample.logprobs)} log-probabilities"
    routed = len(segment.ids) - segment.routed + len(ids) - 1  # tokens whose experts nobody has whole yet
    if sample.experts is not None and len(sample.experts) != routed:
        return f"it tells the experts of {len(sample.experts)} tokens where {routed} were asked for"
    if sample.versions is not None and len(sample.versions) != len(ids):
        return f"it has {len(ids)} tokens and {len(sample.versions)} versions"
    if sample.logprobs is not None and not all(math.isfinite(value) and value <= 1e-3 for value in sample.logprobs):
        return "a log-probability is not one"
    return ""
