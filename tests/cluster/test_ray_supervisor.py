"""The supervisor of a program on a Ray node, without Ray: claims, leases and what becomes of a child that is left over.

A node that is lost: another supervisor starts the program anew while the old child may still run.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from etude.cluster.ray_supervisor import ProgramSupervisor, read_claim
from etude.core.frame_calls import Caller, ConnectionLost
from etude.core.tcp_address import FILE
from etude.core.transport import Frame

SECONDS = 30.0
LEASE = 1e6  # none of these tests waits for one to run out; tests/core/test_tcp_address.py does

PROGRAM = """
import argparse, asyncio, os, pathlib, sys
from etude.core import child_process as child
from etude.core.frame_calls import Answering
from etude.core.transport import Frame

parser = argparse.ArgumentParser()
parser.add_argument("gate", type=pathlib.Path)
child.add_arguments(parser)
options = parser.parse_args()
child.end_with(options, [options.folder])

async def handle(frame, send):
    if frame.header["verb"] == "slow":
        (options.gate.parent / "asked").touch()
        while not options.gate.exists():
            await asyncio.sleep(0.01)
        options.gate.with_name("answered").touch()
    return Frame({"message": os.getpid()})

async def main():
    listening = child.Listening(options)
    await Answering(handle).listen(listening.socket, listening.address and listening.address.secret)
    print("ready", listening.name, flush=True)
    await asyncio.get_running_loop().create_future()

asyncio.run(main())
"""


@pytest.fixture
def order(tmp_path: Path) -> Callable[[str], str]:
    """What a driver asks of a supervisor, for an incarnation."""
    (tmp_path / "program.py").write_text(PROGRAM)

    def order(incarnation: str) -> str:
        asked: dict[str, Any] = {
            "incarnation": incarnation,
            "title": "engine",
            "module": "program",
            "arguments": [str(tmp_path / "gate")],
            "ready": "ready",
            "log": str(tmp_path / "log"),
            "leaves": [],
            "environment": {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])},
            "folder": str(tmp_path),
            "announce": str(tmp_path / f"engine-0.{incarnation}"),
            "host": "127.0.0.1",
            "claim": str(tmp_path / "engine-0.claim"),
            "seconds": SECONDS,
            "lease": LEASE,
        }
        return json.dumps(asked)

    return order


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not true():
            await asyncio.sleep(0.01)


def test_a_child_of_a_lost_node_is_fenced_and_none_of_its_answers_is_taken(
    tmp_path: Path, order: Callable[[str], str]
) -> None:
    async def scene() -> None:
        claim, public = tmp_path / "engine-0.claim", tmp_path / "engine-0"
        lost, elsewhere = ProgramSupervisor(1e6, "engine"), ProgramSupervisor(1e6, "engine")
        claim.write_text("0.1")
        old = json.loads(await lost.start(order("0.1")))["pid"]
        (tmp_path / "engine-0.0.1").replace(public)
        caller = Caller(f"{FILE}{public}", deadline=SECONDS)
        under_way = asyncio.ensure_future(caller.call(Frame({"verb": "slow"})))
        await until((tmp_path / "asked").exists)
        assert lost._renewing is not None
        lost._renewing.cancel()  # a supervisor that is cut off, and sees no claim
        claim.write_text("0.2")
        new = json.loads(await elsewhere.start(order("0.2")))["pid"]
        (tmp_path / "engine-0.0.2").replace(public)
        (tmp_path / "gate").touch()
        await until((tmp_path / "answered").exists)
        os.kill(old, 0)  # it runs, and has answered
        with pytest.raises(ConnectionLost, match="another process has taken the place"):
            await under_way
        assert [(await caller.call(Frame({"verb": "who"}))).header["message"] for _ in range(3)] == [new] * 3
        assert json.loads(await elsewhere.wait("0.1", 0.0)) == {"state": "unknown"}  # nobody saw its end there
        caller.close()
        for supervisor, incarnation in ((lost, "0.1"), (elsewhere, "0.2")):
            assert json.loads(await supervisor.stop(incarnation, 0.0))["state"] == "ended"

    asyncio.run(scene())


def test_a_supervisor_ends_its_child_when_another_has_the_claim(tmp_path: Path, order: Callable[[str], str]) -> None:
    async def scene() -> None:
        claim = tmp_path / "engine-0.claim"
        claim.write_text("0.1")
        supervisor = ProgramSupervisor(1e6, "engine")
        pid = json.loads(await supervisor.start(order("0.1")))["pid"]
        assert json.loads(await supervisor.wait("0.1", 0.0)) == {"state": "running"}
        claim.write_text("0.2")
        assert json.loads(await supervisor.wait("0.1", SECONDS)) == {"state": "ended", "code": -signal.SIGKILL}
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        claim.unlink()
        assert read_claim(claim) == ""  # the run has ended: nobody has the right to it

    asyncio.run(scene())


def test_a_start_ends_the_child_of_before_and_a_start_that_fails_says_why(
    tmp_path: Path, order: Callable[[str], str]
) -> None:
    async def scene() -> None:
        claim = tmp_path / "engine-0.claim"
        claim.write_text("0.1")
        supervisor = ProgramSupervisor(1e6, "engine")
        await supervisor.start(order("0.1"))
        (tmp_path / "program.py").write_text("raise SystemExit('no weights')")
        claim.write_text("1.1")
        said = json.loads(await supervisor.start(order("1.1")))["error"]
        assert "the engine process ended with code 1" in said and "no weights" in said
        assert json.loads(await supervisor.wait("0.1", 0.0))["state"] == "ended"
        assert json.loads(await supervisor.wait("1.1", 0.0))["state"] == "ended"

    asyncio.run(scene())


def test_a_supervisor_takes_back_the_niceness_that_ray_gives_its_workers() -> None:
    code = "import os; from etude.cluster.ray_supervisor import keep_priority; keep_priority(); print(os.nice(0))"
    found = subprocess.run(["nice", "-n", "15", sys.executable, "-c", code], capture_output=True, text=True, check=True)
    # Only somebody privileged may; for all others it stays as it was.
    assert int(found.stdout) == (0 if os.geteuid() == 0 else 15)
