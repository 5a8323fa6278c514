"""What of an agent's work reaches the grader: from a real sandbox, and by the rules alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from etude.sandbox.base import WORKSPACE
from etude.tasks.environment.layers import workspace_layer
from etude.tasks.format.task import Task
from etude.tasks.grading.submission import Refused, Submission, SubmissionLimits, SubmittedFile, collect, submission_of

BEFORE = {"pkg/a.py": "a\n", "pkg/b.py": "b\n", "tests/test_a.py": "", "README.md": ""}


@pytest.fixture
def task(make_task: Any) -> Task:
    return make_task({}, {"pkg/a.py": "done\n"}, BEFORE, fail_to_pass=["x.Y.z"], allowed_paths=["pkg/**", "setup.cfg"])


def left_by(grounds: Any, task: Task, command: str, limits: SubmissionLimits | None = None) -> Submission:
    async def play() -> Submission:
        async with await grounds.host.start([workspace_layer(task, grounds.host)]) as sandbox:
            result = await sandbox.run(["sh", "-c", command])
            assert result.code == 0, result.stderr
            return await collect(task, sandbox, limits)

    return grounds.run(play())


def test_edits_additions_and_deletions_are_carried(grounds: Any, task: Task) -> None:
    command = "echo new > pkg/a.py; rm pkg/b.py; mkdir -p pkg/c; echo x > pkg/c/d.py; chmod +x pkg/c/d.py"
    changes = left_by(grounds, task, command)
    found = {each.path: (each.data, each.executable) for each in changes.files}
    assert found == {"pkg/a.py": (b"new\n", False), "pkg/b.py": (None, False), "pkg/c/d.py": (b"x\n", True)}
    assert changes.refused == ()


def test_everything_else_stays_behind_with_its_reason(grounds: Any, task: Task) -> None:
    command = (
        "echo x > README.md; echo x > tests/test_a.py; ln -sf /etc/passwd pkg/a.py; ln -s ../tests pkg/linked; "
        "mkfifo pkg/pipe; head -c 3000 /dev/zero > pkg/large.py; echo > pkg/conftest.py; mkdir pkg/__pycache__; "
        "echo > pkg/__pycache__/a.cpython-311.pyc; echo > pkg/a.pyc; echo > pkg/x.pth; echo > pkg/so.so; "
        "mkdir pkg/evil.dist-info; echo > pkg/evil.dist-info/entry_points.txt; echo > pkg/sitecustomize.py; "
        "printf x > \"$(printf 'pkg/\\033[31m.py')\"; printf x > \"$(printf 'pkg/\\377.py')\"; echo > setup.cfg"
    )
    changes = left_by(grounds, task, command, SubmissionLimits(file_bytes=2000))
    assert [each.path for each in changes.files] == ["setup.cfg"]  # a pattern spells its name
    why = {each.path.encode("utf-8", "backslashreplace").decode(): each.why for each in changes.refused}
    assert why.pop("README.md") == why.pop("tests/test_a.py") == "the task does not allow it"
    assert why.pop("pkg/a.py") == why.pop("pkg/linked") == "it is a link"
    assert why.pop("pkg/pipe") == "it is no plain file"
    assert "3000 bytes" in why.pop("pkg/large.py")
    assert [why.pop(name) for name in list(why) if "\x1b" in name or "udcff" in name] == ["its name is not plain"] * 2
    assert {reason.partition(",")[0] for reason in why.values()} == {"it steers tests or hides its source"}
    assert len(why) == 7


def test_too_much_is_cut(grounds: Any, task: Task) -> None:
    command = "for n in 1 2 3 4; do head -c 600 /dev/zero > pkg/f$n.py; done"
    changes = left_by(grounds, task, command, SubmissionLimits(total_bytes=1500))
    assert [each.path for each in changes.files] == ["pkg/f1.py", "pkg/f2.py"]
    changes = left_by(grounds, task, command, SubmissionLimits(files=3))
    assert len(changes.files) == 3
    assert [each.why for each in changes.refused] == ["it is one of more than 3 files"]


def test_a_tree_that_cannot_be_listed_is_the_agents_doing(task: Task) -> None:
    class Unlistable:
        async def diff(self, under: str) -> Any:
            assert under == WORKSPACE
            raise OSError(40, "too many levels")

    changes = asyncio.run(collect(task, Unlistable()))  # type: ignore[arg-type]
    assert changes.files == ()
    assert "too many levels" in changes.refused[0].why


def test_given_files_follow_the_same_rules(task: Task) -> None:
    changes = submission_of(task, {"pkg/a.py": b"x", "pkg/b.py": None, "../x": b"", "README.md": b"", "pkg/a.pyc": b""})
    assert [(each.path, each.data) for each in changes.files] == [("pkg/a.py", b"x"), ("pkg/b.py", None)]
    assert {each.path for each in changes.refused} == {"../x", "README.md", "pkg/a.pyc"}


def test_a_digest_tells_submissions_apart() -> None:
    one = SubmittedFile("a.py", b"x")
    others = [
        Submission(),
        Submission((SubmittedFile("a.py", b"y"),)),
        Submission((SubmittedFile("a.py", None),)),
        Submission((SubmittedFile("a.py", b""),)),
        Submission((SubmittedFile("a.py", b"x", True),)),
        Submission((SubmittedFile("b.py", b"x"),)),
        Submission((one, one)),
        Submission((one,), (Refused("setup.cfg", "it steers tests"),)),
    ]
    digests = {each.digest for each in [Submission((one,)), *others]}
    assert len(digests) == 1 + len(others) and Submission((SubmittedFile("a.py", b"x"),)).digest in digests
