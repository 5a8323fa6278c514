"""No program can make its own rollout void: those that could once, and some of each kind. `make redteam` runs all."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from etude.rollout.rollout import temporary_host
from redteam.result import SuiteResult
from redteam.voids.programs import PROGRAMS
from redteam.voids.run import run_void_attacks

ONCE_SUCCEEDED = ("prlimit-open-files", "prlimit-memory", "prlimit-processes")
QUICK = (
    "kill-all",
    "signal-by-descriptor",
    "descriptors",
    "forged-frames",
    "nested-lines",
    "workspace-gone",
    "control-groups",
    "trace",
)


@pytest.mark.parametrize(
    ("names", "ways"),
    [
        (ONCE_SUCCEEDED, ("agent", "two at once")),
        (QUICK, ("agent",)),
        (("changing-tree", "workspace-gone"), ("background",)),
    ],
)
def test_no_command_of_the_agent_makes_a_rollout_void(names: Sequence[str], ways: Sequence[str]) -> None:
    assert _attack(names, ways).missed == []


def test_no_submitted_code_makes_a_rollout_void() -> None:
    assert _attack((*ONCE_SUCCEEDED, *QUICK), ("submission",)).missed == []


def test_there_are_at_least_thirty_ways() -> None:
    assert len(PROGRAMS) >= 30 and {*ONCE_SUCCEEDED, *QUICK} <= PROGRAMS.keys()


def _attack(names: Sequence[str], ways: Sequence[str]) -> SuiteResult:
    async def go() -> SuiteResult:
        async with temporary_host("local") as host:
            return await run_void_attacks(host, names, ways)

    result = asyncio.run(asyncio.wait_for(go(), 120))
    assert result.tried == len(names) * len(ways)
    return result
