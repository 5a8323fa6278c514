"""The GPU's engine without a GPU: pages, steps launched ahead, tokens that stay on the device, with torch for kernels.

Everything but the kernels and the recording of graphs is the code that runs on CUDA.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
import torch

from benchmarks.reference_ops import ReferenceOps
from etude.core.policy import Context, Sampling, Version
from etude.core.settings import EngineSettings
from etude.engine import engine as engine_module
from etude.engine.cuda import runner as cuda_runner
from etude.engine.cuda.graphs import MixedGraphs
from etude.engine.cuda.runner import PagedRunner
from etude.engine.engine import Engine
from etude.engine.inline import InlinePolicy
from etude.engine.thread import EngineThread
from etude.model.attention import PackedAttend
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder
from etude.model.experts import Routing
from etude.model.packed_forward import Packed

V0 = Version(0, 0)
SMALL = EngineSettings(max_running=6, cache_tokens=512, block_tokens=8, max_length=128, prefill_tokens=32)
TIGHT = EngineSettings(
    max_running=8, cache_tokens=160, block_tokens=4, max_length=128, prefill_tokens=7, prefill_every=3
)
SHAPES = {
    "grouped": ModelConfig(97, 32, 64, 2, 4, 2, 8, max_position_embeddings=256),
    "biased": ModelConfig(
        97, 32, 64, 2, 4, 2, 8, max_position_embeddings=256, qk_norm=False, attention_bias=True, model_type="qwen2"
    ),
    "latent": ModelConfig(
        97,
        32,
        48,
        3,
        4,
        4,
        8,
        max_position_embeddings=256,
        model_type="deepseek_v3",
        kv_lora_rank=16,
        q_lora_rank=20,
        qk_nope_head_dim=12,
        qk_rope_head_dim=8,
        v_head_dim=10,
        rope_interleave=True,
        num_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=24,
        n_shared_experts=1,
        scoring="sigmoid",
        first_k_dense_replace=1,
        qk_norm=False,
    ),
}


def make(shape: str, seed: int = 3) -> Decoder:
    decoder = Decoder(SHAPES[shape], seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in decoder.parameters():
            if parameter.ndim > 1:
                parameter.mul_(8)
            elif not parameter.any():
                parameter.normal_(generator=generator)
    return decoder


@pytest.fixture(params=list(SHAPES))
def shaped(request: pytest.FixtureRequest) -> Decoder:
    return make(request.param)


def paged(decoder: Decoder, settings: EngineSettings = SMALL, version: Version = V0) -> Engine:
    return Engine(decoder, settings, version, PagedRunner(decoder, settings, ReferenceOps()))


def prompt(seed: int, length: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(97) for _ in range(length)]


def test_greedy_answers_are_those_of_a_loop_without_a_cache(
    shaped: Decoder, finish: Callable, greedy: Callable
) -> None:
    engine = paged(shaped)
    requests = [
        engine.submit(prompt(i, 1 + 9 * i % 70), Sampling(max_tokens=1 + 5 * i % 17, temperature=0.0))
        for i in range(14)
    ]
    finish(engine)
    for request in requests:
        answer, scores = greedy(shaped, request.prompt, request.sampling.max_tokens)
        assert request.sampled == answer
        assert request.logprobs == pytest.approx(scores, abs=2e-5)
        assert request.stop == "length"
    assert engine.pool.held == 0
    # whoever ends by its number of tokens is never computed once more than needed
    assert engine.counts.computed_tokens == sum(len(r.tokens) - 1 for r in requests) - engine.counts.cached_tokens


def test_it_samples_what_the_cpu_samples(shaped: Decoder, finish: Callable) -> None:
    kinds = (
        Sampling(),
        Sampling(temperature=0.6),
        Sampling(top_k=4),
        Sampling(top_p=0.7, top_logprobs=3),
        Sampling(temperature=0.0, top_logprobs=2),
    )
    work = [
        (prompt(i, 3 + 5 * i % 40), Sampling(**{**vars(kinds[i % 5]), "seed": 100 + i, "max_tokens": 30}))
        for i in range(12)
    ]
    answers = []
    for engine in (Engine(shaped, SMALL, V0), paged(shaped, TIGHT)):
        asked = [engine.submit(*pair) for pair in work]
        finish(engine)
        answers.append(asked)
    assert engine.scheduler.preemptions > 0
    for ours, theirs in zip(*answers, strict=True):
        assert ours.sampled == theirs.sampled
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=2e-5)
        assert len(ours.tops) == len(theirs.tops)
        for a, b in zip(ours.tops, theirs.tops, strict=True):
            assert [token for token, _ in a] == [token for token, _ in b]
            assert [value for _, value in a] == pytest.approx([value for _, value in b], abs=2e-5)


def test_prefixes_are_found_and_a_group_computes_its_prompt_once(finish: Callable, greedy: Callable) -> None:
    decoder = make("grouped")
    engine = paged(decoder)
    group = [engine.submit(prompt(0, 29), Sampling(max_tokens=4, temperature=0.0)) for _ in range(6)]
    finish(engine)
    assert engine.counts.cached_tokens == 5 * 24
    assert all(request.sampled == greedy(decoder, prompt(0, 29), 4)[0] for request in group)
    longer = engine.submit([*group[0].tokens, 5, 6], Sampling(max_tokens=9, temperature=0.0))
    finish(engine)
    assert longer.cached_tokens == 32
    assert longer.sampled == greedy(decoder, longer.prompt, 9)[0]


def test_a_stop_id_ends_the_answer_though_the_next_step_was_under_way(finish: Callable) -> None:
    engine = paged(make("grouped"))
    ids = prompt(3, 10)
    free = engine.submit(ids, Sampling(max_tokens=40, temperature=0.0))
    finish(engine)
    for stop in dict.fromkeys(free.sampled):
        bound = engine.submit(ids, Sampling(max_tokens=40, temperature=0.0, stop_ids=(stop,)))
        other = engine.submit(ids[::-1], Sampling(max_tokens=20, temperature=0.0))
        finish(engine)
        assert bound.stop == "stop" and other.stop == "length"
        assert bound.sampled == free.sampled[: free.sampled.index(stop) + 1]
    again = engine.submit([*free.tokens, 1], Sampling(max_tokens=1))
    finish(engine)
    assert again.cached_tokens == 48  # nothing that was computed for nothing can be found


def test_an_aborted_request_keeps_the_tokens_that_were_under_way(finish: Callable, greedy: Callable) -> None:
    decoder = make("grouped")
    engine = paged(decoder)
    kept = engine.submit(prompt(0, 20), Sampling(max_tokens=20, temperature=0.0))
    victim = engine.submit(prompt(1, 20), Sampling(max_tokens=50, temperature=0.0))
    for _ in range(6):
        engine.step()
    assert engine.abort(victim.number) is victim
    engine.check()
    assert victim.stop == "abort" and victim.sampled
    assert victim.sampled == greedy(decoder, victim.prompt, len(victim.sampled))[0]
    finish(engine)
    assert kept.sampled == greedy(decoder, kept.prompt, 20)[0]
    assert engine.pool.held == 0


def test_a_step_that_was_launched_ahead_is_booked_when_it_is_read(
    finish: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With who was in it, and with the seconds that the thread slept for it; what is read by an abort, too."""
    engine = paged(make("grouped"))
    seen: list[tuple[float, int, int]] = []
    add = engine.costs.add
    monkeypatch.setattr(engine.costs, "add", lambda *step: (seen.append(step), add(*step)))
    monkeypatch.setattr(engine_module, "slept", lambda began: 0.5)
    requests = [engine.submit(prompt(number, 20), Sampling(max_tokens=3 + number)) for number in range(4)]
    engine.step()
    assert not seen  # nothing is known of it yet
    engine.step()
    engine.abort(requests[3].number)
    assert len(seen) == engine.counts.steps == 2
    finish(engine)
    counts, costs = engine.counts, engine.costs
    assert len(seen) == counts.steps and all(seconds > 0.5 for seconds, _, _ in seen)
    assert sum(rows for _, rows, _ in seen) == counts.sampled_tokens
    assert sum(prompts for _, _, prompts in seen) == counts.computed_tokens - counts.sampled_tokens
    assert costs.waited_seconds == 0.5 * counts.steps < costs.step_seconds


def test_an_abort_that_comes_too_late_loses_no_answer() -> None:
    engine = paged(make("grouped"))
    request = engine.submit(prompt(0, 4), Sampling(max_tokens=2))
    engine.step()
    engine.step()  # its last token is under way
    assert engine.abort(request.number) is None
    assert engine.busy and engine.step() == [request] and request.stop == "length"
    assert not engine.busy


def test_a_client_that_leaves_while_its_last_token_is_under_way_disturbs_nobody() -> None:
    engine = paged(make("grouped"))

    async def leave_early() -> None:
        policy = InlinePolicy(engine)
        stays = asyncio.create_task(policy.sample(Context(ids=(1, 2, 3)), Sampling(max_tokens=9)))
        leaves = asyncio.create_task(policy.sample(Context(ids=(4, 5)), Sampling(max_tokens=2)))
        while engine.counts.steps < 2:
            await asyncio.sleep(0)
        leaves.cancel()
        assert len((await asyncio.wait_for(stays, 30)).ids or ()) == 9
        assert not engine.busy and engine.pool.held == 0

    asyncio.run(leave_early())


def test_a_thread_hands_nothing_to_a_client_that_left_meanwhile() -> None:
    engine = paged(make("grouped"))

    async def leave_early() -> None:
        thread = EngineThread(engine)
        for tokens in range(1, 12):
            leaves = asyncio.create_task(thread.generate((4, 5, tokens), Sampling(max_tokens=tokens)))
            await asyncio.sleep(0)
            stays = asyncio.create_task(thread.generate((1, 2, tokens), Sampling(max_tokens=3)))
            await thread.call(lambda e: None)
            leaves.cancel()
            assert len((await asyncio.wait_for(stays, 30)).sampled) == 3
        assert thread.crash is None
        await thread.stop()

    asyncio.run(leave_early())


def test_new_weights_reach_the_joint_matrices_and_tokens_know_their_version(
    shaped: Decoder, finish: Callable, until: Callable, greedy: Callable
) -> None:
    other = make(next(name for name, config in SHAPES.items() if config == shaped.config), seed=8)
    before = {name: tensor.clone() for name, tensor in shaped.state_dict().items()}
    engine = paged(shaped)
    running = engine.submit(prompt(0, 30), Sampling(max_tokens=24, temperature=0.0))
    until(engine, lambda: len(running.sampled) >= 9)
    engine.update(lambda decoder: decoder.load_state_dict(other.state_dict()) and None, Version(0, 1))
    done = running.versions.count(V0)
    finish(engine)
    assert running.versions == [V0] * done + [Version(0, 1)] * (24 - done)
    fresh = engine.submit(prompt(0, 30), Sampling(max_tokens=12, temperature=0.0))
    finish(engine)
    assert fresh.cached_tokens == 0
    assert fresh.sampled == greedy(other, fresh.prompt, 12)[0]
    shaped.load_state_dict(before)
    assert running.sampled[:done] == greedy(shaped, running.prompt, done)[0]


def test_logits_that_are_not_finite_fail_their_request_and_nobody_after_it(
    shaped: Decoder, finish: Callable, greedy: Callable
) -> None:
    engine = paged(shaped)
    healthy = {name: tensor.clone() for name, tensor in shaped.state_dict().items()}
    running = engine.submit(prompt(0, 30), Sampling(max_tokens=20, temperature=0.0))
    for _ in range(4):
        engine.step()

    def poison(decoder: Decoder) -> None:
        with torch.no_grad():
            decoder.model.layers[0].self_attn.o_proj.weight[0, 0] = math.nan

    engine.update(poison, Version(0, 1))
    other = engine.submit(prompt(1, 50), Sampling(max_tokens=20))
    assert set(finish(engine)) == {running, other}
    assert engine.counts.failed == 2 and "not finite at version 0.1" in str(running.error)
    engine.update(lambda decoder: decoder.load_state_dict(healthy) and None, Version(0, 2))
    again = [engine.submit(prompt(i, 30), Sampling(max_tokens=9, temperature=0.0)) for i in range(6)]
    finish(engine)
    for request in again:
        assert request.sampled == greedy(shaped, request.prompt, 9)[0]
    assert engine.pool.held == 0


def test_every_token_but_the_last_comes_with_its_experts(finish: Callable) -> None:
    decoder = make("latent")
    engine = paged(
        decoder, EngineSettings(max_running=4, cache_tokens=136, block_tokens=8, max_length=96, prefill_tokens=16)
    )
    shared = prompt(0, 24)
    asked = [
        engine.submit([*shared, *prompt(i, 3 + i)], Sampling(max_tokens=30, seed=i, stop_ids=(5,)), routed=i)
        for i in range(6)
    ]
    finish(engine)
    assert engine.scheduler.preemptions > 0 and any(request.cached_tokens for request in asked)
    for i, request in enumerate(asked):
        packed = Packed(decoder, [np.array(request.tokens)])
        packed.routing = Routing()
        with torch.no_grad():
            packed.hidden()
        assert request.experts is not None and request.experts.dtype == np.int16
        assert np.array_equal(request.experts, packed.routing.chosen_TBK.numpy()[i:-1])


def test_random_load_gives_everybody_its_own_answer(stress_module: ModuleType) -> None:
    report = stress_module.stress(160, 1, paged)
    assert report.passed and report.compared > 100 and report.aborted and report.stats["preemptions"]


def test_the_decoder_still_learns_after_an_engine_joined_its_matrices(shaped: Decoder, finish: Callable) -> None:
    engine = paged(shaped)
    engine.submit([1, 2, 3], Sampling(max_tokens=3))
    finish(engine)
    hidden = shaped(torch.arange(10), torch.arange(10), PackedAttend([10]))
    shaped.logits(hidden).logsumexp(-1).sum().backward()
    assert all(p.grad is not None for name, p in shaped.named_parameters() if "self_attn" in name)


def test_recorded_steps_with_prompts_compute_what_launched_ones_do(shaped: Decoder, finish: Callable) -> None:
    work = [(prompt(i % 4, 5 + 9 * i % 60), Sampling(max_tokens=12, seed=i)) for i in range(14)]
    engines = [paged(shaped), paged(shaped)]
    engines[1].runner.mixed.failed = "as if it had"
    recorded, launched = [[engine.submit(*pair) for pair in work] for engine in engines]
    for engine in engines:
        finish(engine)
        engine.check()
    assert engines[0].runner.mixed._recorded and not engines[1].runner.mixed._recorded
    for ours, theirs in zip(recorded, launched, strict=True):
        assert ours.sampled == theirs.sampled
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=2e-5)
        if ours.experts is not None:
            assert (ours.experts == theirs.experts).all()


def test_steps_are_launched_where_recording_fails(
    finish: Callable, greedy: Callable, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("no capture here")

    monkeypatch.setattr(MixedGraphs, "_record", refuse)
    decoder = make("grouped")
    engine = paged(decoder)
    requests = [engine.submit(prompt(i, 20), Sampling(max_tokens=6, temperature=0.0)) for i in range(4)]
    finish(engine)
    assert [request.sampled for request in requests] == [greedy(decoder, r.prompt, 6)[0] for r in requests]
    assert capsys.readouterr().err.count("no capture here") == 1


def test_long_prompts_are_launched_and_not_read_again_for_every_token(
    finish: Callable, greedy: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = make("grouped")
    engine = paged(decoder)
    monkeypatch.setattr(cuda_runner, "MOST_READ", engine.runner._token_bytes * 40 * 41 // 2)
    asked = []
    monkeypatch.setattr(engine.runner, "_launch_mixed", lambda step: asked.append(len(step.tokens)) or launch(step))
    launch = PagedRunner._launch_mixed.__get__(engine.runner)
    for length in (40, 41):  # in one piece each: the keys of the first are just few enough
        engine.scheduler.settings = replace(SMALL, prefill_tokens=64)
        request = engine.submit(prompt(length, length), Sampling(max_tokens=3, temperature=0.0))
        finish(engine)
        assert request.sampled == greedy(decoder, request.prompt, 3)[0]
    assert asked == [41]
