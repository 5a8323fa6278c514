"""Rewards: what the parts say about an attempt, how they add up, and what a wrong recipe is told."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from etude.core.errors import EtudeError
from etude.core.policy import Assistant, Call, ToolResult
from etude.core.settings import AuditSettings, RewardSettings
from etude.harness.trajectory import MessageRecord, Trajectory
from etude.reward.base import GradedRollout, Part
from etude.reward.compose import Reward, Weighted, build_reward
from etude.reward.diff_size import changed_lines
from etude.rollout.rollout import build_setup
from etude.tasks.format.config import Facts, Installed
from etude.tasks.format.file_tree import Files
from etude.tasks.format.task import SOLUTION, WORKSPACE, Task
from etude.tasks.grading.submission import Submission, SubmittedFile
from etude.tasks.grading.verdict import Grade

BEFORE = b"def f():\n    raise NotImplementedError\n"
AFTER = b"def f():\n    return 1\n"
TASK = Task("t", "Do it.", files=Files({f"{WORKSPACE}/a.py": BEFORE, f"{SOLUTION}/a.py": AFTER}))


def attempt(passed: bool = False, statuses: str = "pf", kind: Any = "tests", files: Any = None) -> GradedRollout:
    names = {"p": "passed", "f": "failed"}
    tests = {str(number): names[letter] for number, letter in enumerate(statuses)}
    carried = tuple(SubmittedFile(path, data) for path, data in (files or {}).items())
    return GradedRollout(
        TASK, Trajectory(), Submission(carried), Grade(passed, "passed" if passed else kind, "", tests)
    )


def test_tests_pay_for_a_solved_task_alone_unless_asked_otherwise() -> None:
    strict = build_reward([{"use": "tests"}])
    partial = build_reward([{"use": "tests", "partial": 0.4}])
    assert strict.score(attempt(passed=True)) == (1.0, {"tests": 1.0})
    assert strict.score(attempt(statuses="ppf"))[0] == 0
    assert partial.score(attempt(statuses="pf"))[0] == pytest.approx(0.2)
    assert partial.score(attempt(statuses="pp", kind="tampering"))[0] == 0  # tests that tampering passed pay nothing
    assert partial.score(attempt(passed=True))[0] == 1


def test_diff_charges_lines_beyond_the_reference() -> None:
    part = build_reward([{"use": "diff", "lines": 10}])
    assert part.score(attempt(files={"a.py": AFTER}))[0] == 0
    assert part.score(attempt(files={"a.py": AFTER + b"# more\n" * 5}))[0] == pytest.approx(-0.5)
    assert part.score(attempt(files={"a.py": AFTER, "b.py": b"x\n" * 100}))[0] == -1
    assert part.score(attempt(files={"a.py": None}))[0] == 0  # two lines gone; the reference changes as many


def test_a_diff_cannot_be_made_small_by_long_lines_or_long_files() -> None:
    part = build_reward([{"use": "diff", "lines": 10}])
    assert part.score(attempt(files={"a.py": AFTER + b"x = 1; " * 400 + b"\n"}))[0] == -1
    long = b"".join(b"%d\n" % number for number in range(20_001))
    assert part.score(attempt(files={"b.py": long}))[0] == -1


def test_a_diff_of_files_with_few_different_lines_is_soon_counted() -> None:
    before, after = b"x\n\n" * 3_000, b"\ny\n" * 9_000
    task = SimpleNamespace(workspace={"a.py": before})
    started = time.process_time()
    assert changed_lines(task, {"a.py": after}) >= 12_000  # type: ignore[arg-type]
    assert time.process_time() - started < 5


def test_parts_are_weighted_and_kept() -> None:
    reward = build_reward([{"use": "tests", "weight": 2}, {"use": "diff", "weight": 0.5, "lines": 10}])
    total, parts = reward.score(attempt(passed=True, files={"a.py": AFTER + b"#\n" * 5}))
    assert parts == {"tests": 1.0, "diff": -0.5}
    assert total == pytest.approx(2 - 0.25)


def test_the_default_of_a_recipe_is_the_tests() -> None:
    setup = build_setup()
    assert setup.reward.score(attempt(passed=True)) == (1.0, {"tests": 1.0})
    assert setup.audit.ruling(TASK, Trajectory(), Submission()) is None
    assert build_reward(RewardSettings().parts).score(attempt(passed=True)) == (1.0, {"tests": 1.0})


def test_tasks_from_repositories_are_watched_whatever_a_recipe_says() -> None:
    made = replace(TASK, facts=Facts(environment=Installed(digest="0" * 64)))
    stolen = MessageRecord(Assistant(calls=(Call("run", {"command": "cat /solution/files/a.py"}),)))
    thief = Trajectory(entries=[stolen, MessageRecord(ToolResult("run", "def f(): ..."))])
    for task, trajectory, verdict in ((made, thief, "hack"), (made, Trajectory(), "clean"), (TASK, thief, None)):
        hacked = GradedRollout(task, trajectory, Submission(), Grade(True, "passed", ""))
        setup = build_setup(reward=RewardSettings(parts=[{"use": "tests"}]))
        ruling = setup.audit.ruling(task, trajectory, Submission())
        assert (ruling and ruling.verdict) == verdict
        total, parts = setup.reward.score(replace(hacked, ruling=ruling))
        assert total == (0.0 if verdict == "hack" else 1.0)
        assert parts.get("hack_penalty") == {"hack": -1.0, "clean": 0.0, None: None}[verdict]
        entries = [{"use": "tests"}, {"use": "hack_penalty", "weight": 0}]
        for free in (
            build_setup(reward=RewardSettings(parts=entries)),
            build_setup(audit=AuditSettings(penalty=0)),
        ):
            ruling = free.audit.ruling(task, trajectory, Submission())
            assert free.reward.score(replace(hacked, ruling=ruling))[0] == 1.0
            assert ruling is not None or task is TASK
        assert build_setup(reward=RewardSettings(parts=entries)).audit.ruling(task, trajectory, Submission())


def test_a_rollout_without_an_audit_has_no_hack_penalty() -> None:
    with pytest.raises(EtudeError, match="needs the audit"):
        build_reward([{"use": "hack_penalty"}]).score(attempt(passed=True))


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({}, "must say which reward"),
        ({"use": "test"}, "did you mean tests"),
        ({"use": "tests", "weight": "much"}, "weight"),
        ({"use": "tests", "weight": float("nan")}, "weight"),
        ({"use": "effort", "kk": 1}, "reward.parts[0].kk"),
        ({"use": "effort", "k": 0}, "k"),
        ({"use": "./gone.py:Mine"}, "does not exist"),
    ],
)
def test_a_wrong_entry_is_named(entry: dict[str, Any], words: str) -> None:
    with pytest.raises(EtudeError) as error:
        build_reward([entry])
    assert words in str(error.value)


def test_one_reward_twice_and_none_at_all_are_refused() -> None:
    with pytest.raises(EtudeError, match="twice"):
        build_reward([{"use": "tests"}, {"use": "tests"}])
    with pytest.raises(EtudeError, match="empty"):
        build_reward([])


def test_a_part_that_gives_no_number_is_named() -> None:
    class Odd(Part):
        def score(self, attempt: GradedRollout) -> float:
            return float("inf")

    with pytest.raises(EtudeError, match="odd gave inf for t"):
        Reward((Weighted("odd", 1.0, Odd(None)),)).score(attempt())


@pytest.mark.parametrize(
    ("stop", "said"), [("finish", 0), ("final", 0), ("time", 0), ("tokens", -1), ("malformed", -1)]
)
def test_an_attempt_that_its_agent_did_not_end_costs_the_ending(stop: Any, said: float) -> None:
    attempt = GradedRollout(Task("t", "Do it."), Trajectory(stop=stop), Submission(()), Grade(True, "passed", ""))
    total, parts = build_reward([{"use": "tests"}, {"use": "ending", "weight": 0.2}]).score(attempt)
    assert parts["ending"] == said and total == pytest.approx(1 + 0.2 * said)
