"""examples/own_tool.py is what docs/extend/add-a-tool.md shows: loaded as a recipe would, and called by an agent."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from etude.core.policy import Assistant, Call
from etude.harness.prompt import system_text
from etude.harness.tools.table import build_tools

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extend" / "add-a-tool.md").read_text()
EXAMPLE = (ROOT / "examples" / "own_tool.py").read_text()
SOURCE = "import os\n\n\nclass Box:\n    def open(self):\n        pass\n\n\nasync def close():\n    pass\n"


def block(language: str) -> str:
    found = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert len(found) == 1
    return found[0]


@pytest.fixture
def tools(monkeypatch: Any) -> Any:
    monkeypatch.chdir(ROOT)
    return build_tools(tomllib.loads(block("toml"))["harness"]["tools"])


def test_the_example_is_small_and_the_page_shows_it() -> None:
    assert len(EXAMPLE.splitlines()) < 60 and block("python") == EXAMPLE


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
