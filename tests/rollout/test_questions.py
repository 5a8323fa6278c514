"""Environments without a sandbox: questions from a file, answered in words, beside tasks with files in one mixture."""

from __future__ import annotations

import asyncio
import json
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from etude.core.errors import EtudeError
from etude.core.policy import Assistant, Call
from etude.core.settings import AgentLimits, HarnessSettings
from etude.forge.curriculum.sources import open_source
from etude.policies.scripted import Scripted, reference
from etude.rollout.rollout import Scored, build_setup, run_rollout
from etude.tasks.format.task import Task
from etude.tasks.kinds.answer import read_words
from etude.tasks.lint import lint

# Sandboxes cannot even be started here: whoever asks for one fails the test.
HOST: Any = SimpleNamespace(capabilities=SimpleNamespace(backend="none"))
LINES = [
    {"question": "What does `[1, 2][-1]` give?", "answer": "2", "name": "last"},
    {"question": "Who wrote Python first?", "answer": ["Guido van Rossum", "van Rossum"]},
]


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "questions.jsonl"
    path.write_text("\n".join(map(json.dumps, LINES)) + "\n\n")
    return path


def tried(task: Task, turns: list[Assistant], harness: HarnessSettings | None = None) -> Scored:
    outcome = asyncio.run(run_rollout(task, Scripted(turns), HOST, build_setup(harness)))
    assert isinstance(outcome, Scored), outcome
    return outcome


def said(text: str) -> list[Assistant]:
    return [Assistant(calls=(Call("finish", {"message": text}),))]


def test_a_question_is_answered_without_a_sandbox(questions: Path) -> None:
    first, second = open_source({"use": "questions", "path": str(questions)}).tasks()
    assert first.name == "last" and not [each for each in lint(first) if each.severity == "error"]
    for right in ("ANSWER: 2", "It is the last one.\n**Answer:** `2`.", "2"):
        assert tried(first, said(right)).reward == 1, right
    for wrong in ("ANSWER: 1", "", "ANSWER: 2 or 1", "2\nANSWER: 1"):
        assert tried(first, said(wrong)).reward == 0, wrong
    assert tried(second, said("answer:  guido  VAN Rossum")).passed
    assert tried(second, reference(second)).passed


def test_tools_that_need_files_say_that_there_are_none(questions: Path) -> None:
    task = next(open_source({"use": "questions", "path": str(questions)}).tasks())
    offered = build_setup().for_task(task)
    assert list(offered.tools) == ["todo", "finish"] and "read" not in offered.system
    turns = [Assistant(calls=(Call("read", {"path": "x"}), Call("run", {"command": "ls"}))), *said("ANSWER: 2")]
    outcome = tried(task, turns)
    results = [entry.error for entry in outcome.trajectory.entries if entry.error is not None]
    assert outcome.passed and results == ["Unavailable", "Unavailable"]
    # a recipe that names them anyway gets the same sentence from the tool itself
    named = HarnessSettings(environments={"question and answer": {"tools": ["read", "finish"]}})
    outcome = tried(task, [turns[0], *said("ANSWER: 2")], named)
    assert "no files" in "".join(map(str, outcome.trajectory.messages))


def test_limits_differ_by_environment(questions: Path) -> None:
    task = next(open_source({"use": "questions", "path": str(questions)}).tasks())
    harness = HarnessSettings(environments={"question and answer": {"limits": {"turns": 1}, "system": "Be short."}})
    setup = build_setup(harness).for_task(task)
    assert setup.limits == AgentLimits(turns=1) and setup.system.startswith("Be short.")
    outcome = tried(task, [Assistant(calls=(Call("todo", {"items": "x"}),)), *said("ANSWER: 2")], harness)
    assert outcome.trajectory.stop == "turns" and not outcome.passed
    for limits, told in (({"turns": 0}, "turns is 0, but it must be at least 1"), ({"trns": 1}, "unknown key")):
        with pytest.raises(EtudeError, match=f"harness.environments.x.limits.*{told}|{told} harness"):
            build_setup(HarnessSettings(environments={"x": {"limits": limits}}))


def test_questions_are_mixed_with_other_tasks(questions: Path) -> None:
    entries = [{"use": "katas", "name": "code"}, {"use": "questions", "path": str(questions), "again": True}]
    source: Any = open_source({"use": "mixture", "sources": entries})
    tasks = list(islice(source.tasks(), 20))
    assert {task.facts.sandbox for task in tasks} == {True, False}
    assert {source.source_of(n) for n, task in enumerate(tasks) if not task.facts.sandbox} == {"questions"}


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "questions.jsonl:1 is no question"),
        ('{"question": "x"}', "answer"),
        ('{"question": "x", "answer": " "}', "nobody could give it"),
        ('{"question": "x", "answer": "a\\nb"}', "nobody could give it"),
        ("", "has no question"),
    ],
)
def test_mistakes_in_a_file_of_questions_are_named(tmp_path: Path, line: str, told: str) -> None:
    (tmp_path / "questions.jsonl").write_text(line)
    with pytest.raises(EtudeError, match=told):
        open_source({"use": "questions", "path": str(tmp_path / "questions.jsonl")})


def test_held_out_questions_are_refused_in_training(questions: Path) -> None:
    with pytest.raises(EtudeError, match="held-out"):
        open_source({"use": "questions", "path": str(questions), "split": "held_out"}, "rl.tasks")


def test_words_are_compared_without_case_quotes_and_spaces() -> None:
    assert read_words("think\n> ANSWER:  'The  Last' .") == "the last"
    assert read_words("```\n") == read_words("") == ""
