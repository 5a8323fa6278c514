"""examples/own_task_source.py is what docs/extend/add-a-task-source.md shows: loaded by a recipe, it gives tasks."""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path

import pytest

from etude.core import recipe
from etude.forge.curriculum.sources import open_source

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extend" / "add-a-task-source.md").read_text()
EXAMPLE = (ROOT / "examples" / "own_task_source.py").read_text()


def test_the_source_of_the_page_gives_short_tasks_from_any_number_on(monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(EXAMPLE.splitlines()) < 60 and code == EXAMPLE
    monkeypatch.chdir(ROOT)
    overrides = re.findall(r"rl\.tasks\.\S+=\S+", PAGE.partition("Settings are validated")[0])
    source = open_source(recipe.load("nano", overrides).rl.tasks, "rl.tasks")
    first = list(islice(source.tasks(), 6))
    assert all(len(task.instruction.split()) <= 10 for task in first)
    assert [task.name for task in islice(source.tasks(4), 2)] == [task.name for task in first[4:]]
