"""Needles: how they are hidden, and what they say of a model that knows nothing and of one that knows the answers."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from etude.bench.base.model_under_test import ModelUnderTest, ScoredText
from etude.bench.base.needle import hide, measure_needles
from etude.core.errors import EtudeError
from etude.model.attention import PackedAttend

FILLER = [f"    value_{n} = compute({n}, [{n * n}, None])" for n in range(50)]


@pytest.mark.parametrize("length", [256, 700])
@pytest.mark.parametrize("depth", [0.0, 0.3, 1.0])
def test_a_needle_fills_its_length_and_stands_at_its_depth(
    make_tested: Callable[..., ModelUnderTest], length: int, depth: float
) -> None:
    tested = make_tested()
    needle = hide(tested, FILLER, length, depth, 4, random.Random(5))
    *lines, question = needle.text.split("\n")
    name = question.removeprefix("assert ").removesuffix(' == "')
    assert lines[needle.line] == f'{name} = "{needle.candidates[0]}"' and needle.text.count(name) == 2
    assert len(lines) == needle.lines and needle.line == round(depth * (needle.lines - 1))
    whole = len(tested.text.encode(f'{needle.text}{needle.candidates[0]}"'))
    longest = max(len(tested.text.encode(f"{line}\n")) for line in FILLER)
    assert length - longest - 5 <= whole <= length
    assert len(set(needle.candidates)) == 4
    present = [value in needle.text for value in needle.candidates]
    assert present == [True, True, True, False]  # the fact, two others, and one that is nowhere


def test_needles_follow_from_the_seed(make_tested: Callable[..., ModelUnderTest]) -> None:
    tested = make_tested()
    made = [hide(tested, FILLER, 300, 0.5, 4, random.Random(seed)) for seed in (1, 1, 2)]
    assert made[0] == made[1] != made[2]


def test_scores_of_candidates_are_those_of_the_whole_text(make_tested: Callable[..., ModelUnderTest]) -> None:
    tested = make_tested(seed=4)
    found = measure_needles(tested, FILLER, [256], [0.5], 1, 5, 9)
    needle = hide(tested, FILLER, 256, 0.5, 5, random.Random("9/256/0.5/0"))
    totals = []
    for value in needle.candidates:
        ids = torch.tensor(tested.text.encode(f'{needle.text}{value}"'))
        with torch.inference_mode():
            hidden = tested.decoder(ids, torch.arange(len(ids)), PackedAttend([len(ids)]))
            logp = tested.decoder.logits(hidden).double().log_softmax(-1)
        totals.append(float(logp[:-1].gather(-1, ids[1:, None]).sum()))
    chances = torch.tensor(totals, dtype=torch.float64).softmax(0)
    assert found.probability == pytest.approx(float(chances[0]), abs=1e-4)
    assert found.rank == 1 + sum(total >= totals[0] for total in totals[1:])


def test_greedy_answers_are_those_of_a_loop_without_a_cache(make_tested: Callable[..., ModelUnderTest]) -> None:
    tested = make_tested(seed=2)
    prompts = [tested.text.encode(text) for text in ("def f(", "x = [1, 2", "class A:\n")]
    for prompt, answer in zip(prompts, tested.greedy(prompts, [4, 9, 6]), strict=True):
        ids = list(prompt)
        for token in answer:
            with torch.inference_mode():
                hidden = tested.decoder(torch.tensor(ids), torch.arange(len(ids)), PackedAttend([len(ids)]))
                assert int(tested.decoder.logits(hidden[-1]).argmax()) == token
            ids.append(token)
    stop = tested.text.decode(tested.greedy(prompts, [9, 9, 9])[1][:2])
    assert stop in tested.text.decode(tested.greedy(prompts[1:2], [9], until=stop)[0])
    assert len(tested.greedy(prompts[1:2], [9], until=stop)[0]) <= 2


def test_a_model_that_learned_the_answers_finds_them(
    make_tested: Callable[..., ModelUnderTest], teach: Callable[..., None]
) -> None:
    tested = make_tested()
    before = measure_needles(tested, FILLER, [160, 200], [0.0, 1.0], 1, 4, 0)
    assert [(place.length, place.depth) for place in before.places] == [(160, 0.0), (160, 1.0), (200, 0.0), (200, 1.0)]
    assert before.exact < 0.5 and before.candidates == 4
    needles = [
        hide(tested, FILLER, place.length, place.depth, 4, random.Random(f"0/{place.length}/{place.depth}/0"))
        for place in before.places
    ]
    teach(tested, [tested.text.encode(f'{each.text}{each.candidates[0]}"') for each in needles], steps=100)
    after = measure_needles(tested, FILLER, [160, 200], [0.0, 1.0], 1, 4, 0)
    assert after.probability > max(0.7, before.probability) and after.rank < 2
    assert after.exact > before.exact


def test_lengths_that_do_not_fit_are_left_out_or_refused(make_tested: Callable[..., ModelUnderTest]) -> None:
    tested = make_tested(positions=256)
    assert measure_needles(tested, FILLER, [200, 512], [0.5], 1, 2, 0).left_out == [512]
    with pytest.raises(EtudeError, match="to the model's 256 positions"):
        measure_needles(tested, FILLER, [512], [0.5], 1, 2, 0)
    with pytest.raises(EtudeError, match="depths from 0 to 1"):
        measure_needles(tested, FILLER, [200], [1.5], 1, 2, 0)
    with pytest.raises(EtudeError, match="64 tokens are too few for a needle and 8 other facts"):
        measure_needles(tested, FILLER, [64], [0.5], 1, 16, 0)


def test_a_piece_scores_something() -> None:
    with pytest.raises(AssertionError):
        ScoredText([1, 2], 0)
