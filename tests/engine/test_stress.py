"""The stress benchmark in small: random load, aborts, preemptions and updates never change a greedy answer."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def benchmark_module() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "engine_stress.py"
    spec = importlib.util.spec_from_file_location("engine_stress", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["engine_stress"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_every_answer_under_random_load_is_the_answer_alone(benchmark_module: ModuleType) -> None:
    report = benchmark_module.stress(count=120, seed=1)
    assert report.passed, report
    assert report.compared > 80
    assert report.aborted > 5
    assert report.stats["preemptions"] > 5
    assert report.stats["updates"] > 5
    assert report.stats["cached_tokens"] > 100
