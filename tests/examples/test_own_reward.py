"""examples/own_reward.py is what docs/extend/add-a-reward.md shows: loaded as a recipe would, it scores a rollout."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from etude.core.errors import EtudeError
from etude.core.policy import Assistant, Call, ToolResult
from etude.harness.trajectory import MessageRecord, Trajectory
from etude.reward.base import GradedRollout
from etude.reward.compose import build_reward
from etude.reward.effort import penalty
from etude.tasks.format.file_tree import Files
from etude.tasks.format.task import WORKSPACE, Task
from etude.tasks.grading.submission import Submission, SubmittedFile
from etude.tasks.grading.verdict import Grade

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extend" / "add-a-reward.md").read_text()
EXAMPLE = (ROOT / "examples" / "own_reward.py").read_text()


def block(language: str) -> str:
    found = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert len(found) == 1
    return found[0]


@pytest.fixture
def parts(monkeypatch: Any) -> Any:
    monkeypatch.chdir(ROOT)
    return tomllib.loads(block("toml"))["reward"]["parts"]


def test_the_example_is_small_and_the_page_shows_it() -> None:
    assert len(EXAMPLE.splitlines()) < 60 and block("python") == EXAMPLE


def test_the_reward_of_the_page_scores_a_rollout(parts: Any) -> None:
    trajectory = Trajectory(
        entries=[
            MessageRecord(Assistant(calls=(Call("run", {}),))),
            MessageRecord(ToolResult("run", "no"), error="Timeout"),
            MessageRecord(ToolResult("run", "yes")),
        ]
    )
    task = Task("t", "Do it.", files=Files({f"{WORKSPACE}/a.py": b"1\n"}))
    changes = Submission((SubmittedFile("a.py", b"1\n2\n3\n"), SubmittedFile("b.py", None)))
    total, said = build_reward(parts).score(GradedRollout(task, trajectory, changes, Grade(True, "passed", "")))
    assert said["Tidy"] == pytest.approx(1 - 2 / 10 - 0.1)
    effort = trajectory.effort
    x = 1e-3 * effort.call_tokens + 2e-4 * effort.output_tokens + 0.02 * effort.calls + 0.02 * effort.turns
    assert said["effort"] == pytest.approx(-penalty(x, 1.0, 0.5))
    assert total == pytest.approx(1 + 0.1 * said["effort"] + 0.05 * said["Tidy"])


def test_its_settings_are_checked(parts: Any) -> None:
    parts[2]["growht"] = 1
    with pytest.raises(EtudeError, match=r"reward\.parts\[2\]\.growht; did you mean reward\.parts\[2\]\.growth"):
        build_reward(parts)
