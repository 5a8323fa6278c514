"""The blocked attention of the CPU against a loop over tokens in float64, forward and backward."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from etude.model import cpu_causal_attention as causal
from etude.model.attention import PackedAttend


def loop(lengths: list[int], q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
    share = q_THD.shape[1] // k_TKD.shape[1]
    rows, start = [], 0
    for length in lengths:
        for t in range(start, start + length):
            seen = slice(start, t + 1)
            for_head = []
            for h in range(q_THD.shape[1]):
                scores = k_TKD[seen, h // share] @ q_THD[t, h] / math.sqrt(q_THD.shape[2])
                for_head.append(scores.softmax(0) @ v_TKD[seen, h // share])
            rows.append(torch.stack(for_head))
        start += length
    return torch.stack(rows)


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "computed again"])
@pytest.mark.parametrize("heads", [(1, 1), (4, 2), (3, 3)], ids=str)
@pytest.mark.parametrize("lengths", [[1], [9, 9, 9], [17], [3, 20, 1, 19, 8, 16]], ids=str)
def test_blocks_give_what_a_loop_over_tokens_gives(
    lengths: list[int], heads: tuple[int, int], kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(causal, "BLOCK", 8)
    monkeypatch.setattr(causal, "KEEP", 1 << 20 if kept else 0)
    torch.manual_seed(0)
    shapes = [(sum(lengths), heads[0], 6), (sum(lengths), heads[1], 6), (sum(lengths), heads[1], 5)]
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    gradient = torch.randn(sum(lengths), heads[0], 5, dtype=torch.float64)
    ours, theirs = PackedAttend(lengths)(0, *inputs), loop(lengths, *inputs)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    found, wanted = (torch.autograd.grad(out, inputs, gradient) for out in (ours, theirs))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    with torch.no_grad():
        torch.testing.assert_close(PackedAttend(lengths)(0, *inputs), theirs, rtol=0, atol=1e-12)
