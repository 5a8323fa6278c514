"""No way around the egress proxy, and honest requests pass: in plain and inside TLS."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from etude.sandbox.hosts import open_host
from redteam.egress.run import run_egress_ways
from redteam.egress.ways import WAYS
from redteam.result import SuiteResult


def test_no_way_around_the_proxy_works(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")

    async def go() -> SuiteResult:
        async with await open_host("local", tmp_path) as host:
            return await run_egress_ways(host)

    result = asyncio.run(asyncio.wait_for(go(), 240))
    assert result.ok, (result.missed, result.broken)
    assert result.tried == len(WAYS) >= 20
    lines = (tmp_path / "egress.jsonl").read_text().splitlines()
    assert len(lines) > 20
