"""What it costs to serve a model: memory at given lengths of context, and tokens a second where that can be measured.

Memory is counted from the shape: weights and the cache of one context, in the numbers that the model is served in.
Speed is measured with the engine that serves, several requests at once with contexts of that length. Lengths beyond the
model's positions, or beyond what a measurement may take, have no speed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from etude.bench.base.model_under_test import Advance, ModelUnderTest
from etude.core.policy import Sampling
from etude.model import size


@dataclass(frozen=True)
class ServedLength:
    length: int  # tokens of one context
    memory: int  # bytes: weights, and the cache of one context
    prefill: float | None  # tokens/s of reading prompts
    decode: float | None  # tokens/s of writing, all requests together


@dataclass(frozen=True)
class Serving:
    parameters: int
    active: int  # weights that a token uses
    weights: int  # bytes
    cache_token: int  # bytes of one token
    requests: int  # at once
    lengths: list[ServedLength]


def measure_serving(
    tested: ModelUnderTest,
    ids: Sequence[int],
    lengths: Sequence[int],
    most: int,
    requests: int,
    tokens: int,
    advance: Advance = lambda lengths: None,
) -> Serving:
    """`ids` is text to fill contexts with; `most` the longest context that is measured."""
    config = tested.decoder.config
    number = tested.decoder.lm_head.weight.element_size()
    weights, cache = number * size.parameters(config), number * size.cache_entries(config)
    found = []
    for length in sorted(lengths):
        speed = _speed(tested, ids, length, requests, tokens) if length <= min(most, tested.positions) else None
        found.append(ServedLength(length, weights + cache * length, *(speed or (None, None))))
        advance(1)
    return Serving(size.parameters(config), size.active_parameters(config), weights, cache, requests, found)


def _speed(
    tested: ModelUnderTest, ids: Sequence[int], length: int, requests: int, tokens: int
) -> tuple[float, float] | None:
    room = length - tokens
    if room < 1:
        return None
    # Each prompt begins elsewhere, so that none finds another's beginning in the cache.
    prompts = [[ids[(number * 7919 + place) % len(ids)] for place in range(room)] for number in range(requests)]
    engine = tested.engine(length, requests)
    took = []
    for most in (1, tokens):  # first only read; then write, with what was read still in the cache
        began = time.perf_counter()
        for prompt in prompts:
            engine.submit(prompt, Sampling(max_tokens=most, temperature=0))
        while engine.busy:
            engine.step()
        took.append(max(1e-9, time.perf_counter() - began))
    return requests * room / took[0], requests * tokens / took[1]
