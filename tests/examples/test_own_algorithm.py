"""examples/own_algorithm.py is what docs/extend/add-an-algorithm.md shows: loaded by a recipe, it gives advantages."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from etude.core.errors import EtudeError
from etude.rl.algorithms.base import BatchShape
from etude.rl.algorithms.table import build_algorithm

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extend" / "add-an-algorithm.md").read_text()
EXAMPLE = (ROOT / "examples" / "own_algorithm.py").read_text()


def block(language: str) -> str:
    found = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert len(found) == 1
    return found[0]


@pytest.fixture
def spec(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(ROOT)
    return tomllib.loads(block("toml"))["rl"]["algorithm"]


def test_the_example_is_small_and_the_page_shows_it() -> None:
    assert len(EXAMPLE.splitlines()) < 60 and block("python") == EXAMPLE


def test_the_algorithm_of_the_page_counts_rare_successes_for_more(spec: Any) -> None:
    algorithm = build_algorithm(spec)
    assert algorithm.advantages([1.0, 0.0, 0.0, 0.0]) == [3.0, -1.0, -1.0, -1.0]
    assert algorithm.advantages([1.0, 1.0, 1.0, 0.0]) == pytest.approx([1 / 3, 1 / 3, 1 / 3, -1.0])
    assert algorithm.advantages([0.1, 0.0]) == pytest.approx([0.25, -0.25])  # the floor
    assert algorithm.advantages([0.0, 0.0]) == [0.0, 0.0]
    assert algorithm.weights([5, 50], BatchShape(groups=2, group=4, longest=100)) == [1 / 800] * 2


def test_its_settings_are_validated(spec: Any) -> None:
    with pytest.raises(EtudeError, match=r"unknown key rl\.algorithm\.flor; did you mean rl\.algorithm\.floor"):
        build_algorithm({**spec, "flor": 1})
    with pytest.raises(EtudeError, match=r"rl\.algorithm\.floor is 0"):
        build_algorithm({**spec, "floor": 0})
