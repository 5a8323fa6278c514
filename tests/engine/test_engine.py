"""The engine against loops without a cache: the same tokens, the same log-probabilities, nothing lost."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from etude.core.errors import EtudeError
from etude.core.policy import Sampling, Version
from etude.core.settings import EngineSettings
from etude.engine.engine import Engine, QueueFull
from etude.model.attention import PackedAttend
from etude.model.decoder import Decoder

VOCAB = 97
V0 = Version(0, 0)


def prompt(seed: int, length: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(VOCAB) for _ in range(length)]


def test_greedy_answers_and_log_probabilities_are_those_of_a_loop_without_a_cache(
    engine: Engine, decoder: Decoder, finish: Callable, greedy: Callable
) -> None:
    requests = [
        engine.submit(prompt(i, 1 + 9 * i % 70), Sampling(max_tokens=1 + 5 * i % 17, temperature=0.0))
        for i in range(14)
    ]
    finish(engine)
    for request in requests:
        answer, scores = greedy(decoder, request.prompt, request.sampling.max_tokens)
        assert request.sampled == answer
        assert request.logprobs == pytest.approx(scores, abs=1e-5)
        assert request.stop == "length"


def test_long_answers_of_requests_that_come_and_go_are_those_of_a_loop_without_a_cache(
    engine: Engine, decoder: Decoder, finish: Callable, until: Callable, greedy: Callable
) -> None:
    """Longer than the steps that a runner prepares together, begun and ended in the middle of them."""
    requests = [
        engine.submit(prompt(i, 1 + 4 * i), Sampling(max_tokens=n, temperature=0.0)) for i, n in enumerate((90, 40))
    ]
    for number, begin in ((2, 7), (3, 45)):
        until(engine, lambda begin=begin: len(requests[0].logprobs) >= begin)
        requests.append(engine.submit(prompt(number, 9), Sampling(max_tokens=35 * number - 33, temperature=0.0)))
    finish(engine)
    for request in requests:
        answer, scores = greedy(decoder, request.prompt, request.sampling.max_tokens)
        assert request.sampled == answer
        assert request.logprobs == pytest.approx(scores, abs=1e-5)


def test_sampled_log_probabilities_are_of_the_distribution_sampled_from(
    engine: Engine, decoder: Decoder, finish: Callable, logprobs: Callable
) -> None:
    requests = [
        engine.submit(prompt(i, 5 + i), Sampling(max_tokens=12, temperature=t, seed=i))
        for i, t in enumerate((1.0, 0.7, 1.6, 1.0))
    ]
    finish(engine)
    for request in requests:
        for i, token in enumerate(request.sampled):
            row = logprobs(decoder, request.tokens[: len(request.prompt) + i], request.sampling.temperature)
            assert request.logprobs[i] == pytest.approx(float(row[token]), abs=1e-5)


def test_a_seed_samples_the_same_alone_in_company_and_under_preemption(decoder: Decoder, finish: Callable) -> None:
    work = [(prompt(i, 3 + 5 * i % 40), Sampling(max_tokens=20, seed=100 + i)) for i in range(12)]
    alone = []
    for ids, sampling in work:
        engine = Engine(decoder, EngineSettings(max_running=1, cache_tokens=128, max_length=128), V0)
        alone.append(engine.submit(ids, sampling))
        finish(engine)
    crowded = Engine(
        decoder,
        EngineSettings(max_running=8, cache_tokens=160, block_tokens=4, max_length=128, prefill_tokens=7),
        V0,
    )
    together = [crowded.submit(ids, sampling) for ids, sampling in reversed(work)]
    finish(crowded)
    assert crowded.scheduler.preemptions > 0
    for a, b in zip(alone, reversed(together), strict=True):
        assert a.sampled == b.sampled
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-5)


def test_a_different_seed_samples_something_else(engine: Engine, finish: Callable) -> None:
    answers = [engine.submit(prompt(0, 8), Sampling(max_tokens=30, temperature=2.0, seed=seed)) for seed in range(5)]
    finish(engine)
    assert len({tuple(request.sampled) for request in answers}) == 5


def test_a_prefix_from_the_cache_gives_the_same_answer(
    engine: Engine, decoder: Decoder, finish: Callable, greedy: Callable
) -> None:
    shared = prompt(0, 40)
    engine.submit(shared, Sampling(max_tokens=2, temperature=0.0))
    finish(engine)
    before = engine.counts.computed_tokens
    later = engine.submit([*shared, 5, 6], Sampling(max_tokens=9, temperature=0.0))
    finish(engine)
    assert later.cached_tokens == 40
    assert engine.counts.computed_tokens - before == 2 + 8
    answer, scores = greedy(decoder, later.prompt, 9)
    assert later.sampled == answer
    assert later.logprobs == pytest.approx(scores, abs=1e-5)


def test_the_next_turn_finds_the_answer_of_the_last_in_the_cache(engine: Engine, finish: Callable) -> None:
    first = engine.submit(prompt(0, 20), Sampling(max_tokens=21, temperature=0.0))
    finish(engine)
    second = engine.submit([*first.tokens, 1, 2, 3], Sampling(max_tokens=1, temperature=0.0))
    finish(engine)
    assert second.cached_tokens == 40


def test_a_group_computes_its_prompt_once(engine: Engine, decoder: Decoder, finish: Callable, greedy: Callable) -> None:
    ids = prompt(0, 29)
    group = [engine.submit(ids, Sampling(max_tokens=4, temperature=0.0)) for _ in range(6)]
    finish(engine)
    shared, own = 24, 5
    assert engine.counts.computed_tokens == shared + 6 * (own + 3)
    assert engine.counts.cached_tokens == 5 * shared
    answer, _ = greedy(decoder, ids, 4)
    assert all(request.sampled == answer for request in group)


def test_an_aborted_request_gives_its_blocks_back_and_keeps_its_tokens(
    engine: Engine, decoder: Decoder, finish: Callable, greedy: Callable
) -> None:
    kept = engine.submit(prompt(0, 20), Sampling(max_tokens=20, temperature=0.0))
    victim = engine.submit(prompt(1, 20), Sampling(max_tokens=50, temperature=0.0))
    waiting = engine.submit(prompt(2, 20), Sampling(max_tokens=50, temperature=0.0))
    for _ in range(6):
        engine.step()
    for request in (victim, waiting):
        assert engine.abort(request.number) is request
        assert request.stop == "abort"
        engine.check()
    assert engine.abort(victim.number) is None
    assert victim.sampled == greedy(decoder, victim.prompt, len(victim.sampled))[0]
    finish(engine)
    assert kept.sampled == greedy(decoder, kept.prompt, 20)[0]
    assert engine.pool.held == 0


def test_a_stop_id_ends_the_answer_and_is_its_last_token(engine: Engine, decoder: Decoder, finish: Callable) -> None:
    ids = prompt(3, 10)
    free = engine.submit(ids, Sampling(max_tokens=20, temperature=0.0))
    finish(engine)
    stop = free.sampled[6]
    bound = engine.submit(ids, Sampling(max_tokens=20, temperature=0.0, stop_ids=(stop,)))
    finish(engine)
    assert bound.stop == "stop"
    assert bound.sampled == free.sampled[: free.sampled.index(stop) + 1]


def test_a_paused_engine_keeps_its_requests_and_goes_on(
    engine: Engine, decoder: Decoder, finish: Callable, greedy: Callable
) -> None:
    request = engine.submit(prompt(0, 10), Sampling(max_tokens=10, temperature=0.0))
    engine.step()
    engine.pause()
    assert engine.step() == []
    assert not engine.busy
    late = engine.submit(prompt(1, 10), Sampling(max_tokens=3, temperature=0.0))
    assert len(request.sampled) == 1
    engine.resume()
    finish(engine)
    assert request.sampled == greedy(decoder, request.prompt, 10)[0]
    assert late.sampled == greedy(decoder, late.prompt, 3)[0]


def test_impossible_requests_are_refused_at_the_door(decoder: Decoder) -> None:
    engine = Engine(decoder, EngineSettings(cache_tokens=64, max_length=100, max_waiting=1), V0)
    for ids, sampling, message in (
        ([], Sampling(), "at least one token"),
        ([1, VOCAB], Sampling(), f"token id {VOCAB} is outside"),
        ([1, -1], Sampling(), "token id -1 is outside"),
        ([1], Sampling(max_tokens=0), "max_tokens is 0"),
        ([1], Sampling(temperature=-1.0), "temperature is -1"),
        ([1], Sampling(temperature=float("nan")), "temperature is nan"),
        ([1], Sampling(temperature=1e-9), "temperature is 1e-09"),
        ([1], Sampling(top_p=0.0), "top_p is 0"),
        ([1], Sampling(top_k=-2), "top_k is -2"),
        ([1] * 60, Sampling(max_tokens=41), "engine.max_length = 100"),
        ([1] * 60, Sampling(max_tokens=5), "engine.cache_tokens = 64"),
    ):
        with pytest.raises(EtudeError, match=message):
            engine.submit(ids, sampling)
    wide = Engine(decoder, EngineSettings(cache_tokens=2048, max_length=1024), V0)
    with pytest.raises(EtudeError, match="256 positions"):
        wide.submit([1] * 250, Sampling(max_tokens=7))
    engine.submit([1] * 60, Sampling(max_tokens=4))
    with pytest.raises(QueueFull, match="1 requests waiting"):
        engine.submit([1], Sampling(max_tokens=1))


def test_logits_that_are_not_finite_fail_the_request_loudly_and_nobody_after_it(
    own_decoder: Decoder, settings: EngineSettings, finish: Callable, greedy: Callable
) -> None:
    engine = Engine(own_decoder, settings, V0)
    healthy = {name: tensor.clone() for name, tensor in own_decoder.state_dict().items()}
    ids = prompt(0, 30)
    running = engine.submit(ids, Sampling(max_tokens=20, temperature=0.0))
    for _ in range(4):
        engine.step()

    def poison(decoder: Decoder) -> None:
        with torch.no_grad():
            decoder.model.layers[0].mlp.up_proj.weight[0, 0] = float("nan")

    engine.update(poison, Version(0, 1))
    other = engine.submit(prompt(1, 50), Sampling(max_tokens=20))
    failed = finish(engine)
    assert set(failed) == {running, other}
    assert engine.counts.failed == 2
    for request in failed:
        with pytest.raises(EtudeError, match=r"not finite at version 0\.1"):
            request.answer()
    assert running.versions == [V0] * len(running.sampled)

    engine.update(lambda decoder: decoder.load_state_dict(healthy) and None, Version(0, 2))
    again = [engine.submit(prompt(i, 30), Sampling(max_tokens=9, temperature=0.0)) for i in range(6)]
    finish(engine)
    for request in again:
        assert request.sampled == greedy(own_decoder, request.prompt, 9)[0]
    assert engine.pool.held == 0


def test_what_a_failed_request_left_in_the_cache_is_not_used_again(
    engine: Engine, decoder: Decoder, finish: Callable, greedy: Callable
) -> None:
    ask = prompt(0, 40), Sampling(max_tokens=5, temperature=0.0)
    engine.submit(*ask)
    finish(engine)
    engine.cache.blocks_NLPKBD.fill_(float("nan"))
    hit = engine.submit(*ask)
    finish(engine)
    assert hit.error is not None
    again = engine.submit(*ask)
    finish(engine)
    assert again.sampled == greedy(decoder, ask[0], 5)[0]


def test_scores_are_those_of_a_forward_over_whole_sequences(engine: Engine, decoder: Decoder) -> None:
    sequences = [prompt(i, length) for i, length in enumerate((1, 2, 17, 60, 33, 90))]
    for temperature in (1.0, 0.6):
        scores = engine.score(sequences, temperature)
        for ids, row in zip(sequences, scores, strict=True):
            with torch.inference_mode():
                hidden = decoder(torch.tensor(ids), torch.arange(len(ids)), PackedAttend([len(ids)]))
                expected = (decoder.logits(hidden).double() / temperature).log_softmax(-1)
            assert row[0] == 0.0
            assert row[1:] == pytest.approx([float(expected[t, ids[t + 1]]) for t in range(len(ids) - 1)], abs=1e-5)


def test_scores_agree_with_what_sampling_said(engine: Engine, finish: Callable) -> None:
    request = engine.submit(prompt(0, 20), Sampling(max_tokens=30, temperature=1.3, seed=5))
    finish(engine)
    scores = engine.score([request.tokens], temperature=1.3)[0]
    assert scores[20:] == pytest.approx(request.logprobs, abs=1e-5)


def test_scoring_refuses_what_it_cannot_score(engine: Engine) -> None:
    for sequences, temperature, message in (
        ([[]], 1.0, "at least one token"),
        ([[1] * 129], 1.0, "engine.max_length = 128"),
        ([[VOCAB]], 1.0, "outside the vocabulary"),
        ([[1]], 0.0, "temperature is 0.0"),
    ):
        with pytest.raises(EtudeError, match=message):
            engine.score(sequences, temperature)


def test_a_decoder_that_has_sampled_can_be_trained(
    own_decoder: Decoder, settings: EngineSettings, finish: Callable
) -> None:
    engine = Engine(own_decoder, settings, V0)
    engine.submit(prompt(0, 10), Sampling(max_tokens=3))
    finish(engine)
    hidden = own_decoder(torch.arange(10), torch.arange(10), PackedAttend([10]))
    own_decoder.logits(hidden).logsumexp(-1).sum().backward()
    assert all(parameter.grad is not None for parameter in own_decoder.parameters())


def test_what_steps_took_is_summed_with_who_was_in_them(
    engine: Engine, finish: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[float, int, int]] = []
    add = engine.costs.add
    monkeypatch.setattr(engine.costs, "add", lambda *step: (seen.append(step), add(*step)))
    for number in range(5):
        engine.submit(prompt(number, 20), Sampling(max_tokens=3 + number, temperature=0.0))
    finish(engine)
    counts, stats = engine.counts, engine.stats()
    assert len(seen) == counts.steps and all(seconds > 0 for seconds, _, _ in seen)
    assert sum(rows for _, rows, _ in seen) == counts.sampled_tokens == 25
    assert sum(prompts for _, _, prompts in seen) == counts.computed_tokens - counts.sampled_tokens
    assert stats["rows_rows"] == sum(rows * rows for _, rows, _ in seen)
    assert stats["step_seconds"] == pytest.approx(sum(seconds for seconds, _, _ in seen))
