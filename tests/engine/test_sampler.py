"""Sampling against exact probabilities and brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from etude.core.policy import Sampling
from etude.engine import sampler
from etude.engine.sampler import sample, uniforms


def draw(logits: list[float], sampling: Sampling, count: int) -> tuple[np.ndarray, np.ndarray]:
    """`count` independent first tokens, one for each seed."""
    rows = torch.tensor([logits]).expand(count, -1)
    each = [Sampling(**{**vars(sampling), "seed": seed}) for seed in range(count)]
    tokens, logprobs, *_ = sample(rows, each, [0] * count)
    return np.array(tokens), np.array(logprobs)


def exact(logits: list[float], sampling: Sampling) -> np.ndarray:
    """The distribution to sample from, by the definition, in float64."""
    p = np.exp(np.array(logits, dtype=np.float64) / sampling.temperature)
    p /= p.sum()
    order = sorted(range(len(p)), key=lambda i: (-p[i], i))
    kept = order[: sampling.top_k or len(p)]
    total, reached, nucleus = sum(p[i] for i in kept), 0.0, []
    for i in kept:
        if reached >= sampling.top_p * total and sampling.top_p < 1:
            break
        nucleus.append(i)
        reached += p[i]
    out = np.zeros_like(p)
    out[nucleus] = p[nucleus] / p[nucleus].sum()
    return out


LOGITS = [0.3, -1.2, 2.0, 0.0, 1.1, -3.0, 0.9, 0.31]


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.6),
        Sampling(temperature=1.7),
        Sampling(top_k=3),
        Sampling(top_p=0.8),
        Sampling(temperature=1.4, top_k=6, top_p=0.7),
    ],
    ids=str,
)
def test_tokens_come_as_often_as_their_probability_says(sampling: Sampling) -> None:
    count = 20_000
    p = exact(LOGITS, sampling)
    tokens, logprobs = draw(LOGITS, sampling, count)
    seen = np.bincount(tokens, minlength=len(LOGITS))
    assert not seen[p == 0].any(), "a token that was cut off was sampled"
    possible = p > 0
    chi_square = (((seen - p * count) ** 2)[possible] / (p * count)[possible]).sum()
    assert chi_square < 30  # 7 degrees of freedom: the chance is under 1e-4, and the seeds are fixed
    np.testing.assert_allclose(logprobs, np.log(p[tokens]), atol=2e-6)


def test_more_likeliest_tokens_than_a_tensor_can_count_are_all_of_them() -> None:
    logits = torch.arange(70.0)[None]
    wanted = sample(logits, [Sampling(top_k=70, seed=3)], [0])
    assert sample(logits, [Sampling(top_k=10**30, seed=3)], [0]) == wanted


def test_greedy_takes_the_best_and_says_its_plain_log_probability() -> None:
    logits = torch.randn(9, 50, generator=torch.Generator().manual_seed(0))
    tokens, logprobs, *_ = sample(logits, [Sampling(temperature=0.0)] * 9, [0] * 9)
    reference = logits.double().log_softmax(-1)
    assert tokens == reference.argmax(-1).tolist()
    np.testing.assert_allclose(logprobs, reference.max(-1).values.numpy(), atol=1e-6)


def test_a_row_is_sampled_the_same_in_any_company() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(40, 300, generator=generator)
    kinds = (Sampling(), Sampling(temperature=0.5), Sampling(top_k=7), Sampling(top_p=0.6), Sampling(temperature=0.0))
    each = [Sampling(**{**vars(kinds[i % 5]), "seed": i}) for i in range(40)]
    counters = [i % 11 for i in range(40)]
    together = sample(logits, each, counters)
    order = torch.randperm(40, generator=generator).tolist()
    shuffled = sample(logits[order], [each[i] for i in order], [counters[i] for i in order])
    for place, i in enumerate(order):
        alone = sample(logits[i : i + 1], [each[i]], [counters[i]])
        assert together[0][i] == shuffled[0][place] == alone[0][0]
        assert together[1][i] == shuffled[1][place] == alone[1][0]


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7}, {"top_k": 3}, {"top_p": 0.5}, {"temperature": 0.0}])
def test_rows_that_ask_get_the_likeliest_tokens_and_no_other_row_does(settings: dict) -> None:
    logits = torch.randn(4, 90, generator=torch.Generator().manual_seed(2))
    each = [Sampling(**settings, seed=i, top_logprobs=(0, 5, 0, 2)[i]) for i in range(4)]
    tokens, logprobs, tops, _ = sample(logits, each, [0] * 4)
    assert set(tops) == {1, 3}
    plain = Sampling(temperature=1.0) if each[0].temperature == 0 else each[0]
    for row, count in ((1, 5), (3, 2)):
        p = exact(logits[row].tolist(), plain)
        best = [int(i) for i in np.argsort(-p, kind="stable")[:count] if p[i] > 0]
        assert [token for token, _ in tops[row]] == best
        np.testing.assert_allclose([value for _, value in tops[row]], np.log(p[best]), atol=2e-6)
        assert dict(tops[row]).get(tokens[row], logprobs[row]) == pytest.approx(logprobs[row], abs=1e-12)


def test_vocabularies_that_do_not_divide_into_pieces_reach_their_last_token() -> None:
    logits = [-30.0] * 129 + [5.0]
    tokens, _ = draw(logits, Sampling(), 50)
    assert set(tokens) == {129}


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-53])
def test_a_token_without_weight_is_never_sampled_even_at_the_ends(
    uniform: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "uniforms", lambda seeds, counters: np.full(len(seeds), uniform))
    logits = torch.full((1, 200), -1e9)
    logits[0, [70, 130]] = 0.0
    tokens, logprobs, *_ = sample(logits, [Sampling()], [0])
    assert tokens[0] in (70, 130)
    assert logprobs[0] == pytest.approx(math.log(0.5), abs=1e-6)


def test_the_uniform_numbers_look_uniform_and_unrelated() -> None:
    grid = np.stack([uniforms([seed] * 200, range(200)) for seed in range(200)])
    assert ((grid >= 0) & (grid < 1)).all()
    assert len(np.unique(grid)) == grid.size
    counts = np.histogram(grid, bins=100, range=(0, 1))[0]
    assert (((counts - 400) ** 2) / 400).sum() < 160  # chi-square, 99 degrees of freedom, about 1e-4
    neighbours = [grid[1:].ravel(), grid[:-1].ravel()], [grid[:, 1:].ravel(), grid[:, :-1].ravel()]
    for a, b in neighbours:  # the next seed, the next token
        assert abs(np.corrcoef(a, b)[0, 1]) < 0.02
    # the next seed is not this seed shifted by a token
    assert not np.isin(grid[1], grid[0]).any()


def test_seeds_of_any_size_and_sign_are_taken() -> None:
    values = uniforms([-1, 2**64 - 1, 2**80, 0], [0, 0, 0, 0])
    assert values[0] == values[1]
    assert values[2] == values[3]


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_logits_that_are_not_finite_give_no_finite_log_probability(poison: float) -> None:
    logits = torch.zeros(3, 70)
    logits[1, 5] = poison
    for sampling in (Sampling(), Sampling(temperature=0.0), Sampling(top_k=2), Sampling(top_p=0.5)):
        tokens, logprobs, *_ = sample(logits, [sampling] * 3, [0] * 3)
        assert math.isfinite(logprobs[0])
        assert math.isfinite(logprobs[2])
        assert not math.isfinite(logprobs[1])
        assert 0 <= tokens[1] < 70
