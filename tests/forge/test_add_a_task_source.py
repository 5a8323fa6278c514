"""docs/extend/add-a-task-source.md works as it stands: its code block is loaded as a recipe would and gives tasks."""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path

import pytest

from etude.core import recipe
from etude.forge.curriculum.sources import open_source

PAGE = (Path(__file__).parents[2] / "docs" / "extend" / "add-a-task-source.md").read_text()


def test_the_source_of_the_page_gives_short_tasks_from_any_number_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(code.splitlines()) < 60
    (tmp_path / "brief.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    overrides = re.findall(r"rl\.tasks\.\S+=\S+", PAGE.partition("Settings are validated")[0])
    source = open_source(recipe.load("nano", overrides).rl.tasks, "rl.tasks")
    first = list(islice(source.tasks(), 6))
    assert all(len(task.instruction.split()) <= 10 for task in first)
    assert [task.name for task in islice(source.tasks(4), 2)] == [task.name for task in first[4:]]
