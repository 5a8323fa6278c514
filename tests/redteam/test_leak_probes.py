"""Leak probes: they succeed where something was left behind, and find nothing where it was not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from etude.core.errors import EtudeError
from etude.forge.katas.task_source import katas
from etude.rollout.rollout import Scored
from etude.tasks.format.task import Task
from redteam.leaks.leak_probes import LEAK_PROBES, leak_probe_script
from redteam.leaks.run import probe, with_copy

SECONDS = 1.5  # of the processor: enough for a workspace and a home, and not to go on over the whole machine
WHERE = {
    "git": ("git-loose-object", "git-pack"),
    "find": ("editor-backup", "build-folder", "patch-file"),
    "strings": ("highlighted-docs", "memory-dump", "base64"),
    "pip": ("wheel", "sdist"),
    "caches": ("type-checker-database", "json-cache"),
    "decompiler": ("stale-bytecode", "renamed-bytecode"),
}


FOUND = [(name, place) for name, places in WHERE.items() for place in places]


@pytest.fixture(scope="module")
def kata() -> Task:
    return next(iter(katas("train", 1, seed=5)))


@pytest.fixture(scope="module")
def solved(sandboxes: Any, kata: Task) -> dict[tuple[str, str], bool]:
    """Every probe with its hiding places, and with none, four searches at once: each waits for most of its time."""
    loop, host = sandboxes
    places = asyncio.Semaphore(4)

    async def search(name: str, place: str) -> bool:
        async with places:
            outcome = await (
                probe(name, with_copy(kata, place), host, SECONDS) if place else probe(name, kata, host, 0.3)
            )
        assert isinstance(outcome, Scored), outcome
        return outcome.passed

    async def all_of() -> dict[tuple[str, str], bool]:
        tried = [*FOUND, *((name, "") for name in LEAK_PROBES)]
        return dict(zip(tried, await asyncio.gather(*(search(*each) for each in tried)), strict=True))

    return loop.run_until_complete(all_of())


@pytest.mark.parametrize(("name", "place"), FOUND)
def test_a_probe_solves_a_task_that_was_not_scrubbed(solved: dict[Any, bool], name: str, place: str) -> None:
    assert solved[name, place]


@pytest.mark.parametrize("name", LEAK_PROBES)
def test_a_probe_leaves_a_clean_task_unsolved(solved: dict[Any, bool], name: str) -> None:
    assert not solved[name, ""]


def test_an_unknown_probe_is_said_so(kata: Task) -> None:
    with pytest.raises(EtudeError, match="no leak probe is called"):
        leak_probe_script("raffles", kata)
