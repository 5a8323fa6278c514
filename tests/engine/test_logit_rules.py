"""Penalties, biases, cuts and constraints: against a loop over float64 logits that applies their definitions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from benchmarks.reference_ops import ReferenceOps
from etude.core.errors import EtudeError
from etude.core.policy import Sampling, Version
from etude.core.settings import EngineSettings
from etude.engine.cuda.runner import PagedRunner
from etude.engine.engine import Engine
from etude.engine.logit_rules import LogitRules, OneOf
from etude.engine.request import Request
from etude.model.decoder import Decoder

PROMPT = (5, 9, 5, 13)
Finish = Callable[[Engine], list[Request]]


class Even:
    """Even ids only."""

    def allowed(self, sampled: Sequence[int]) -> NDArray[np.bool_] | None:
        return np.arange(97) % 2 == 0


RULES: dict[str, dict[str, Any]] = {
    "frequency": {"frequency_penalty": 1.5},
    "presence": {"presence_penalty": -2.0},
    "repetition": {"repetition_penalty": 1.7},
    "bias": {"logit_bias": {3: 4.0, 7: -100.0}},
    "min_p": {"min_p": 0.2},
    "constraint": {"constraint": Even()},
    "all": {"frequency_penalty": 0.5, "repetition_penalty": 1.2, "logit_bias": {8: 2.0}, "constraint": Even()},
}


def expected(logits_V: list[float], sampled: Sequence[int], rules: dict[str, Any], temperature: float) -> list[float]:
    """Log-probabilities of the next token, by the definitions."""
    seen, out = {*PROMPT, *sampled}, list(logits_V)
    for token, value in enumerate(logits_V):
        factor = rules.get("repetition_penalty", 1.0)
        if token in seen:
            value = value / factor if value > 0 else value * factor
        count = list(sampled).count(token)
        value -= rules.get("frequency_penalty", 0.0) * count + rules.get("presence_penalty", 0.0) * bool(count)
        value += rules.get("logit_bias", {}).get(token, 0.0)
        out[token] = -math.inf if "constraint" in rules and token % 2 else value / temperature
    if "min_p" in rules:
        top = max(math.exp(value) for value in out)
        out = [value if math.exp(value) >= rules["min_p"] * top else -math.inf for value in out]
    total = math.log(sum(math.exp(value) for value in out))
    return [value - total for value in out]


@pytest.mark.parametrize("paged", [False, True], ids=["rows", "pages"])
@pytest.mark.parametrize("name", RULES)
def test_log_probabilities_are_those_of_the_definitions(
    decoder: Decoder, settings: EngineSettings, finish: Finish, logprobs: Any, name: str, paged: bool
) -> None:
    runner = PagedRunner(decoder, settings, ReferenceOps()) if paged else None
    engine = Engine(decoder, settings, Version(0, 0), runner)
    rules, sampling = RULES[name], Sampling(12, 0.8, seed=3)
    plain = engine.submit(PROMPT, sampling)  # a neighbour without rules
    bent = engine.submit(PROMPT, sampling, rules=LogitRules(**rules))
    finish(engine)
    assert plain.sampled != bent.sampled
    for place, token in enumerate(bent.sampled):
        logits = logprobs(decoder, [*PROMPT, *bent.sampled[:place]]).tolist()
        # a shift of all logits matters to the repetition penalty alone
        if "repetition_penalty" in rules:
            hidden = decoder(torch.tensor([*PROMPT, *bent.sampled[:place]]), *_flat(len(PROMPT) + place))
            logits = decoder.logits(hidden[-1]).double().tolist()
        wanted = expected(logits, bent.sampled[:place], rules, 0.8)
        assert bent.logprobs[place] == pytest.approx(wanted[token], abs=1e-4)


def _flat(length: int) -> tuple[Any, Any]:
    from etude.model.attention import PackedAttend

    return torch.arange(length), PackedAttend([length])


def test_no_stop_id_comes_before_the_least_length(engine: Engine, finish: Finish) -> None:
    ends = tuple(range(90))  # almost everything ends the answer
    short = engine.submit(PROMPT, Sampling(20, seed=1, stop_ids=ends))
    long = engine.submit(PROMPT, Sampling(20, seed=1, stop_ids=ends), rules=LogitRules(min_tokens=8))
    finish(engine)
    assert len(short.sampled) < 8 <= len(long.sampled)
    assert not set(long.sampled[:8]) & set(ends)


def test_an_answer_begins_with_one_of_the_sequences_and_goes_on_as_that_says(engine: Engine, finish: Finish) -> None:
    first = {(4, 6): None, (4, 7, 1): Even(), (11,): None}
    for seed in range(8):
        request = engine.submit(
            PROMPT, Sampling(6, 2.0, seed=seed), rules=LogitRules(constraint=OneOf(first, vocab_size=97))
        )
        finish(engine)
        begun = [sequence for sequence in first if tuple(request.sampled[: len(sequence)]) == sequence]
        assert len(begun) == 1
        if begun[0] == (4, 7, 1):
            assert all(token % 2 == 0 for token in request.sampled[3:])


def test_rules_that_ask_for_nothing_are_none_and_drafts_are_refused_beside_others(
    decoder: Decoder, settings: EngineSettings, engine: Engine
) -> None:
    assert engine.submit(PROMPT, Sampling(2), rules=LogitRules()).rules is None
    engine.settings = replace(settings, speculate=1)
    with pytest.raises(EtudeError, match=r"engine.speculate=0"):
        engine.submit(PROMPT, Sampling(2), rules=LogitRules(min_p=0.1))


def test_a_prompts_own_log_probabilities_are_those_of_the_model(
    decoder: Decoder, engine: Engine, logprobs: Any
) -> None:
    ids = (5, 9, 5, 13, 80, 2)
    scores = engine.prompt_scores(ids, 3)
    for place in range(1, len(ids)):
        wanted = logprobs(decoder, ids[:place])
        assert scores.logprobs[place - 1] == pytest.approx(float(wanted[ids[place]]), abs=1e-5)
        assert [token for token, _ in scores.tops[place - 1]] == wanted.topk(3).indices.tolist()
    assert engine.prompt_scores((5,), 3).logprobs == []
