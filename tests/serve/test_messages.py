"""Messages survive the journey exactly, and malformed ones are refused with a reason."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.core.errors import EtudeError
from etude.core.policy import Sample, Sampling, Version
from etude.core.transport import from_json
from etude.serve import messages as wire

versions = st.builds(Version, st.integers(0, 5), st.integers(0, 10**6))
tokens = st.tuples(st.integers(0, 10**6), st.floats(-1e4, 0, allow_subnormal=False), versions)


@given(st.lists(tokens, max_size=30), st.sampled_from(["stop", "length", "abort"]), st.integers(0, 99))
def test_a_sample_survives_the_journey_exactly(facts: list[tuple[int, float, Version]], stop: Any, cached: int) -> None:
    ids, logprobs, seen = (tuple(fact[i] for fact in facts) for i in range(3))
    sample = Sample("", stop, ids, logprobs, seen, cached)  # type: ignore[arg-type]
    assert wire.read_sample(json.loads(json.dumps(wire.write_sample(sample)))) == sample


@given(
    st.builds(
        Sampling,
        max_tokens=st.integers(1, 999),
        temperature=st.floats(0, 9, allow_subnormal=False),
        top_p=st.floats(0.1, 1),
        top_k=st.integers(0, 99),
        seed=st.integers(0, 2**64),
        stop_ids=st.lists(st.integers(0, 99), max_size=3).map(tuple),
    )
)
def test_sampling_survives_the_journey_exactly(sampling: Sampling) -> None:
    assert wire.read_sampling(json.loads(json.dumps(wire.write_sampling(sampling)))) == sampling


def test_versions_travel_as_runs() -> None:
    seen = (Version(0, 1), Version(0, 1), Version(0, 2), Version(0, 1))
    assert wire.write_versions(seen) == [("0.1", 2), ("0.2", 1), ("0.1", 1)]
    assert wire.read_versions(wire.write_versions(seen)) == seen


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([], "must be a JSON object"),
        ({"tempreature": 1}, "unknown key 'tempreature'"),
        ({"temperature": "hot"}, "'temperature' must be a number"),
        ({"temperature": float("inf")}, "'temperature' must be a number"),
        ({"max_tokens": 1.5}, "'max_tokens' must be a whole number"),
        ({"top_k": True}, "'top_k' must be a whole number"),
        ({"stop_ids": ["a"]}, "'stop_ids' must be a list of token ids"),
    ],
)
def test_malformed_sampling_is_refused(body: Any, message: str) -> None:
    with pytest.raises(EtudeError, match=message):
        wire.read_sampling(body)


@pytest.mark.parametrize("text", ["", "7", "a.b", 7, None, "1.2.3"])
def test_malformed_versions_are_refused(text: Any) -> None:
    with pytest.raises(EtudeError, match=r"lineage\.step"):
        from_json(wire.UpdateRequest, {"version": text})


def test_an_answer_that_contradicts_itself_is_refused() -> None:
    good = wire.write_sample(Sample("", "stop", (1, 2), (-0.5, -0.5), (Version(0, 0),) * 2))
    for wrong in ({"logprobs": [-0.5]}, {"versions": [["0.0", 3]]}, {"stop": "perhaps"}, {"ids": ["x", "y"]}):
        with pytest.raises(EtudeError, match="the engine's answer"):
            wire.read_sample({**good, **wrong})
    with pytest.raises(EtudeError, match="cannot be read"):
        wire.read_sample({})


def test_alternatives_are_not_asked_for_where_no_answer_has_a_place_for_them() -> None:
    with pytest.raises(EtudeError, match="OpenAI routes only"):
        wire.write_sampling(Sampling(top_logprobs=1))
    with pytest.raises(EtudeError, match="unknown key 'top_logprobs'"):
        wire.read_sampling({"top_logprobs": 0})
