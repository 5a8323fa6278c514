"""Recent files and an earlier conversation in the prompt, where a recipe asks for them."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from etude.core.errors import EtudeError
from etude.core.policy import Assistant, Call, User
from etude.core.settings import HarnessSettings
from etude.forge.katas.task_source import katas
from etude.policies.scripted import Scripted
from etude.rollout.prompt_context import HISTORY, earlier_messages, recent_files
from etude.rollout.rollout import Scored, build_setup, run_rollout
from etude.sandbox.hosts import StoringHost
from etude.tasks.format.task import Task

SAID = [
    {"role": "user", "text": "What is this?"},
    {"role": "assistant", "text": "A package."},
    {"role": "user", "text": "Good."},
    {"role": "assistant", "text": "Yes."},
]


@pytest.fixture(scope="module")
def task() -> Task:
    made = next(katas("train", 1, prompt_styles=["terse"]))
    path = made.facts.deleted[0].partition(":")[0]
    files = made.files.replaced({HISTORY: json.dumps(SAID).encode()})
    return replace(made, instruction=f"Mend {path}, see README.md and gone.py and ../etc/passwd.x.", files=files)


def test_files_are_those_that_the_instruction_names(task: Task) -> None:
    path = task.facts.deleted[0].partition(":")[0]
    assert recent_files(task, 0) == {}
    assert list(recent_files(task, 1)) == [path]
    assert recent_files(task, 9) == {path: task.workspace.text(path), "README.md": task.workspace.text("README.md")}


def test_a_long_word_takes_no_square_of_its_length(task: Task) -> None:
    long = replace(task, instruction=f"{'a' * 1_000_000} {task.instruction}")  # minutes, where it did
    assert recent_files(long, 9) == recent_files(task, 9)


def test_an_earlier_conversation_begins_with_a_user(task: Task) -> None:
    assert earlier_messages(task, 0) == ()
    assert earlier_messages(task, 3) == earlier_messages(task, 2) == (User("Good."), Assistant(final="Yes."))
    assert len(earlier_messages(task, 99)) == 4
    for data in (b"{}", b'[{"role": "system", "text": "x"}]', b"["):
        with pytest.raises(EtudeError, match=r"history\.json"):
            earlier_messages(replace(task, files=task.files.replaced({HISTORY: data})), 1)


def test_the_prompt_holds_them_only_where_the_recipe_asks(
    sandboxes: tuple[asyncio.AbstractEventLoop, StoringHost], task: Task
) -> None:
    loop, host = sandboxes
    seen = []
    for harness in (HarnessSettings(), HarnessSettings(recent_files=1, history=2)):
        policy = Scripted([Assistant(calls=(Call("finish", {}),))])
        outcome = loop.run_until_complete(run_rollout(task, policy, host, build_setup(harness)))
        assert isinstance(outcome, Scored)
        seen.append([message for message in outcome.trajectory.messages if isinstance(message, User)])
        assert len(outcome.trajectory.turns) == 1
    assert [message.text for message in seen[0]] == [task.instruction]
    path = task.facts.deleted[0].partition(":")[0]
    assert seen[1][0].text == "Good."
    assert seen[1][1].text == f"{path}:\n{task.workspace.text(path).rstrip()}\n\n{task.instruction}"
