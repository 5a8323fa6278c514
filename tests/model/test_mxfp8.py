"""MXFP8 against the format's definition, number by number, and against products written out."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from etude.core.settings import ComputeSettings, OptimSettings
from etude.learn.learner import Learner
from etude.learn.loop import labelled
from etude.model.low_precision import mxfp8
from etude.model.low_precision.products import PRECISIONS
from etude.model.training import set_up
from tests.engine_models import VOCAB, make_decoder


def e4m3() -> np.ndarray:
    """Every finite number of the format, by its definition: sign, 4 bits of exponent (bias 7), 3 of mantissa."""
    numbers = []
    for code in range(128):
        exponent, mantissa = code >> 3, code & 7
        if code != 127:  # not a number
            scale = 2.0 ** (max(exponent, 1) - 7)
            numbers.append(((mantissa / 8) + (exponent > 0)) * scale)
    return np.array(numbers)


def by_definition(block: np.ndarray) -> np.ndarray:
    """In float64: the block's exponent, then the nearest number of the format, ties to the even code."""
    largest = float(np.abs(block).max())
    exponent = 0 if largest == 0 else max(-127, min(127, math.ceil(math.log2(largest) - math.log2(448))))
    table = e4m3()
    found = []
    for x in block:
        distance = np.abs(table - abs(x) / 2.0**exponent)
        nearest = np.flatnonzero(distance == distance.min())
        code = int(next((c for c in nearest if c % 2 == 0), nearest[0]))
        found.append(math.copysign(table[code] * 2.0**exponent, x))
    return np.array(found)


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 700.0, 1e20])
def test_every_number_is_that_of_the_definition(scale: float) -> None:
    draw = np.random.default_rng(int(scale) % 97)
    x = (draw.standard_normal((6, 3 * 32)) * scale * 10 ** draw.uniform(-3, 3, (6, 96))).astype(np.float32)
    x[0, :32] = 0
    x[1, 32:64] = scale * 448.0 * np.exp2(draw.integers(-3, 3))  # exact bounds of an exponent
    found = mxfp8.rounded(torch.from_numpy(x)).numpy()
    wanted = np.stack([np.concatenate([by_definition(row[i : i + 32]) for i in range(0, 96, 32)]) for row in x])
    assert np.array_equal(found, wanted.astype(np.float32))


def test_bfloat16_holds_the_result_and_odd_lengths_are_blocks_too() -> None:
    x = torch.randn(5, 77, generator=torch.Generator().manual_seed(1))
    found = mxfp8.rounded(x)
    assert torch.equal(found.bfloat16().float(), found)
    assert torch.equal(found[:, 64:], mxfp8.rounded(x[:, 64:])) and torch.equal(mxfp8.rounded(found), found)


def test_the_three_products_have_blocks_along_what_they_sum() -> None:
    generator = torch.Generator().manual_seed(2)
    x, weight, slope = (torch.randn(*s, generator=generator) for s in ((70, 96), (48, 96), (70, 48)))
    x.requires_grad_(), weight.requires_grad_()
    out = mxfp8.linear(x, weight)
    out.backward(slope)
    rounded, a, b = mxfp8.rounded, x.detach(), weight.detach()
    assert torch.allclose(out, rounded(a) @ rounded(b).T)
    assert torch.allclose(x.grad, rounded(slope) @ rounded(b.T.contiguous()).T, atol=1e-5)
    assert torch.allclose(weight.grad, rounded(slope.T.contiguous()) @ rounded(a.T.contiguous()).T, atol=1e-5)
    exact = a @ b.T
    assert 0 < float((out.detach() - exact).norm() / exact.norm()) < 0.05


def test_experts_are_products_of_their_own() -> None:
    generator = torch.Generator().manual_seed(3)
    x, weight = torch.randn(11, 64, generator=generator), torch.randn(4, 32, 64, generator=generator)
    sizes = torch.tensor([5, 0, 6, 0])
    found = PRECISIONS["mxfp8"].grouped(x, weight, sizes)
    wanted = torch.cat([mxfp8.linear(x[:5], weight[0]), mxfp8.linear(x[5:], weight[2])])
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("matrices", ["adamw", "muon"])
def test_a_small_model_learns_as_in_float32(matrices: str) -> None:
    def last_loss(precision: str) -> float:
        decoder = set_up(make_decoder(), ComputeSettings(precision=precision), "cpu")  # type: ignore[arg-type]
        optim = OptimSettings(matrices=matrices, lr=3e-3, muon_lr=3e-3, schedule="constant")  # type: ignore[arg-type]
        learner = Learner(decoder, optim, 60, 512, "cpu")
        draw, sizes, losses = np.random.default_rng(4), np.ones(VOCAB, np.int64), []
        for _ in range(60):
            starts = draw.integers(0, VOCAB, 8)
            pieces = [((start + 3 * np.arange(32)) % VOCAB, np.ones(32, np.float32)) for start in starts]
            losses.append(learner.forward_backward(labelled(pieces, [], sizes).batch)["loss"])
            learner.step()
        return float(np.mean(losses[-10:]))

    plain, blocks = last_loss("float32"), last_loss("mxfp8")
    assert plain < 3.0  # it learns: ln(97) is 4.6
    assert abs(blocks - plain) < 0.05 * plain
