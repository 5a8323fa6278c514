"""The process groups of a layout: every wait on them has the deadline that the recipe sets."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _world

from etude.learn.parallel.layout import Layout
from etude.learn.parallel.mesh import Meshes
from tests.learn.parallel.groups import Found, run_ranks

SECONDS = 77.0


def ranks(rank: int, count: int) -> Found:
    Meshes(Layout(count, context=count, expert=count), "cpu", SECONDS)
    groups = {group.group_name: group for group in _world.pg_map if group is not dist.group.WORLD}
    waits = {name: group._get_backend(torch.device("cpu")).options._timeout for name, group in groups.items()}
    return {name: wait.total_seconds() for name, wait in waits.items()}


def test_no_group_waits_longer_than_the_recipe_says(tmp_path: Path) -> None:
    for found in run_ranks(ranks, 2, tmp_path):
        assert len(found) > 1
        assert set(found.values()) == {SECONDS}, found
