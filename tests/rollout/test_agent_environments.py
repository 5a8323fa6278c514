"""Which tools an agent has in which tasks, and how the failures of each tool reach the row of a step."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from etude.core import recipe as recipes
from etude.core.errors import EtudeError
from etude.core.policy import Assistant, Call
from etude.core.settings import EngineSettings, HarnessSettings, SummarySettings
from etude.forge.katas.task_source import katas
from etude.pipeline.stages.base import check_agent
from etude.policies.scripted import Scripted
from etude.rl.groups import compact, pack, unpack
from etude.rl.metrics import describe
from etude.rollout.rollout import Scored, build_setup, check_lengths, run_rollout
from etude.sandbox.hosts import StoringHost
from etude.tasks.format.task import Task

TOOLS = [{"use": name} for name in ("read", "grep", "finish")]


def settings(**environments: Any) -> HarnessSettings:
    return HarnessSettings(tools=TOOLS, environments=environments)


def test_a_task_has_the_tools_of_its_family_before_those_of_its_category() -> None:
    task = next(katas("train", 1))
    entries = {task.facts.category: {"tools": ["read", "finish"]}, task.facts.family: {"strict": False}}
    setup = build_setup(settings(**entries)).for_task(task)
    assert (list(setup.tools), setup.strict) == (["read", "grep", "finish"], False)
    other = replace(task, facts=task.facts.model_copy(update={"family": "other"}))
    setup = build_setup(settings(**entries)).for_task(other)
    assert (list(setup.tools), setup.strict) == (["read", "finish"], True)
    assert "grep" not in setup.system
    plain = build_setup(HarnessSettings(tools=TOOLS))
    assert plain.for_task(task) is plain and "grep" in plain.system


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({"tools": ["raed"]}, r"harness.environments.x.tools: harness.tools has no 'raed'; did you mean read"),
        ({"tool": []}, "unknown key harness.environments.x.tool"),
        ({"strict": 1}, "harness.environments.x.strict"),
    ],
)
def test_mistakes_in_an_environment_are_named(entry: Any, told: str) -> None:
    with pytest.raises(EtudeError, match=told):
        build_setup(settings(x=entry))


def test_limits_of_an_environment_are_checked_as_those_of_all_tasks() -> None:
    """Before anything starts: in a rollout the engine would cut its contexts, and a plan for summaries end the run."""
    setup = build_setup(settings(long={"limits": {"context_tokens": 9000}}))
    with pytest.raises(EtudeError, match=r"harness\.environments\.long\.limits\.context_tokens is 9000, more than"):
        check_lengths(setup, EngineSettings(max_length=8192))
    check_lengths(setup, EngineSettings(max_length=9000))
    recipe = recipes.load("nano", ["harness.environments.long={limits={context_tokens=40, rollout_tokens=900}}"])
    recipe = replace(recipe, harness=replace(recipe.harness, summary=SummarySettings(max_tokens=39)))
    with pytest.raises(EtudeError, match=r"^harness\.environments\.long\.limits\.context_tokens is 40: a summary"):
        check_agent(recipe)


def test_the_row_of_a_step_has_calls_and_error_classes_of_each_tool(
    sandboxes: tuple[asyncio.AbstractEventLoop, StoringHost],
) -> None:
    loop, host = sandboxes
    task: Task = next(katas("train", 1))
    setup = build_setup(settings(**{task.facts.category: {"tools": ["read", "finish"]}}))
    path = next(iter(task.workspace))
    turns = [
        Assistant(calls=(Call("read", {"path": path}), Call("read", {"path": "gone.py"}), Call("read", {"paht": "x"}))),
        Assistant(calls=(Call("grep", {"pattern": "x"}), Call("sing", {}))),
        Assistant(calls=(Call("finish", {}),)),
    ]
    outcome = loop.run_until_complete(run_rollout(task, Scripted(turns), host, setup))
    assert isinstance(outcome, Scored)
    rollout = unpack(pack(compact(outcome)))
    assert rollout.tools == {
        "unknown": {"calls": 2, "Unavailable": 1, "InvalidArguments": 1},
        "finish": {"calls": 1},
        "read": {"calls": 3, "UnexpectedEnvironment": 1, "InvalidArguments": 1},
    }
    row = {key: value for key, value in describe([rollout, rollout]).items() if key.startswith("tool_")}
    assert row == {
        "tool_mix": pytest.approx(0.8113, abs=1e-4),  # of 1 and 3 calls; those of tools that there are not are none
        "tool_errors": 4,
        "tool_finish_calls": 1,
        "tool_finish_errors": 0,
        "tool_read_calls": 3,
        "tool_read_errors": pytest.approx(2 / 3),
        "tool_read_InvalidArguments": pytest.approx(1 / 3),
        "tool_read_UnexpectedEnvironment": pytest.approx(1 / 3),
        "tool_unknown_calls": 2,
        "tool_unknown_errors": 1,
        "tool_unknown_InvalidArguments": 0.5,
        "tool_unknown_Unavailable": 0.5,
    }
