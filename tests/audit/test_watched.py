"""Which submissions are run once more and watched."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from etude.audit import watched
from etude.audit.watched import SHARE_OF_FAILING, Watch, is_drawn
from etude.core.settings import GraderSettings
from etude.tasks.format.config import Config, Facts
from etude.tasks.format.file_tree import Files
from etude.tasks.format.task import Task
from etude.tasks.grading.submission import Submission, SubmittedFile


def test_a_twentieth_of_what_does_not_pass_is_watched_each_submission_always_or_never() -> None:
    task = Task("shop", "Mend it.", Config(), Facts(), Files({}))
    some = [Submission((SubmittedFile("shop.py", b"x = %d" % number),)) for number in range(4000)]
    drawn = [is_drawn(task, each) for each in some]
    assert drawn == [is_drawn(task, each) for each in some]
    assert abs(sum(drawn) / len(drawn) - SHARE_OF_FAILING) < 0.02
    assert not any(is_drawn(task, each, 0.0) for each in some) and all(is_drawn(task, each, 1.0) for each in some)


def test_findings_of_large_submissions_are_not_kept_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(job: object) -> tuple[()]:
        return ()

    monkeypatch.setattr(watched, "_watch", nothing)
    monkeypatch.setattr(watched, "MOST_HELD", 10_000)
    facts = Facts(suite="pytest", fail_to_pass=["a.py::test_a"])
    watch, task = Watch(), Task("shop", "Mend it.", Config(), facts, Files({}))

    async def work() -> None:
        for name in "abcdef":
            changes = Submission((SubmittedFile(f"{name}.py", b"x" * 4_000),))
            await watch.findings(task, cast(Any, None), changes, GraderSettings())

    asyncio.run(work())
    assert len(watch._found) == 2
