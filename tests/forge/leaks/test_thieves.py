"""Policies that steal: they succeed where something was left lying around, and find nothing where it was not."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from etude.core.errors import EtudeError
from etude.forge.katas.source import katas
from etude.forge.leaks.deleted_code import deleted_of
from etude.policies.scripted import Scripted
from etude.rollout.rollout import Scored, build_setup, run_rollout
from etude.tasks.format.task import WORKSPACE, Task
from redteam.leaks.hiding_places import HIDING_PLACES
from redteam.leaks.leak_probe_policies import THIEVES, thief_script

SECONDS = 3.0  # enough for a workspace and a home; a search that finds nothing would go on over the whole machine
WHERE = {
    "git": ("git-loose-object", "git-pack"),
    "find": ("editor-backup", "build-folder", "patch-file"),
    "strings": ("highlighted-docs", "memory-dump", "base64"),
    "pip": ("wheel", "sdist"),
    "caches": ("type-checker-database", "json-cache"),
    "decompiler": ("stale-bytecode", "renamed-bytecode"),
}


@pytest.fixture(scope="module")
def kata() -> Task:
    return next(iter(katas("train", 1, seed=5)))


def left_behind(task: Task, place: str) -> Task:
    """The task with a copy of its solution in a hiding place of the workspace."""
    path = next(iter(deleted_of(task))).path
    planted = HIDING_PLACES[place](path, task.solution.text(path))
    return dataclasses.replace(
        task, files=task.files.replaced({f"{WORKSPACE}/{name}": data for name, data in planted.items()})
    )


def steal(sandboxes: Any, name: str, task: Task, seconds: float = SECONDS) -> Scored:
    loop, host = sandboxes
    policy = Scripted(thief_script(name, task, seconds=seconds))
    outcome = loop.run_until_complete(run_rollout(task, policy, host, build_setup()))
    assert isinstance(outcome, Scored), outcome
    return outcome


@pytest.mark.parametrize(("name", "place"), [(name, place) for name, places in WHERE.items() for place in places])
def test_a_thief_solves_a_task_that_was_not_scrubbed(sandboxes: Any, kata: Task, name: str, place: str) -> None:
    outcome = steal(sandboxes, name, left_behind(kata, place))
    assert outcome.passed, outcome.grade.reason


@pytest.mark.parametrize("name", THIEVES)
def test_a_thief_leaves_a_clean_task_unsolved(sandboxes: Any, kata: Task, name: str) -> None:
    assert not steal(sandboxes, name, kata, seconds=0.3).passed


def test_an_unknown_thief_is_said_so(kata: Task) -> None:
    with pytest.raises(EtudeError, match="no thief is called"):
        thief_script("raffles", kata)
