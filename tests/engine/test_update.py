"""New weights under running requests: no answer restarts, every token knows its version, caches never mix."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from etude.core.errors import EtudeError
from etude.core.policy import Sampling, Version
from etude.core.settings import EngineSettings
from etude.engine.engine import Engine
from etude.model.decoder import Decoder

PROMPT = [(7 * i) % 97 for i in range(30)]
GREEDY = Sampling(max_tokens=24, temperature=0.0)


def become(other: Decoder) -> Callable[[Decoder], None]:
    return lambda decoder: decoder.load_state_dict(other.state_dict()) and None


@pytest.fixture
def live(own_decoder: Decoder, settings: EngineSettings) -> Engine:
    return Engine(own_decoder, settings, Version(3, 1))


def test_running_requests_go_on_and_every_token_knows_its_version(
    live: Engine, own_decoder: Decoder, other_decoder: Decoder, finish: Callable, until: Callable, greedy: Callable
) -> None:
    request = live.submit(PROMPT, GREEDY)
    until(live, lambda: len(request.sampled) == 9)
    alone, _ = greedy(own_decoder, PROMPT, 9)
    live.update(become(other_decoder), Version(3, 2))
    assert live.scheduler.running == [request]
    computed = live.counts.computed_tokens
    finish(live)
    assert request.sampled[:9] == alone
    assert request.versions == [Version(3, 1)] * 9 + [Version(3, 2)] * 15
    assert live.counts.computed_tokens - computed == 15, "nothing was computed again"


def test_a_prompt_that_was_half_computed_begins_again_so_that_the_first_token_is_of_one_version(
    own_decoder: Decoder, other_decoder: Decoder, finish: Callable, greedy: Callable
) -> None:
    """Its version is all that the learner hears: keys of older weights behind it would look like broken numerics."""
    engine = Engine(own_decoder, EngineSettings(prefill_tokens=16, block_tokens=8, max_length=72), Version(0, 0))
    request = engine.submit(PROMPT, GREEDY)
    engine.step()
    assert 0 < request.computed < len(PROMPT)
    engine.update(become(other_decoder), Version(0, 1))
    engine.check()
    finish(engine)
    ids, logprobs = greedy(other_decoder, PROMPT, 24)
    assert request.sampled == ids and set(request.versions) == {Version(0, 1)}
    assert request.logprobs == pytest.approx(logprobs, abs=1e-5)


def test_a_prompt_that_takes_longer_than_from_swap_to_swap_is_answered_all_the_same(
    own_decoder: Decoder,
) -> None:
    engine = Engine(own_decoder, EngineSettings(prefill_tokens=8, block_tokens=8, max_length=72), Version(0, 0))
    request = engine.submit(PROMPT, GREEDY)
    for step in range(1, 40):
        engine.step()
        engine.update(lambda _: None, Version(0, step))
    assert request.stop == "length"


def test_equal_weights_under_a_new_version_change_nothing(
    live: Engine, own_decoder: Decoder, finish: Callable, greedy: Callable
) -> None:
    request = live.submit(PROMPT, GREEDY)
    for step in range(2, 40):
        live.step()
        live.update(lambda _: None, Version(3, step))
        live.check()
    assert request.sampled == greedy(own_decoder, PROMPT, 24)[0]
    assert len(set(request.versions)) == 24


def test_a_prefix_of_old_weights_is_never_used_by_new_ones(
    live: Engine, other_decoder: Decoder, finish: Callable, greedy: Callable
) -> None:
    live.submit(PROMPT, GREEDY)
    finish(live)
    live.update(become(other_decoder), Version(3, 2))
    request = live.submit(PROMPT, GREEDY)
    finish(live)
    assert request.cached_tokens == 0
    assert request.sampled == greedy(other_decoder, PROMPT, 24)[0]


def test_a_cache_of_two_versions_is_shared_with_neither(
    live: Engine, own_decoder: Decoder, other_decoder: Decoder, finish: Callable, until: Callable, greedy: Callable
) -> None:
    original = {name: tensor.clone() for name, tensor in own_decoder.state_dict().items()}
    mixed = live.submit(PROMPT, GREEDY)
    until(live, lambda: len(mixed.sampled) == 4)
    live.update(become(other_decoder), Version(3, 2))
    finish(live)
    # 30 tokens of prompt and 4 of the answer were of the first version when the weights changed: 4 full blocks of 8
    follow = live.submit([*mixed.tokens, 1], Sampling(max_tokens=5, temperature=0.0))
    finish(live)
    assert follow.cached_tokens == 0
    assert follow.sampled == greedy(other_decoder, follow.prompt, 5)[0]
    live.update(lambda decoder: decoder.load_state_dict(original) and None, Version(3, 1))
    back = live.submit([*mixed.tokens, 1], Sampling(max_tokens=5, temperature=0.0))
    finish(live)
    assert back.cached_tokens == 32
    assert back.sampled == greedy(own_decoder, back.prompt, 5)[0]


def test_a_request_preempted_across_an_update_continues_under_the_new_weights_alone(
    own_decoder: Decoder, other_decoder: Decoder, finish: Callable, until: Callable, greedy: Callable
) -> None:
    tight = EngineSettings(max_running=2, cache_tokens=80, block_tokens=8, max_length=72, prefill_tokens=64)
    engine = Engine(own_decoder, tight, Version(0, 0))
    engine.submit(PROMPT, Sampling(max_tokens=40, temperature=0.0))
    victim = engine.submit(PROMPT[::-1], Sampling(max_tokens=24, temperature=0.0))
    until(engine, lambda: victim.preemptions > 0)
    before = len(victim.sampled)
    engine.update(become(other_decoder), Version(0, 1))
    finish(engine)
    assert victim.versions == [Version(0, 0)] * before + [Version(0, 1)] * (24 - before)
    rest, _ = greedy(other_decoder, victim.tokens[: 30 + before], 24 - before)
    assert victim.sampled[before:] == rest


def test_a_failed_load_leaves_the_engine_at_its_version(live: Engine, finish: Callable) -> None:
    def refuse(decoder: Decoder) -> None:
        raise EtudeError("damaged")

    request = live.submit(PROMPT, GREEDY)
    live.step()
    with pytest.raises(EtudeError, match="damaged"):
        live.update(refuse, Version(3, 2))
    finish(live)
    assert live.version == Version(3, 1)
    assert set(request.versions) == {Version(3, 1)}
    assert live.submit(PROMPT, GREEDY)
    finish(live)


def test_one_version_names_one_set_of_weights(live: Engine) -> None:
    with pytest.raises(EtudeError, match=r"at version 3\.1 already"):
        live.update(lambda _: None, Version(3, 1))


def test_a_pinned_version_answers_alone_while_the_other_is_swapped(
    live: Engine, own_decoder: Decoder, other_decoder: Decoder, finish: Callable, until: Callable, greedy: Callable
) -> None:
    before = greedy(own_decoder, PROMPT, 24)[0]
    live.pin(Version(3, 1))
    kept = live.submit(PROMPT, GREEDY, version=Version(3, 1))
    moved = live.submit(PROMPT, GREEDY)
    until(live, lambda: len(kept.sampled) == 9)
    live.update(become(other_decoder), Version(3, 2))
    live.pin(Version(3, 1))  # asking twice for one version is no error
    live.check()
    finish(live)
    assert kept.sampled == before and set(kept.versions) == {Version(3, 1)}
    assert set(moved.versions) == {Version(3, 1), Version(3, 2)}
    late = live.submit(PROMPT, GREEDY, version=Version(3, 1))  # begun after the swap
    finish(live)
    assert late.sampled == before and set(late.versions) == {Version(3, 1)}
    live.pin(Version(3, 2))
    after = live.submit(PROMPT, GREEDY, version=Version(3, 2))
    finish(live)
    assert after.sampled == greedy(other_decoder, PROMPT, 24)[0] and live.stats()["pinned"] == "3.2"


def test_what_is_not_resident_is_refused_and_a_version_in_use_stays(
    live: Engine, other_decoder: Decoder, finish: Callable
) -> None:
    with pytest.raises(EtudeError, match=r"for version 3\.1, which is not resident; there: 3\.1"):
        live.submit(PROMPT, GREEDY, version=Version(3, 1))  # the present weights may be swapped: nobody pinned them
    live.pin(Version(3, 1))
    request = live.submit(PROMPT, GREEDY, version=Version(3, 1))
    live.update(become(other_decoder), Version(3, 2))
    with pytest.raises(EtudeError, match=r"version 3\.1 is still sampled from"):
        live.pin(Version(3, 2))
    with pytest.raises(EtudeError, match=r"3\.9 cannot be pinned: the engine is at 3\.2"):
        live.pin(Version(3, 9))
    assert live.abort(request.number) is request and request.stop == "abort" and not live.busy
    live.check()
