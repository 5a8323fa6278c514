"""Sandbox hosts under load and under kill -9: live sandboxes, starts each second, and what is left afterwards.

    python benchmarks/reliability/sandbox_fleet.py --live 2000 --json     # how many fit, and what each takes
    python benchmarks/reliability/sandbox_fleet.py --burst 400 --json     # starts, and whole lives, each second
    python benchmarks/reliability/sandbox_fleet.py --chaos 10 --json      # kills of hosts and clients; what is left

Without an option all three run with small numbers. Hosts are processes of this machine behind local sockets. The last
line is one JSON object with --json; the exit status is 1 when a bar is missed: 100 starts each second, 0 left.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from etude.sandbox.base import Sandbox, SandboxFailure, SandboxLimits
from etude.sandbox.hosts import open_host
from etude.sandbox.remote.host import RemoteHost
from etude.sandbox.remote.pressure import read_pressure

TOKEN = "the token of this benchmark"
MARKER = "86381.25"  # an argument that only our sandboxes' programs have
LIMITS = SandboxLimits(memory=64 << 20, disk=16 << 20, processes=16)
SERVER = """
import asyncio, sys
from pathlib import Path
from etude.sandbox.serve import serve_sandboxes
asyncio.run(serve_sandboxes(sys.argv[1], "local", Path(sys.argv[2]), sys.argv[3], places=4000, lease=2.0))
"""
CLIENT = """
import asyncio, sys
from pathlib import Path
from etude.sandbox.remote.host import RemoteHost

async def go():
    host = await RemoteHost.open(Path(sys.argv[1]), addresses=sys.argv[4:], token=sys.argv[2])
    layer = host.store.add_files({"x": b"1"})
    while True:
        try:
            async with await host.start([layer]) as sandbox:
                await sandbox.spawn(["sleep", sys.argv[3]])
                await sandbox.run(["sleep", "0.05"])
        except Exception:
            await asyncio.sleep(0.05)

async def many():
    await asyncio.gather(*(go() for _ in range(3)))

asyncio.run(many())
"""


def server(folder: Path, name: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", SERVER, str(folder / name), str(folder / f"{name}-store"), TOKEN]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline(), "the sandbox host did not start"
    return process


def processes() -> tuple[int, int]:
    """Programs of our sandboxes, and launchers of sandboxes, on the whole machine."""
    programs = launchers = 0
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit():
                words = (entry / "cmdline").read_bytes().split(b"\0")
                programs += MARKER.encode() in words
                launchers += any(b"etude.sandbox.local.launcher" in word for word in words)
    return programs, launchers


async def live(folder: Path, wanted: int) -> dict[str, Any]:
    """Idle sandboxes with one program each, until there are enough or no more fit."""
    process = server(folder, "live")
    before = read_pressure().available
    made, why = [], ""
    began = time.perf_counter()
    try:
        async with await RemoteHost.open(
            folder / "c", addresses=[str(folder / "live")], token=TOKEN, place_seconds=5
        ) as host:
            layer = host.store.add_files({"x": b"1"})
            waiting = iter(range(wanted))

            async def worker() -> None:
                nonlocal why
                for _ in waiting:
                    try:
                        sandbox = await host.start([layer], limits=LIMITS)
                        made.append(sandbox)
                        await sandbox.spawn(["sleep", MARKER])
                    except SandboxFailure as failure:
                        why = str(failure)
                        return

            await asyncio.gather(*(worker() for _ in range(8)))
            seconds = time.perf_counter() - began
            used = before - read_pressure().available
            chosen = random.Random(0).sample(made, min(50, len(made)))
            answered = sum([(await each.run(["true"])).ok for each in chosen])
            running = processes()[0]
        return {
            "wanted": wanted,
            "live": len(made),
            "programs": running,
            "answered": f"{answered} of {len(chosen)}",
            "seconds": round(seconds, 1),
            "megabytes_each": round(used / max(1, len(made)) / 2**20, 2),
            "why_not_more": why,
            "left": await left(processes()[1]),
        }
    finally:
        process.terminate()
        process.wait()


async def burst(folder: Path, count: int) -> dict[str, Any]:
    """All asked for at once: first they are started and stay, then as many live a whole life with a run of `true`."""
    found: dict[str, Any] = {"sandboxes": count, "cores": os.cpu_count()}
    process = server(folder, "burst")
    try:
        for name in ("local", "remote"):
            opening = (
                open_host("local", folder / "l")
                if name == "local"
                else RemoteHost.open(folder / "r", addresses=[str(folder / "burst")], token=TOKEN)
            )
            async with await opening as host:
                layer = host.store.add_files({"x": b"1"})
                gate = asyncio.Semaphore(4 if name == "local" else count)  # a remote host orders them itself

                async def start() -> Sandbox:
                    async with gate:  # noqa: B023
                        return await host.start([layer], limits=LIMITS)  # noqa: B023

                async def close(sandbox: Sandbox) -> None:
                    async with gate:  # noqa: B023
                        await sandbox.close()

                async def live() -> None:
                    async with gate, await host.start([layer], limits=LIMITS) as sandbox:  # noqa: B023
                        assert (await sandbox.run(["true"])).ok

                await live()
                began = time.perf_counter()
                started = await asyncio.gather(*(start() for _ in range(count)))
                found[f"{name}_starts_per_second"] = round(count / (time.perf_counter() - began), 1)
                await asyncio.gather(*map(close, started))
                began, used = time.perf_counter(), sum(os.times()[:4])
                await asyncio.gather(*(live() for _ in range(count)))
                found[f"{name}_lives_per_second"] = round(count / (time.perf_counter() - began), 1)
                found[f"{name}_client_cpu_ms_each"] = round(1000 * (sum(os.times()[:4]) - used) / count, 2)
        return found
    finally:
        process.terminate()
        process.wait()


async def left(launchers: int) -> int:
    """Programs that are still there once leases are over."""
    deadline = time.monotonic() + 30
    while processes()[0] and time.monotonic() < deadline:
        await asyncio.sleep(0.1)
    return processes()[0]


async def chaos(folder: Path, kills: int) -> dict[str, Any]:
    """Two hosts and two clients; one of them is killed again and again, and started anew."""
    names = ["one", "two"]
    addresses = [str(folder / name) for name in names]
    before = processes()[1]
    servers = {name: server(folder, name) for name in names}

    def client(number: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", CLIENT, str(folder / f"client{number}"), TOKEN, MARKER, *addresses]
        return subprocess.Popen(command, stderr=subprocess.DEVNULL)

    clients = {number: client(number) for number in range(2)}
    draw = random.Random(0)
    killed = {"host": 0, "client": 0}
    for _ in range(kills):
        await asyncio.sleep(draw.uniform(1.0, 3.0))
        if draw.random() < 0.5:
            name = draw.choice(names)
            servers[name].send_signal(signal.SIGKILL)
            servers[name].wait()
            killed["host"] += 1
            servers[name] = server(folder, name)
        else:
            number = draw.randrange(2)
            clients[number].send_signal(signal.SIGKILL)
            clients[number].wait()
            killed["client"] += 1
            clients[number] = client(number)
    for process in (*clients.values(), *servers.values()):
        process.kill()
        process.wait()
    programs = await left(before)
    await asyncio.sleep(1.0)
    return {"killed": killed, "programs_left": programs, "launchers_left": processes()[1] - before}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--live", type=int, default=0)
    parser.add_argument("--burst", type=int, default=0)
    parser.add_argument("--chaos", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not (options.live or options.burst or options.chaos):
        options.live, options.burst, options.chaos = 20, 40, 2
    answer: dict[str, Any] = {}
    for name, run in (("burst", burst), ("live", live), ("chaos", chaos)):
        if getattr(options, name):
            with tempfile.TemporaryDirectory(prefix="etude-fleet-") as folder:
                answer[name] = asyncio.run(run(Path(folder), getattr(options, name)))
            print(name, answer[name])
    ok = answer.get("live", {}).get("left", 0) == 0
    ok &= all(answer.get("burst", {}).get(f"{name}_starts_per_second", 100) >= 100 for name in ("local", "remote"))
    # Launchers of other commands on this machine may end meanwhile, so the difference can be below 0.
    ok &= answer.get("chaos", {}).get("programs_left", 0) == 0 >= answer.get("chaos", {}).get("launchers_left", 0)
    if options.json:
        print(json.dumps({"ok": ok, **answer}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
