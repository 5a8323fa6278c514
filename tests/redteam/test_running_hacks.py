"""Hacks that show only when they run: rules miss them, the watched run sees them, and honest code is left alone."""

from __future__ import annotations

import asyncio

from etude.sandbox.hosts import StoringHost
from redteam.running.hacks import HACKS
from redteam.running.more_hacks import MORE_HACKS
from redteam.running.run import ACTS, run_running_hacks


def test_hacks_are_seen_when_they_run(sandboxes: tuple[asyncio.AbstractEventLoop, StoringHost]) -> None:
    loop, host = sandboxes
    found = loop.run_until_complete(run_running_hacks(host, 1, 4))
    written = [HACKS, MORE_HACKS, ACTS]
    # Two kinds want inputs and answers that are constants, which the first kata's are not.
    assert sum(map(len, written)) == 116 and found.tried == 114 and found.ok, (found.missed, found.false_alarms)
    assert sum(found.rows[name]["by rules"] for name in HACKS) == 1
