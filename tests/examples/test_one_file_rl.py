"""The loop in one file runs, keeps its promise about staleness, swaps weights in flight, and stays short."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

PATH = Path(__file__).parents[2] / "examples" / "one_file_rl.py"


@pytest.fixture
def example() -> Iterator[ModuleType]:
    found = importlib.util.spec_from_file_location("one_file_rl", PATH)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[module.__name__] = module  # dataclasses look their module up
    found.loader.exec_module(module)
    threads = torch.get_num_threads()
    yield module
    torch.set_num_threads(threads)


def test_it_fits_on_a_few_screens():
    assert len(PATH.read_text().splitlines()) <= 250


def test_rollouts_learning_and_publishing_go_on_at_once(example: ModuleType, capsys: pytest.CaptureFixture[str]):
    small = {"demonstrations": 40, "imitation_steps": 60, "steps": 4, "groups": 2, "group": 4, "evaluation": 1}
    result = example.main([f"--{name.replace('_', '-')}={value}" for name, value in small.items()])
    assert result["updates"] == 4  # the engine got every version while rollouts were in flight
    assert 1 <= result["stalest"] <= 2  # older weights sampled some of it, none older than was asked for
    assert 0 <= result["before"] <= 1 and 0 <= result["after"] <= 1
    assert "step    4  reward" in capsys.readouterr().out


def test_every_task_is_solved_by_its_own_body_alone(example: ModuleType):
    for task in example.TASKS:
        (path,) = task.workspace
        right = task.workspace.text(path).replace(example.HOLE, example.BODIES[task.facts.family])
        names: dict[str, object] = {}
        exec(right, names)
        assert names["find"]([3, 1, 2]) == example.MEANINGS[task.facts.family]([3, 1, 2])  # type: ignore[operator]
