"""Practice for the ladder: one token is wrong, the reference puts it back, and nothing of held-out packages is used."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any, cast

import pytest

from etude.core.settings import GraderSettings
from etude.corpus.document import Document
from etude.forge.curriculum.sources import open_source
from etude.forge.ladder import mends
from etude.forge.ladder.mend_text import texts
from etude.forge.ladder.mends import Mends, as_task, fit, mend, read_module
from etude.forge.languages.python.source import Module
from etude.policies.scripted import Habits, reference
from etude.tasks.format.task import Task
from etude.tasks.grading.grader import GradeJob
from etude.tasks.grading.submission import Submission, SubmittedFile, submission_of
from etude.tasks.kinds.table import kind_of

SOURCE = b'''def nearest(values, wanted, limit=3):
    """The value nearest to `wanted`, if it is within the limit."""
    best = min(values, key=lambda value: abs(value - wanted))
    if abs(best - wanted) <= limit:
        return best
    return None
'''


def task_of(data: bytes = SOURCE, seed: int = 0) -> Task:
    module = Module("tools/near.py", data)
    made = mend(module, fit(module)[0], random.Random(seed))
    assert made is not None
    return as_task(made, "mend-0-000000", ["plain"], random.Random(seed))


def passes(task: Task, files: dict[str, bytes | None]) -> bool:
    job = GradeJob(
        task, cast(Any, None), submission_of(task, files), GraderSettings(), "", None, None, None, {}, (), True
    )
    return asyncio.run(kind_of(task).grade(job)).passed


@pytest.mark.parametrize("seed", range(6))
def test_the_reference_edit_restores_the_file_and_nothing_else_does(seed: int) -> None:
    task = task_of(seed=seed)
    edits = [call for turn in reference(task, seed, Habits(think=0.0)) for call in turn.calls if call.name == "edit"]
    text = task.workspace.text("tools/near.py")
    for call in edits:
        assert text.count(call.arguments["old"]) == 1
        text = text.replace(call.arguments["old"], call.arguments["new"])
    assert text.encode() == SOURCE
    assert passes(task, {"tools/near.py": text.encode()})
    assert passes(task, {"tools/near.py": SOURCE.replace(b"return None\n", b"return None  \n\n")})  # ends of lines
    assert not passes(task, {})
    assert not passes(task, {"tools/near.py": None})
    assert not passes(task, {"tools/near.py": task.workspace["tools/near.py"]})
    assert not passes(task, {"tools/near.py": SOURCE.replace(b"None", b"0")})


def test_files_that_the_task_does_not_name_are_refused() -> None:
    assert submission_of(task_of(), {"other.py": b"x = 1\n"}).files == ()
    assert Submission((SubmittedFile("tools/near.py", SOURCE),)).files


def test_the_reference_runs_no_test_where_there_is_none() -> None:
    calls = [
        call.name for turn in reference(task_of(), 0, Habits(test_first=1.0, test_after=1.0)) for call in turn.calls
    ]
    assert calls == ["read", "edit", "finish"]


def test_a_number_gives_the_same_task_and_held_out_packages_give_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("kept", "held"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "code.py").write_bytes(SOURCE)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_code.py").write_bytes(SOURCE)
    monkeypatch.setattr(mends.sysconfig, "get_path", lambda key: str(tmp_path))
    mends.installed.cache_clear()
    try:
        source = open_source({"use": "mends", "places": ["packages"], "without": ["held"]}, "rl.tasks")
        assert isinstance(source, Mends)
        stream = source.tasks(2)
        drawn = [next(stream) for _ in range(4)]
        assert [task.digest for task in drawn] == [source.task(number).digest for number in range(2, 6)]
        assert {path for task in drawn for path in task.workspace} == {"kept/code.py"}
    finally:
        mends.installed.cache_clear()


def test_a_link_and_a_large_file_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_bytes(SOURCE)
    (tmp_path / "link.py").symlink_to(tmp_path / "plain.py")
    (tmp_path / "large.py").write_bytes(SOURCE * 1000)
    found = {name: read_module(tmp_path, f"{name}.py") for name in ("plain", "link", "large", "missing")}
    assert [name for name, module in found.items() if module is not None] == ["plain"]


def test_the_text_of_a_mend_has_the_broken_function_and_both_lines() -> None:
    file = Document("packages/tools", "tools/near.py", SOURCE.decode(), "permissive", "packages")
    (found,) = texts(file, 0, 2, "mends")
    asked, _, rest = found.text.partition("def nearest")
    assert "nearest" in asked and "tools/near.py" in asked and found.source == "mends" and found.license == "permissive"
    old, new = (line.partition(": ")[2] for line in rest.splitlines()[-2:])
    assert f"def nearest{rest}".replace(old, new, 1).startswith(SOURCE.decode())
