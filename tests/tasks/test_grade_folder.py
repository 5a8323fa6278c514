"""A folder is graded as a rollout's workspace is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from etude.core.errors import EtudeError
from etude.tasks.grade_folder import changes_in, grade_folder

TEST = "import unittest\nfrom shop import f\n\n\nclass T(unittest.TestCase):\n"
TEST += "    def test_a(self):\n        self.assertEqual(f(2), 4)\n"
TEST += "    def test_b(self):\n        self.assertEqual(f(3), 9)\n"
BROKEN = "def f(x):\n    raise NotImplementedError\n"
IDS = ["test_shop.T.test_a", "test_shop.T.test_b"]


@pytest.fixture
def task(make_task: Any) -> Any:
    before = {"shop.py": BROKEN, "README.md": "shop\n", "data.txt": "1\n"}
    return make_task({"test_shop.py": TEST}, {"shop.py": "def f(x):\n    return x * x\n"}, before, fail_to_pass=IDS)


def test_a_copy_of_the_workspace_is_graded(grounds: Any, task: Any, tmp_path: Path) -> None:
    task.workspace.write(tmp_path / "copy")
    assert changes_in(task, tmp_path / "copy") == {}
    assert not grounds.run(grade_folder(task, tmp_path / "copy", grounds.host)).passed
    (tmp_path / "copy/shop.py").write_text("def f(x):\n    return x**2\n")
    (tmp_path / "copy/__pycache__").mkdir()
    (tmp_path / "copy/__pycache__/shop.pyc").write_bytes(b"x")
    (tmp_path / "copy/data.txt").unlink()
    assert set(changes_in(task, tmp_path / "copy")) == {"shop.py", "data.txt"}
    found = grounds.run(grade_folder(task, tmp_path / "copy", grounds.host))
    assert found.passed and found.refused == (("data.txt", "the task does not allow it"),)


def test_a_folder_of_changes_alone_is_asked_for_by_name(task: Any, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("def f(x):\n    return x\n")
    with pytest.raises(EtudeError, match="lacks 2 of the 3 files"):
        changes_in(task, tmp_path)
    assert set(changes_in(task, tmp_path, only_changes=True)) == {"shop.py"}
    with pytest.raises(EtudeError, match="there is no folder"):
        changes_in(task, tmp_path / "nowhere")
