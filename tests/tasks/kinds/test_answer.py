"""Answers in an agent's last words: read strictly, forgiven their spelling, and never satisfied by a list."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from etude.core.errors import EtudeError
from etude.core.policy import Assistant, Call
from etude.core.settings import GraderSettings
from etude.harness.trajectory import MessageRecord, Trajectory
from etude.policies.scripted import scripted
from etude.rollout.rollout import GradeCache, Scored, build_setup, run_rollout, score
from etude.sandbox.base import WORKSPACE as PLACE
from etude.tasks.check import check
from etude.tasks.environment.layers import task_layers
from etude.tasks.format.config import Answer, Config, Facts, read
from etude.tasks.format.file_tree import Files
from etude.tasks.format.task import TESTS, WORKSPACE, Task
from etude.tasks.grading.submission import Refused, Submission
from etude.tasks.kinds.answer import all_names, grade_answer, is_right, read_answer, reference_answer
from etude.tasks.lint import lint

ONE = Answer(kind="name", accepted=["a/b.py:C.f"])
TWO = Answer(kind="names", accepted=["a.py:f", "b.py:C.g"])
CODE = {
    "a.py": "def f():\n    return 1\n\n\ndef h():\n    return f()\n",
    "b.py": "class C:\n    def g(self):\n        return 2\n",
}


def asked(answer: Answer, **facts: Any) -> Task:
    files = {
        "environment/Dockerfile": b"FROM python:3.11.9\nCOPY workspace /app\n",
        f"{TESTS}/test.sh": b"#!/bin/sh\n",
        "solution/solve.sh": b"#!/bin/sh\n",
        **{f"{WORKSPACE}/{path}": text.encode() for path, text in CODE.items()},
    }
    return Task("asked", "Which one?", Config(), Facts(suite="unittest", answer=answer, **facts), Files(files))


@pytest.mark.parametrize(
    "said",
    [
        "ANSWER: a/b.py:C.f",
        "It must be this one.\n\nanswer: `a/b.py:C.f`.",
        "**ANSWER:** `./a/b.py::C::f()`",
        "First I thought\nANSWER: a/b.py:other\nbut no:\nANSWER: a/b.py:C.f\n",
        "ANSWER:\n```\na/b.py:C.f\n```\n",
        "Found it.\n\na/b.py:C.f\n",
    ],
)
def test_one_name_is_read_however_it_is_spelled(said: str) -> None:
    assert is_right(ONE, read_answer(said))


@pytest.mark.parametrize(
    "said",
    [
        "",
        "ANSWER:",
        "ANSWER: a/b.py:C.g",
        "ANSWER: b.py:C.f",
        "ANSWER: f",
        "ANSWER: a/b.py:c.f",
        "ANSWER: a/b.py:C.f, a/b.py:C.g",
        "ANSWER: a/b.py:C.f or a/b.py:C.g",
        "ANSWER: one of a/b.py:C.f",
        "ANSWER: not a/b.py:C.f",
        "ANSWER: a/b.py:C.f\nANSWER: a/b.py:C.g",
        "a/b.py:C.f\n\nI am not sure.",
        "a/b.py:C.f a/b.py:C.g a/b.py:C.h",
        "ANSWER: a/b.py:C.f a/b.py:C.f",
        "ANSWER: " + "x " * 100_000,
        "\ud800\x00ANSWER: \x1b[31m",
    ],
)
def test_anything_but_the_one_name_is_wrong(said: str) -> None:
    assert not is_right(ONE, read_answer(said))


@pytest.mark.parametrize(
    ("said", "right"),
    [
        ("ANSWER: a.py:f, b.py:C.g", True),
        ("ANSWER: b.py:C.g and a.py:f", True),
        ("ANSWER:\n- `a.py:f`\n- `b.py::C::g`\n\nThat is all.", True),
        ("ANSWER:\n1. a.py:f\n2. b.py:C.g", True),
        ("ANSWER: a.py:f", False),
        ("ANSWER: a.py:f, b.py:C.g, a.py:h", False),
        ("a.py:f\nb.py:C.g", False),  # the last line alone is no list
        ("ANSWER: a.py:f\nANSWER: b.py:C.g", False),
    ],
)
def test_several_names_are_wanted_exactly_and_in_any_order(said: str, right: bool) -> None:
    assert is_right(TWO, read_answer(said)) is right


def test_a_grade_says_what_was_answered_and_never_what_is_right() -> None:
    task = asked(ONE)
    right, wrong, silent = (
        grade_answer(task, said) for said in ("ANSWER: a/b.py:C.f", "ANSWER: a/b.py:C.g", "Done.\n")
    )
    assert right.passed and right.kind == "passed" and right.share == 1
    assert (wrong.passed, wrong.kind, wrong.tests) == (False, "answer", {"answer": "failed"})
    assert "C.g" in wrong.reason and not any("C.f" in text for text in (wrong.reason, *wrong.details.values()))
    assert not silent.passed and grade_answer(task, "").tests == {"answer": "missing"}


def test_the_reference_of_each_kind_is_right() -> None:
    for wanted in (ONE, TWO):
        assert grade_answer(asked(wanted), f"Well.\n{reference_answer(wanted)}").passed


def test_a_task_without_an_accepted_answer_is_refused() -> None:
    with pytest.raises(EtudeError, match="accepted"):
        read(b"[metadata.etude.answer]\nkind = 'name'\naccepted = []\n", "task.toml")


def test_no_layer_of_a_sandbox_holds_the_answer(grounds: Any) -> None:
    task = asked(Answer(kind="name", accepted=["a.py:f"]), parameters={"choices": ["secret-of-the-task"]})
    for layer in task_layers(task, grounds.host):
        found = {path.relative_to(layer.path).as_posix() for path in layer.path.rglob("*") if path.is_file()}
        assert {path.removeprefix(f"{PLACE.strip('/')}/") for path in found} == set(CODE)


def test_a_policy_answers_and_its_edits_change_nothing(grounds: Any) -> None:
    setup = build_setup()
    task = asked(Answer(kind="name", accepted=["a.py:f"]))
    for policy, passed in (("reference", True), ("null", False)):
        outcome = grounds.run(run_rollout(task, scripted(policy, task), grounds.host, setup))
        assert isinstance(outcome, Scored), outcome
        assert outcome.passed is passed and outcome.reward == float(passed)
    edits = Submission(refused=(Refused("a.py", "the task does not allow it"),))
    words = Trajectory(
        entries=[MessageRecord(Assistant(final="See below.", calls=(Call("finish", {"message": "ANSWER: a.py:f"}),)))]
    )
    scored = grounds.run(score(task, words, edits, grounds.host, setup))
    assert scored.passed and scored.grade.refused == (("a.py", "the task does not allow it"),)


def test_equal_changes_with_other_answers_are_judged_apart(grounds: Any) -> None:
    task, judged = asked(Answer(kind="name", accepted=["a.py:f"])), GradeCache()

    async def ask() -> list[bool]:
        said = ["ANSWER: a.py:h", "ANSWER: a.py:f", "ANSWER: a.py:h"]
        grades = [judged.grade(task, grounds.host, Submission(), GraderSettings(), answer=each) for each in said]
        return [grade.passed for grade in await asyncio.gather(*grades)]

    assert grounds.run(ask()) == [False, True, False]
    assert judged.reused == 1


def test_a_question_is_checked_without_a_model(grounds: Any) -> None:
    task = asked(Answer(kind="name", accepted=["a.py:f"]))
    assert all_names(task) == ["a.py:f", "a.py:h", "b.py:C.g"]
    report = grounds.run(check(task, grounds.host, guesses=["b.py:C.g"]))
    assert report.ok and len(report.trials) == 5
    guessed = grounds.run(check(task, grounds.host, guesses=["a.py:f"]))
    assert guessed.problems == ["WRONG: the guess a.py:f is accepted"]
    unknown = grounds.run(check(asked(Answer(kind="name", accepted=["a.py:gone"])), grounds.host))
    assert unknown.problems == ["WRONG: reference is accepted: a.py:gone is no function of the workspace"]
    everything = grounds.run(check(asked(Answer(kind="names", accepted=all_names(task))), grounds.host))
    assert everything.problems == ["WRONG: all names is accepted"]


def test_a_question_that_also_asks_for_edits_is_an_error() -> None:
    assert "answer-and-edits" in {each.rule for each in lint(asked(ONE, allowed_paths=["a.py"]))}
    assert "unreadable-answer" in {each.rule for each in lint(asked(Answer(kind="name", accepted=["a b"])))}
    assert not [each for each in lint(asked(ONE)) if each.severity == "error"]
