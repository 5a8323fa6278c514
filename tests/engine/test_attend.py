"""Attention over the cache against a float64 loop over single tokens."""

from __future__ import annotations

import pytest
import torch

from etude.core.settings import EngineSettings
from etude.engine.cache import KeyValueCache
from etude.engine.row_attention import SPAN_COST, CachedAttend, spans
from etude.model.config import ModelConfig

CONFIG = ModelConfig(16, 32, 64, 2, 4, 2, 8)
SETTINGS = EngineSettings(max_running=8, cache_tokens=512, block_tokens=4, max_length=64)


def fresh_cache() -> KeyValueCache:
    return KeyValueCache(CONFIG, SETTINGS, "cpu", torch.float32)


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param({0: (5, 1), 1: (17, 1), 2: (0, 1)}, id="decode"),
        pytest.param({0: (0, 6)}, id="a fresh prompt"),
        pytest.param({0: (0, 5), 1: (0, 5)}, id="two equal prompts"),
        pytest.param({0: (12, 7)}, id="the rest of a prompt"),
        pytest.param({0: (9, 1), 1: (20, 1), 2: (8, 3), 3: (8, 3), 4: (0, 11), 6: (2, 1)}, id="all at once"),
    ],
)
def test_every_token_sees_its_row_up_to_itself(batch: dict[int, tuple[int, int]]) -> None:
    torch.manual_seed(0)
    cache, layer = fresh_cache(), 1
    cache.rows_LPRKSD.normal_()  # what lies past the end of a row must not matter
    before = cache.rows_LPRKSD.clone()
    rows, starts, counts = list(batch), [s for s, _ in batch.values()], [c for _, c in batch.values()]
    rows_T = torch.tensor([row for row, (_, count) in batch.items() for _ in range(count)])
    positions_T = torch.tensor([start + i for start, count in batch.values() for i in range(count)])
    q, k, v = torch.randn(len(rows_T), 4, 8), torch.randn(len(rows_T), 2, 8), torch.randn(len(rows_T), 2, 8)

    out = CachedAttend(cache, rows_T, positions_T, spans(rows, starts, counts))(layer, q, k, v)

    expected = before[layer].clone()
    for t, (row, position) in enumerate(zip(rows_T, positions_T, strict=True)):
        expected[0, row, :, position], expected[1, row, :, position] = k[t], v[t]
    assert torch.equal(cache.rows_LPRKSD[layer], expected)
    assert torch.equal(cache.rows_LPRKSD[0], before[0])
    for t, (row, position) in enumerate(zip(rows_T, positions_T, strict=True)):
        for head in range(4):
            keys = expected[0, row, head // 2, : position + 1].double()
            values = expected[1, row, head // 2, : position + 1].double()
            weights = (keys @ q[t, head].double() / 8**0.5).softmax(0)
            torch.testing.assert_close(out[t, head].double(), weights @ values, atol=2e-6, rtol=0)


def test_a_step_later_is_what_would_be_worked_out_anew() -> None:
    torch.manual_seed(0)
    moving, fresh = fresh_cache(), fresh_cache()
    moving.rows_LPRKSD.normal_()
    fresh.rows_LPRKSD.copy_(moving.rows_LPRKSD)
    rows, starts = [0, 1, 2, 4], [5, 17, 0, 9]  # two spans, of different lengths inside
    attend = CachedAttend(moving, torch.tensor(rows), torch.tensor(starts), spans(rows, starts, [1] * 4), ahead=3)
    for step in range(4):
        if step:
            attend.advance()
        now = [start + step for start in starts]
        anew = CachedAttend(fresh, torch.tensor(rows), torch.tensor(now), spans(rows, now, [1] * 4))
        assert attend.positions_T.tolist() == now
        q, k, v = torch.randn(4, 4, 8), torch.randn(4, 2, 8), torch.randn(4, 2, 8)
        torch.testing.assert_close(attend(1, q, k, v), anew(1, q, k, v), atol=1e-6, rtol=0)
        assert torch.equal(moving.rows_LPRKSD, fresh.rows_LPRKSD)


def test_neighbouring_rows_with_equally_many_tokens_form_one_span() -> None:
    parts = spans([0, 1, 2, 4, 5], [9, 8, 0, 3, 0], [1, 1, 1, 1, 7])
    assert [(p.row, p.rows, p.count, p.longest, p.token) for p in parts] == [
        (0, 3, 1, 10, 0),
        (4, 1, 1, 4, 3),
        (5, 1, 7, 7, 4),
    ]
    assert [p.tokens for p in parts] == [slice(0, 3), slice(3, 4), slice(4, 11)]


def test_a_row_much_longer_than_its_neighbours_gets_a_span_of_its_own() -> None:
    parts = spans([0, 1, 2, 3], [10, 10 + 2 * SPAN_COST, 11, 12], [1, 1, 1, 1])
    assert [(p.row, p.rows) for p in parts] == [(0, 1), (1, 1), (2, 2)]


def test_blocks_carry_a_row_to_another_row() -> None:
    torch.manual_seed(0)
    cache = fresh_cache()
    cache.rows_LPRKSD.normal_()
    cache.store(2, 0, [7, 3])
    cache.store(2, 2, [5])
    cache.fill(6, [7, 3, 5])
    assert torch.equal(cache.rows_LPRKSD[:, :, 6, :, :12], cache.rows_LPRKSD[:, :, 2, :, :12])
    cache.move(6, 0, 9)
    assert torch.equal(cache.rows_LPRKSD[:, :, 0, :, :9], cache.rows_LPRKSD[:, :, 2, :, :9])


def test_scrubbing_leaves_nothing_past_the_rows_ends() -> None:
    cache = fresh_cache()
    cache.rows_LPRKSD.fill_(float("nan"))
    cache.scrub([3, 0])
    assert cache.rows_LPRKSD[:, :, 0, :, :3].isnan().all()
    assert not cache.rows_LPRKSD[:, :, 0, :, 3:].any()
    assert not cache.rows_LPRKSD[:, :, 1:].any()
