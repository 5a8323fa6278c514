"""Which submissions are run once more and watched."""

from __future__ import annotations

from etude.audit.watched import SHARE_OF_FAILING, is_drawn
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
