"""Traffic and time of a plan, against counting ranks one by one and against steps that one H200 took."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from etude.learn.parallel.layout import Layout
from etude.model.config import ModelConfig
from etude.plan.machines import MACHINES, Machine
from etude.plan.search import layouts, search
from etude.plan.shapes import named
from etude.plan.step_time import step_time
from etude.plan.traffic import RankGroup, exchange, gather, traffic
from etude.plan.workload import Workload

NODE = MACHINES["h200-8"]
KIMI = Workload(named("kimi-k2.5"), "pretrain", 1 << 26, 32_768, 32_768, "bfloat16", True, "muon")
MOE = ModelConfig(
    *(65_536, 1024, 4096, 16, 8, 4, 128),
    model_type="qwen3_moe",
    num_experts=32,
    num_experts_per_tok=4,
    moe_intermediate_size=512,
)
LOG = [
    # shape, tokens of a step, at once, in a sequence, precision, recomputed,
    # tokens/s of one H200 (docs/log, 2026-11-15; experts 2026-11-18)
    (named("qwen3-0.6b"), 65_536, 16_384, 16_384, "bfloat16", False, 48_600),
    (MOE, 65_536, 16_384, 16_384, "bfloat16", False, 121_600),
    (named("qwen3-0.6b"), 262_144, 262_144, 262_144, "bfloat16", True, 4_815),
    (named("qwen3-4b"), 32_768, 8192, 4096, "bfloat16", False, 18_300),
    (named("qwen3-4b"), 32_768, 8192, 4096, "fp8", False, 23_700),
]


@pytest.mark.parametrize("line", LOG, ids=["0.6B", "experts", "long", "4B", "4B in FP8"])
def test_a_step_of_one_h200_is_within_a_tenth_of_the_log(line: tuple[Any, ...]) -> None:
    config, batch, micro, sequence, precision, recompute, rate = line
    config = replace(config, max_position_embeddings=1 << 20)
    work = Workload(config, "sft", batch, micro, sequence, precision, recompute, "adamw")
    assert step_time(work, Layout(), NODE).tokens_per_second == pytest.approx(rate, rel=0.10)


def members(group: RankGroup, machine: Machine) -> list[int]:
    """The node of each rank of the group that rank 0 is in."""
    return [number * group.stride // machine.devices for number in range(group.size)]


@pytest.mark.parametrize(("size", "stride"), [(4, 1), (8, 1), (32, 1), (16, 2), (4, 8), (8, 16)])
def test_bytes_on_each_wire_are_those_that_ranks_exchange(size: int, stride: int) -> None:
    group, sent = RankGroup(size, stride), 1e6
    nodes = members(group, NODE)
    link, network, _ = exchange(group, sent, 1, NODE)
    near = sum(node == nodes[0] for node in nodes[1:]) / size
    far = sum(node != nodes[0] for node in nodes) / size
    assert link == pytest.approx(near * sent) and network == pytest.approx(far * sent)
    # To put a whole together, each node needs once what the others have; its members share the way in.
    link, network, seconds = gather(group, sent, 1, NODE)
    here = nodes.count(nodes[0])
    assert network == pytest.approx(sent * (1 - here / size) / here)
    assert link == pytest.approx(sent * (size - 1) / size if here > 1 else 0)
    assert seconds >= max(link / NODE.link, network / NODE.network)


def test_one_rank_moves_nothing_and_more_ranks_share_the_work() -> None:
    assert traffic(KIMI, Layout(), NODE, 4) == []
    alone, many = (step_time(KIMI, layout, NODE) for layout in (Layout(8, 1, 8), Layout(64, 1, 64)))
    for part in ("products", "experts", "attention"):
        assert getattr(alone, part) == pytest.approx(8 * getattr(many, part))
    assert 0 < many.mfu < 0.6


def test_sequences_divided_over_ranks_take_less_time_on_each() -> None:
    long = replace(KIMI, micro_tokens=1 << 18, sequence=1 << 18, batch_tokens=1 << 24)
    times = [step_time(long, Layout(64, 1, 64 // c, 8, c), NODE) for c in (1, 4)]
    assert times[1].attention == pytest.approx(times[0].attention, rel=0.01)  # of a step, on each rank
    assert times[1].micro_batches == 4 * times[0].micro_batches


def test_every_layout_is_tried_once_and_each_but_the_best_has_its_reason() -> None:
    tried = list(layouts(16, 24))
    assert len(set(tried)) == len(tried)
    assert {(each.replicate, each.shard, each.context) for each in tried} == {
        (16 // (s * c), s, c) for s in (1, 2, 4, 8, 16) for c in (1, 2, 4, 8, 16) if s * c <= 16
    }
    assert {each.expert for each in tried} == {1, 2, 4, 8}  # 16 does not divide 24 experts
    found = search(KIMI, 256, NODE)
    assert len(found) == len(list(layouts(256, 384)))  # the recipe recomputes already
    assert not found[0].why and all(each.why for each in found[1:])
    fits = [each for each in found if not each.problem]
    assert [each.time.seconds for each in fits] == sorted(each.time.seconds for each in fits)
    assert all(each.memory.peak <= NODE.usable for each in fits)
    asked = next(each for each in search(KIMI, 1024, NODE) if each.layout == Layout(1024, 2, 256, 8, 2))
    assert not asked.problem and "slower than the best" in asked.why  # the division that was published for this model


def test_what_cannot_be_used_says_what_to_do() -> None:
    eight = search(KIMI, 8, NODE)
    assert all(each.problem for each in eight)
    assert "a copy of the model needs at least" in eight[0].problem
    small = replace(KIMI, config=named("qwen3-0.6b"), batch_tokens=1 << 15, micro_tokens=1 << 15, matrices="adamw")
    reasons = " ".join(each.problem for each in search(small, 8, NODE))
    assert "without work" in reasons
    odd = replace(small, sequence=1001, micro_tokens=1001, batch_tokens=8008)
    assert any("cannot be cut into" in each.problem for each in search(odd, 8, NODE))
