"""Speculation against the model alone: the same greedy answers, the same distribution, the same books."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from benchmarks.reference_ops import ReferenceOps
from etude.core.errors import EtudeError
from etude.core.policy import Sampling, Version
from etude.core.settings import EngineSettings, ModelSettings
from etude.engine.cuda.draft_cache import PageMemory
from etude.engine.draft_acceptance import verify
from etude.engine.engine import Engine
from etude.engine.request import Request
from etude.engine.runner import Read
from etude.engine.scheduler import Chunk
from etude.engine.speculate import SpeculatingRunner, distributions
from etude.model.attention import PackedAttend
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder

V0, V1 = Version(0, 0), Version(0, 1)
SMALL = {"max_running": 6, "cache_tokens": 512, "block_tokens": 8, "max_length": 128, "prefill_tokens": 32}


def drafting(vocab: int = 97, heads: int = 2, seed: int = 0, shape: str = "qwen3", scale: float = 8.0) -> Decoder:
    """Tiny, with heads that nobody trained: what they draft is often wrong."""
    settings = ModelSettings(
        shape=shape,  # type: ignore[arg-type]
        width=32,
        layers=2,
        heads=4,
        kv_heads=2,
        head_dim=8,
        mlp=64,
        kv_rank=16,
        rope_dim=8,
        experts=4,
        expert_mlp=16,
        mtp_layers=heads,
        max_positions=256,
    )
    decoder = Decoder(ModelConfig.from_settings(settings, vocab), seed)
    with torch.no_grad():
        for parameter in decoder.parameters():
            if parameter.ndim > 1:
                parameter.mul_(scale)
    return decoder


def prompt(seed: int, length: int, vocab: int = 97) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(vocab) for _ in range(length)]


def open_engine(decoder: Decoder, speculate: int, **changes: int) -> Engine:
    return Engine(decoder, EngineSettings(**{**SMALL, "speculate": speculate, **changes}), V0)


def chi_square(counts: np.ndarray, chances: np.ndarray) -> float:
    """How many standard deviations the statistic lies above its mean; rare outcomes are counted together."""
    expected = counts.sum() * chances
    rare = expected < 5
    seen, told = counts[~rare], expected[~rare]
    if rare.any():
        seen, told = np.append(seen, counts[rare].sum()), np.append(told, expected[rare].sum())
    statistic = float(((seen - told) ** 2 / np.maximum(told, 1e-9)).sum())
    freedom = len(seen) - 1
    return (statistic - freedom) / (2 * freedom) ** 0.5


@pytest.mark.parametrize("seed", range(4))
def test_of_every_draft_and_every_uniform_number_the_tokens_have_the_models_own_distribution(seed: int) -> None:
    """One draft, five tokens, a fine grid of both uniform numbers: an enumeration, nothing is random."""
    rng, cells = np.random.default_rng(seed), 60
    p, q, behind = (torch.from_numpy(rng.dirichlet([0.5] * 5)).float() for _ in range(3))
    middle = (torch.arange(cells, dtype=torch.float64) + 0.5) / cells
    grid = torch.meshgrid(torch.arange(5).double(), middle, middle, indexing="ij")
    draft_R, accept_R, draw_R = grid[0].flatten().long(), grid[1].flatten(), grid[2].flatten()
    count = len(draft_R)
    kept_R, token_R = verify(
        torch.stack((p, behind)).expand(count, 2, 5),
        q.expand(count, 1, 5),
        draft_R[:, None],
        torch.ones(count, 1, dtype=torch.bool),
        accept_R[:, None],
        torch.stack((draw_R, draw_R), 1),
    )
    first_R = torch.where(kept_R == 1, draft_R, token_R)
    share_R = q[draft_R].double() / cells**2
    found = torch.zeros(5, dtype=torch.float64).index_add(0, first_R, share_R)
    assert found.tolist() == pytest.approx(p.tolist(), abs=2 / cells)
    second = torch.zeros(5, dtype=torch.float64).index_add(0, token_R[kept_R == 1], share_R[kept_R == 1])
    assert (second / second.sum()).tolist() == pytest.approx(behind.tolist(), abs=2 / cells)
    assert float(share_R[kept_R == 1].sum()) == pytest.approx(float(torch.minimum(p, q).sum()), abs=2 / cells)


@pytest.mark.parametrize("heads", [1, 2, 3])
def test_drafts_of_several_depths_leave_the_joint_distribution_as_it_is(heads: int) -> None:
    """Distributions that depend on what stands before, drafts from others, many rows at once."""
    rng, rows, vocab = np.random.default_rng(heads), 60_000, 3
    length = heads + 1
    p = {
        past: rng.dirichlet([1.0] * vocab) for n in range(length) for past in itertools.product(range(vocab), repeat=n)
    }
    q = {past: rng.dirichlet([1.0] * vocab) for past in p}
    tokens = np.zeros((rows, 0), int)
    drafts = np.zeros((rows, heads), int)
    q_RKV, p_RJV = np.zeros((rows, heads, vocab)), np.zeros((rows, length, vocab))
    for j in range(length):
        pasts = [tuple(past) for past in drafts[:, :j].tolist()]
        p_RJV[:, j] = [p[past] for past in pasts]
        if j < heads:
            q_RKV[:, j] = [q[past] for past in pasts]
            drafts[:, j] = (rng.random((rows, 1)) > q_RKV[:, j].cumsum(1)).sum(1).clip(max=vocab - 1)
    made = rng.integers(0, heads + 1, (rows, 1)) > np.arange(heads)  # not everybody has as many
    kept_R, token_R = verify(
        torch.from_numpy(p_RJV).float(),
        torch.from_numpy(q_RKV).float(),
        torch.from_numpy(drafts),
        torch.from_numpy(made),
        torch.from_numpy(rng.random((rows, heads))),
        torch.from_numpy(rng.random((rows, length))),
    )
    tokens = np.pad(drafts, ((0, 0), (0, 1)))
    tokens[np.arange(rows), kept_R.numpy()] = token_R.numpy()
    for j in range(length):  # what comes behind the last token of a step is the next step's
        for past in itertools.product(range(vocab), repeat=j):
            there = (tokens[:, :j] == past).all(1) & (kept_R.numpy() >= j)
            counts = np.bincount(tokens[there, j], minlength=vocab)
            if counts.sum() > 500:
                assert chi_square(counts, p[past]) < 4


@pytest.mark.parametrize(
    "kind",
    [
        {"temperature": 1.0},
        {"temperature": 0.7, "top_k": 4},
        {"temperature": 1.5, "top_p": 0.8},
    ],
)
def test_answers_of_the_engine_have_the_exact_distribution_of_the_model(kind: dict, logprobs: Callable) -> None:
    """All answers of three tokens over six, their probabilities from forwards without any cache; chi-square."""
    vocab, start, many = 6, [1, 4, 2, 0, 3], 1000
    decoder = drafting(vocab, heads=2, seed=3, scale=5.0)
    engine = open_engine(decoder, 2, max_running=40, cache_tokens=2048)
    asked = []
    for seed in range(many):
        asked.append(engine.submit(start, Sampling(max_tokens=3, seed=seed, **kind)))
        if seed % 11 == 0:  # company of another kind
            engine.submit(prompt(seed, 3 + seed % 20, vocab), Sampling(max_tokens=1 + seed % 9, seed=seed))
    while engine.busy:
        engine.step()
    chances: dict[tuple[int, ...], float] = {(): 1.0}
    for past in [p for n in range(3) for p in itertools.product(range(vocab), repeat=n)]:
        row = logprobs(decoder, [*start, *past]).float()[None]
        found = distributions(row, [Sampling(**kind)]).chances_NV[0]
        for token in range(vocab):
            chances[(*past, token)] = chances[past] * float(found[token])
    outcomes = list(itertools.product(range(vocab), repeat=3))
    seen = Counter(tuple(request.sampled) for request in asked)
    counts = np.array([seen[outcome] for outcome in outcomes])
    assert counts.sum() == many
    told = np.array([chances[outcome] for outcome in outcomes])
    assert told.sum() == pytest.approx(1, abs=1e-4)
    assert counts[told == 0].sum() == 0
    assert chi_square(counts, told / told.sum()) < 4
    facts = engine.stats()
    assert facts["accepted.1"] > 0 and facts["accepted.2"] > 0 and facts["accepted.1"] < facts["drafted.1"]


@pytest.mark.parametrize("shape", ["qwen3", "qwen3_moe", "deepseek_v3"])
@pytest.mark.parametrize("speculate", [1, 2])
def test_greedy_answers_are_those_without_speculation(
    speculate: int, shape: str, finish: Callable, greedy: Callable
) -> None:
    decoder = drafting(shape=shape, scale=3.0 if shape != "qwen3" else 8.0)
    work = [(prompt(i, 1 + 9 * i % 70), Sampling(max_tokens=1 + 5 * i % 17, temperature=0.0)) for i in range(14)]
    answers = []
    for many in (0, speculate):
        engine = open_engine(decoder, many)
        answers.append([engine.submit(ids, sampling) for ids, sampling in work])
        finish(engine)
    assert engine.stats()["drafted.1"]
    for plain, drafted in zip(*answers, strict=True):
        assert drafted.sampled == plain.sampled
        assert drafted.logprobs == pytest.approx(plain.logprobs, abs=1e-5)
    ids, scores = greedy(decoder, answers[1][3].prompt, 9)
    assert answers[1][3].sampled[:9] == ids[: len(answers[1][3].sampled)]
    assert answers[1][3].logprobs[:9] == pytest.approx(scores[: len(answers[1][3].sampled)], abs=1e-4)


def test_log_probabilities_are_of_the_models_own_distribution_under_small_memory(
    finish: Callable, logprobs: Callable
) -> None:
    decoder = drafting(heads=2)
    engine = open_engine(decoder, 2, cache_tokens=160, block_tokens=4, prefill_tokens=7, max_running=8)
    work = [
        (prompt(i, 3 + 5 * i % 40), Sampling(max_tokens=20, temperature=0.5 + i % 3 / 2, seed=i)) for i in range(12)
    ]
    requests = [engine.submit(ids, sampling) for ids, sampling in work]
    finish(engine)
    assert engine.scheduler.preemptions > 0
    assert engine.stats()["blocks_held"] == 0
    for request in requests:
        assert len(request.sampled) == len(request.logprobs) == len(request.versions) == 20
        for i, token in enumerate(request.sampled):
            row = logprobs(decoder, request.tokens[: len(request.prompt) + i], request.sampling.temperature)
            assert request.logprobs[i] == pytest.approx(float(row[token]), abs=1e-4)


def test_what_the_heads_draft_over_their_cache_is_what_they_say_of_the_whole_sequence() -> None:
    """Prompts in pieces, rejected drafts, moved rows: the heads' cache holds what a forward from nothing gives."""
    decoder = drafting(heads=1)
    engine = open_engine(decoder, 1, prefill_tokens=5)
    for i in range(9):
        engine.submit(prompt(i, 2 + 7 * i % 30), Sampling(max_tokens=3 + 4 * i, temperature=i % 2 and 1.0, seed=i))
    runner = engine.runner
    assert isinstance(runner, SpeculatingRunner)
    compared = 0
    while engine.busy:
        engine.step()
        for request in engine.scheduler.running:
            for draft in runner._drafts.of(request) if request.draft_slots else []:
                ids = torch.tensor(request.tokens)
                with torch.inference_mode():
                    attend, places = PackedAttend([len(ids)]), torch.arange(len(ids))
                    hidden = decoder(ids, places, attend)
                    ahead = decoder.mtp_hidden(1, hidden, ids.roll(-1), places, attend)[-2]
                    told = distributions(decoder.logits(ahead)[None], [request.sampling]).chances_NV[0]
                beliefs = runner._drafts.beliefs_RKV[runner._drafts.seats[request.number]]
                kept = distributions(beliefs, [request.sampling]).chances_NV[0]
                assert torch.allclose(kept, told, atol=1e-4)
                assert told[draft] > 0
                compared += 1
    assert compared > 50


def on_pages(decoder: Decoder, speculate: int, graphs: bool, **changes: int) -> Engine:
    """The memory that a GPU has, with operations in plain torch, and steps launched before the last is read."""
    settings = EngineSettings(**{**SMALL, "speculate": speculate, **changes})
    memory = PageMemory(decoder, settings, ReferenceOps())
    if not graphs:
        memory.graphs = None  # type: ignore[assignment]
    return Engine(decoder, settings, V0, SpeculatingRunner(decoder, settings, memory))


def steps_ahead(engine: Engine) -> list[int]:
    """Tokens that the device alone knew, each time a step was launched."""
    runner, seen = engine.runner, list[int]()
    assert isinstance(runner, SpeculatingRunner)
    launch = runner.launch

    def watched(chunks: Sequence[Chunk], ready: Sequence[Request]) -> Read:
        seen.append(sum(chunk.request.ahead for chunk in chunks))
        return launch(chunks, ready)

    runner.launch = watched  # type: ignore[method-assign]
    return seen


KINDS = [0.0, 1.0, 0.7, 1.3]


@pytest.mark.parametrize("shape", ["qwen3", "qwen3_moe", "deepseek_v3"])
@pytest.mark.parametrize("speculate", [1, 2, 3])
@pytest.mark.parametrize("graphs", [False, True])
def test_pages_and_steps_ahead_give_what_rows_give(graphs: bool, speculate: int, shape: str, finish: Callable) -> None:
    """The same seeds, the same tokens and the same drafts, whoever knows of them first."""
    answers, facts = [], []
    for paged in (False, True):
        decoder = drafting(heads=3, shape=shape, scale=3.0 if shape != "qwen3" else 8.0)
        engine = on_pages(decoder, speculate, graphs) if paged else open_engine(decoder, speculate)
        seen = steps_ahead(engine)
        answers.append(
            [
                engine.submit(
                    prompt(i, 2 + 5 * i % 20), Sampling(max_tokens=5 + 3 * i, temperature=KINDS[i % 4], seed=i)
                )
                for i in range(10)
            ]
        )
        finish(engine)
        facts.append(engine.runner.facts())  # type: ignore[attr-defined]
    assert (sum(map(bool, seen)) > 10) == graphs
    assert facts[0] == facts[1]
    for rows, pages in zip(*answers, strict=True):
        assert pages.sampled == rows.sampled
        assert pages.logprobs == pytest.approx(rows.logprobs, abs=1e-4)


@pytest.mark.parametrize("speculate", [1, 2])
def test_steps_ahead_lose_nothing_when_requests_come_stop_are_aborted_and_step_back(
    speculate: int, logprobs: Callable
) -> None:
    """Memory for a few only, stop tokens that the device does not know of, newcomers, aborts and new weights."""
    decoder = drafting(heads=2)
    engine = on_pages(decoder, speculate, True, cache_tokens=112, block_tokens=4, prefill_tokens=24, max_running=8)
    seen, rng, asked = steps_ahead(engine), random.Random(speculate), list[Request]()
    kinds = [{"top_k": 5}, {"top_logprobs": 2}, {}, {}, {}, {}]
    for i in range(30):
        sampling = Sampling(
            max_tokens=1 + 7 * i % 60, temperature=KINDS[i % 4], seed=i, stop_ids=(3, 5), **kinds[i % 6]
        )
        asked.append(engine.submit(prompt(i, 3 + 5 * i % 40), sampling))
        for _ in range(rng.randrange(12) if i % 3 else 0):
            engine.step()
            engine.check()
        if i % 9 == 8:
            engine.abort(asked[rng.randrange(len(asked))].number)
        if i % 10 == 9:  # equal weights, another name
            engine.update(lambda decoder: None, Version(0, i))
    while engine.busy:
        engine.step()
        engine.check()
    assert sum(map(bool, seen)) > 20 and engine.stats()["blocks_held"] == 0
    assert {request.stop for request in asked} == {"stop", "length", "abort"}
    assert engine.scheduler.preemptions
    for request in asked:
        assert request.error is None and len(request.sampled) == len(request.logprobs) == len(request.versions)
        assert request.stop == "abort" or (
            len(request.sampled) == request.sampling.max_tokens or request.sampled[-1] in (3, 5)
        )
        assert not {3, 5} & set(request.sampled[:-1])
        if request.sampling.top_k:
            continue
        for i, token in enumerate(request.sampled):
            row = logprobs(decoder, request.tokens[: len(request.prompt) + i], request.sampling.temperature or 1.0)
            assert request.logprobs[i] == pytest.approx(float(row[token]), abs=1e-4)


def test_a_seed_samples_the_same_alone_and_in_company(finish: Callable) -> None:
    decoder = drafting(heads=2)
    work = [(prompt(i, 3 + 5 * i % 40), Sampling(max_tokens=20, seed=100 + i)) for i in range(10)]
    alone: list[Request] = []
    for ids, sampling in work:
        engine = open_engine(decoder, 2, max_running=1)
        alone.append(engine.submit(ids, sampling))
        finish(engine)
    crowd = open_engine(decoder, 2, prefill_tokens=7)
    together = [crowd.submit(ids, sampling) for ids, sampling in reversed(work)]
    finish(crowd)
    for a, b in zip(alone, reversed(together), strict=True):
        assert a.sampled == b.sampled


def test_an_update_between_steps_gives_each_token_the_version_that_verified_it(
    until: Callable, finish: Callable
) -> None:
    decoder, other = drafting(), drafting(seed=1)
    engine = open_engine(decoder, 2)
    request = engine.submit(prompt(0, 9), Sampling(max_tokens=30, seed=5))
    until(engine, lambda: len(request.logprobs) >= 10)
    before = len(request.logprobs)
    engine.update(lambda d: d.load_state_dict(other.state_dict()) and None, V1)
    finish(engine)
    assert request.versions == [V0] * before + [V1] * (30 - before)


def test_an_answer_ends_at_its_stop_token_and_at_its_length(finish: Callable) -> None:
    decoder = drafting(vocab=6, scale=4.0)
    engine = open_engine(decoder, 2)
    stopped = [engine.submit([1, 2], Sampling(max_tokens=30, seed=i, stop_ids=(3,))) for i in range(30)]
    limited = [engine.submit([1, 2], Sampling(max_tokens=1 + i, seed=i)) for i in range(8)]
    finish(engine)
    for request in stopped:
        assert request.sampled.count(3) == (request.stop == "stop")
        assert request.sampled[-1] == 3 or len(request.sampled) == 30
    assert "stop" in {request.stop for request in stopped}
    assert [len(request.sampled) for request in limited] == list(range(1, 9))


def test_alternatives_are_told_of_every_token(finish: Callable, logprobs: Callable) -> None:
    decoder = drafting(vocab=12, scale=4.0)
    engine = open_engine(decoder, 2)
    request = engine.submit([1, 2, 3], Sampling(max_tokens=12, seed=1, top_logprobs=3))
    finish(engine)
    assert len(request.tops) == 12
    for i, top in enumerate(request.tops):
        best = logprobs(decoder, request.tokens[: 3 + i]).topk(3)
        assert [token for token, _ in top] == best.indices.tolist()
        assert [score for _, score in top] == pytest.approx(best.values.tolist(), abs=1e-4)


def test_more_drafts_than_the_model_has_heads_are_refused() -> None:
    with pytest.raises(EtudeError, match=r"engine.speculate is 3, but the model has 2 heads"):
        open_engine(drafting(heads=2), 3)
