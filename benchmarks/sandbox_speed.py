"""Sandboxes against other ways to run one program apart from the rest, side by side in one run.

    python benchmarks/sandbox_speed.py            # a table
    python benchmarks/sandbox_speed.py --json     # one JSON object as the last line; exit 1 below the bars

First the figures of `etude sandbox bench` with their bars. Then the same job for everybody: make a closed room over a
60 MB workspace, run `true` in it, and remove it again. Rounds alternate, so that a slow moment of the machine hits
all alike. What is not installed is left out: bubblewrap, and docker with a running daemon and an image `busybox`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import date
from pathlib import Path

from etude.sandbox.bench import Workspace, bench, workspace_files
from etude.sandbox.local.host import LocalHost
from etude.sandbox.store.layers import Store


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = bench(rounds=options.rounds)
    with tempfile.TemporaryDirectory(prefix="etude-bench-") as folder:
        peers = asyncio.run(compare(Path(folder), max(5, options.rounds // 4)))
    answer = {
        **figures.to_json(),
        "peers": peers,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}",
        "load": os.getloadavg()[0],
        "date": date.today().isoformat(),
    }
    for name, value in figures.to_json().items():
        if isinstance(value, dict) and "p50" in value:
            bar = f"   bar {figures.bars[name]:g}" if name in figures.bars else ""
            print(f"{name:>12}  p50 {value['p50']:8.2f} ms   p95 {value['p95']:8.2f} ms{bar}")
    print(f"{figures.starts_per_second:.0f} sandboxes each second (start, true, close)")
    for name, milliseconds in peers.items():
        print(f"{milliseconds:9.1f} ms  {name}")
    if options.json:
        print(json.dumps(answer))
    return 0 if figures.passed else 1


async def compare(folder: Path, rounds: int) -> dict[str, float]:
    """p50 in milliseconds of one closed room, one program, and its removal."""
    tree = folder / "tree"
    for name, content in workspace_files(Workspace()).items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(content)
    store = Store(folder / "store")
    layer = store.add(tree)
    async with await LocalHost.open(store) as host:

        async def etude() -> None:
            async with await host.start([layer]) as sandbox:
                assert (await sandbox.run(["true"])).code == 0

        ways: dict[str, Callable[[], Awaitable[None]]] = {"etude: start, true, close": etude}
        for name, command in commands(tree).items():
            ways[name] = lambda command=command: program(command)
        ways["copy the workspace (cp -a), true, remove"] = lambda: copied(tree, folder / "copy")
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, way in ways.items():
                began = time.perf_counter()
                await way()
                taken[name].append(1000 * (time.perf_counter() - began))
    return {name: round(sorted(times)[len(times) // 2], 2) for name, times in taken.items()}


def commands(tree: Path) -> dict[str, list[str]]:
    """Whole command lines of the peers that are installed."""
    found = {"no isolation: subprocess true": ["true"]}
    if shutil.which("unshare"):
        found["unshare, namespaces only, no root of its own"] = ["unshare", "-Urmpinuf", "--mount-proc", "true"]
    if shutil.which("bwrap"):
        shown = [part for path in ("/usr", "/bin", "/lib", "/lib64") for part in ("--ro-bind-try", path, path)]
        found["bubblewrap, workspace read-only"] = [
            *("bwrap", "--unshare-all", "--die-with-parent", *shown, "--proc", "/proc", "--dev", "/dev"),
            *("--ro-bind", str(tree), "/workspace", "true"),
        ]
    if shutil.which("docker") and subprocess.run(["docker", "info"], capture_output=True).returncode == 0:
        found["docker run, workspace read-only"] = [
            *("docker", "run", "--rm", "--network", "none", "-v", f"{tree}:/workspace:ro", "busybox", "true")
        ]
    return found


async def program(command: list[str]) -> None:
    process = await asyncio.create_subprocess_exec(*command)
    assert await process.wait() == 0, command


async def copied(tree: Path, target: Path) -> None:
    await program(["cp", "-a", str(tree), str(target)])
    await program(["true"])
    await program(["rm", "-r", str(target)])


if __name__ == "__main__":
    sys.exit(main())
