"""How fast sandboxes are on this machine: one function that measures and returns figures. Prints nothing.

The workspace is that of the bars: 60 MB in 5,657 files, brought by a layer. A fork is measured twice, with a usual
amount of changes (2 MB in 231 files) and with every file of the workspace rewritten.
"""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from etude.sandbox.base import Host, Layer, Sandbox, SandboxLimits
from etude.sandbox.hosts import open_host
from etude.sandbox.store.layers import Store

BARS: Final = {"start": 25.0, "reset": 5.0, "fork": 80.0}  # p50 in milliseconds, on 2 cores


@dataclass(frozen=True)
class Workspace:
    """How much there is in it, and how much of it a usual sandbox has changed."""

    files: int = 5657
    bytes: int = 60_000_000
    changed_files: int = 231
    changed_bytes: int = 2_000_000


@dataclass(frozen=True)
class Spread:
    """Milliseconds."""

    p50: float
    p95: float


@dataclass(frozen=True)
class Figures:
    """What was measured, in milliseconds unless the name says otherwise."""

    backend: dict[str, Any]  # what the backend says about itself
    cores: int
    rounds: int
    start: Spread  # a sandbox over the workspace layer, until it takes requests
    close: Spread  # until every process of it is dead
    run: Spread  # `true`, request to result
    run_shell: Spread  # `bash -c true`
    read_write: Spread  # one small file written and read
    diff: Spread  # with the usual changes
    reset: Spread
    snapshot: Spread  # the usual changes, into the store
    fork: Spread  # with the usual changes
    fork_full: Spread  # with every file of the workspace rewritten
    starts_per_second: float  # start, `true`, close, with several at once
    layer_seconds: float  # to make the workspace's layer
    bars: dict[str, float]

    @property
    def passed(self) -> bool:
        return all(getattr(self, name).p50 <= bar for name, bar in self.bars.items())

    def to_json(self) -> dict[str, Any]:
        return {"passed": self.passed, **asdict(self)}


def bench(
    backend: str = "local", rounds: int = 40, folder: Path | None = None, workspace: Workspace | None = None
) -> Figures:
    """Measure; `folder` is where the store goes, a temporary one unless given."""
    shape = workspace or Workspace()
    if folder is not None:
        return asyncio.run(_measure(backend, rounds, folder, shape))
    with tempfile.TemporaryDirectory(prefix="etude-bench-") as temporary:
        return asyncio.run(_measure(backend, rounds, Path(temporary), shape))


async def _measure(backend: str, rounds: int, folder: Path, shape: Workspace) -> Figures:
    store = Store(folder)
    files = workspace_files(shape)
    began = time.perf_counter()
    layer = store.add_files(files)
    layer_seconds = time.perf_counter() - began
    limits = SandboxLimits(disk=256 << 20)
    async with await open_host(backend, store) as host:
        starts, closes = await _starts(host, layer, limits, rounds)
        async with await host.start([layer], limits=limits) as sandbox:
            # One run to warm up, which is not measured.
            await sandbox.run(["true"])
            run = await _timed(rounds, lambda: sandbox.run(["true"]))
            run_shell = await _timed(rounds, lambda: sandbox.run(["bash", "-c", "true"]))
            read_write = await _timed(rounds, lambda: _read_write(sandbox))
            reset = await _timed(rounds, sandbox.reset, before=lambda: sandbox.write("/workspace/changed", b"changed"))
            for path, content in _changed(files, shape.changed_files, shape.changed_bytes).items():
                await sandbox.write(path, content)
            diff = await _timed(rounds, sandbox.diff)
            snapshot = await _timed(rounds, sandbox.snapshot)
            fork = await _forks(sandbox, rounds)
            for path, content in _changed(files, len(files), shape.bytes).items():
                await sandbox.write(path, content)
            fork_full = await _forks(sandbox, max(3, rounds // 8))
        return Figures(
            backend=host.capabilities.stamp(),
            cores=os.cpu_count() or 1,
            rounds=rounds,
            start=starts,
            close=closes,
            run=run,
            run_shell=run_shell,
            read_write=read_write,
            diff=diff,
            reset=reset,
            snapshot=snapshot,
            fork=fork,
            fork_full=fork_full,
            starts_per_second=await _throughput(host, layer, limits, rounds * 4),
            layer_seconds=layer_seconds,
            bars=dict(BARS),
        )


def workspace_files(shape: Workspace) -> dict[str, bytes]:
    """A repository's worth of files: many small ones, a few large, in folders up to three deep."""
    # Seeded, so that two runs on one machine measure the same workspace.
    chance = random.Random(0)
    sizes = [chance.lognormvariate(0.0, 1.2) for _ in range(shape.files)]
    scale = shape.bytes / sum(sizes)
    names = (f"package{n % 400 % 20}/part{n % 400}/module{n}.py" for n in range(shape.files))
    return {name: chance.randbytes(max(1, int(size * scale))) for name, size in zip(names, sizes, strict=True)}


def _changed(files: dict[str, bytes], count: int, size: int) -> dict[str, bytes]:
    chance = random.Random(1)
    chosen = chance.sample(sorted(files), count)
    return {f"/workspace/{name}": chance.randbytes(size // count) for name in chosen}


async def _timed(
    rounds: int, action: Callable[[], Awaitable[Any]], before: Callable[[], Awaitable[Any]] | None = None
) -> Spread:
    taken = []
    for _ in range(rounds):
        if before is not None:
            await before()
        began = time.perf_counter()
        await action()
        taken.append(time.perf_counter() - began)
    return _spread(taken)


def _spread(seconds: list[float]) -> Spread:
    ordered = sorted(1000 * each for each in seconds)
    return Spread(round(ordered[len(ordered) // 2], 3), round(ordered[int(len(ordered) * 0.95)], 3))


async def _starts(host: Host, layer: Layer, limits: SandboxLimits, rounds: int) -> tuple[Spread, Spread]:
    starts, closes = [], []
    for _ in range(rounds):
        began = time.perf_counter()
        sandbox = await host.start([layer], limits=limits)
        ready = time.perf_counter()
        await sandbox.close()
        starts.append(ready - began)
        closes.append(time.perf_counter() - ready)
    return _spread(starts), _spread(closes)


async def _forks(sandbox: Sandbox, rounds: int) -> Spread:
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        copy = await sandbox.fork()
        taken.append(time.perf_counter() - began)
        await copy.close()
    return _spread(taken)


async def _read_write(sandbox: Sandbox) -> None:
    await sandbox.write("/workspace/small", b"small")
    await sandbox.read("/workspace/small")


async def _throughput(host: Host, layer: Layer, limits: SandboxLimits, count: int) -> float:
    waiting = iter(range(count))

    async def worker() -> None:
        for _ in waiting:
            async with await host.start([layer], limits=limits) as sandbox:
                await sandbox.run(["true"])

    began = time.perf_counter()
    # Two for each core: one waits while another works.
    await asyncio.gather(*(worker() for _ in range(2 * (os.cpu_count() or 1))))
    return count / (time.perf_counter() - began)
