"""docs/extend/add-a-tool.md works as it stands: its code block is loaded as a recipe would and called by an agent."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from etude.core.policy import Assistant, Call
from etude.harness.prompt import system_text
from etude.harness.tools.table import build_tools

PAGE = (Path(__file__).parents[2] / "docs" / "extend" / "add-a-tool.md").read_text()
SOURCE = "import os\n\n\nclass Box:\n    def open(self):\n        pass\n\n\nasync def close():\n    pass\n"


def block(language: str) -> str:
    found = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert len(found) == 1
    return found[0]


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: Any) -> Any:
    (tmp_path / "outline.py").write_text(block("python"))
    monkeypatch.chdir(tmp_path)
    return build_tools(tomllib.loads(block("toml"))["harness"]["tools"])


def test_the_worked_example_is_small() -> None:
    assert len(block("python").splitlines()) < 60


def test_an_agent_calls_the_tool_of_the_page(tools: Any, rollouts: Any, script: Any) -> None:
    (rollouts.sandbox.root / "box.py").write_text(SOURCE)
    turn = Assistant(
        calls=(
            Call("outline", {"path": "box.py"}),
            Call("outline", {"path": "box.py", "top": "true"}),
            Call("outline", {"path": "README"}),
            Call("outline", {"path": "gone.py"}),
            Call("outline", {"file": "box.py"}),
            Call("finish"),
        )
    )
    trajectory = rollouts.play(script(rollouts.dialect, [turn]), tools=tools)
    assert trajectory.stop == "finish"
    results = [entry for entry in trajectory.entries if entry.message.__class__.__name__ == "ToolResult"]
    assert [entry.message.text for entry in results[:2]] == [
        "4 class Box\n5     def open\n9 async def close",
        "4 class Box\n9 async def close",
    ]
    assert [entry.error for entry in results] == [
        None, None, "InvalidArguments", "UnexpectedEnvironment", "InvalidArguments",
    ]  # fmt: skip


def test_the_settings_of_the_page_are_checked(tools: Any) -> None:
    assert tools["outline"].settings.max_entries == 20
    assert "outline path [top]" in system_text("", tools)
