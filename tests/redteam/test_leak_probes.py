"""Leak probes: they succeed where something was left behind, and find nothing where it was not."""

from __future__ import annotations

from typing import Any

import pytest

from etude.core.errors import EtudeError
from etude.forge.katas.source import katas
from etude.rollout.rollout import Scored
from etude.tasks.format.task import Task
from redteam.leaks.leak_probes import LEAK_PROBES, leak_probe_script
from redteam.leaks.run import probe, with_copy

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


def search(sandboxes: Any, name: str, task: Task, seconds: float = SECONDS) -> Scored:
    loop, host = sandboxes
    outcome = loop.run_until_complete(probe(name, task, host, seconds))
    assert isinstance(outcome, Scored), outcome
    return outcome


@pytest.mark.parametrize(("name", "place"), [(name, place) for name, places in WHERE.items() for place in places])
def test_a_probe_solves_a_task_that_was_not_scrubbed(sandboxes: Any, kata: Task, name: str, place: str) -> None:
    outcome = search(sandboxes, name, with_copy(kata, place))
    assert outcome.passed, outcome.grade.reason


@pytest.mark.parametrize("name", LEAK_PROBES)
def test_a_probe_leaves_a_clean_task_unsolved(sandboxes: Any, kata: Task, name: str) -> None:
    assert not search(sandboxes, name, kata, seconds=0.3).passed


def test_an_unknown_probe_is_said_so(kata: Task) -> None:
    with pytest.raises(EtudeError, match="no leak probe is called"):
        leak_probe_script("raffles", kata)
