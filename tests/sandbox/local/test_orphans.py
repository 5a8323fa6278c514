"""After `kill -9` nothing of ours is left: no process, no mount, and at the next start no scratch and no cgroup."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from etude.sandbox.identity import process_tag, tag_is_dead
from etude.sandbox.local import cgroups
from etude.sandbox.local.host import LocalHost
from etude.sandbox.store.layers import Store


@pytest.mark.parametrize(
    ("victims", "count"), [(("pid",), 50), (("pid", "launcher"), 10)], ids=["the orchestrator", "and the launcher"]
)
def test_after_a_kill_nothing_is_left(identity: Any, victims: tuple[str, ...], count: int) -> None:
    store = identity.folder / f"store-{len(victims)}"
    marker = f"8639{len(victims)}.125{os.getpid()}"  # a number that no other test's programs sleep for
    process = identity.start("orphans.py", store, count, marker)
    try:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        told = json.loads(line)
        family = [told["launcher"], *_below(told["launcher"])]
        _until(lambda: len(_with_argument(marker)) == 3 * count, "every sandbox to run three programs")
        tags = {pid: started for pid in family if (started := _started(pid))}
        assert list((store / "partial").iterdir())
        for victim in victims:
            os.kill(told[victim], signal.SIGKILL)
        _until(lambda: not _with_argument(marker), "the programs to die")
        _until(lambda: all(_started(pid) != started for pid, started in tags.items()), "our processes to die")
    finally:
        process.kill()
        process.communicate()
    assert str(identity.folder) not in Path("/proc/self/mountinfo").read_text()
    if identity.name == "root" or os.geteuid() != 0:
        asyncio.run(_open_and_close(store))
        # Of this launcher alone: a test beside this one may just have killed another.
        _until(lambda: not _groups(told["launcher"]), "the groups of the killed to be removed")
    else:
        again = identity.start("orphans.py", store, 1, marker)  # the same user starts again
        assert again.stdout.readline()
        left = list((store / "partial").iterdir())
        again.kill()
        again.communicate()
        assert len(left) == 2, "only the new one's own work in progress"
        _until(lambda: not _with_argument(marker), "the second one's programs to die")


def test_fifty_sandboxes_at_once_each_keep_to_themselves(local: Any) -> None:
    async def one(number: int) -> bytes:
        async with await local.host.start([local.layer]) as sandbox:
            await sandbox.write("/workspace/mine", str(number).encode())
            result = await sandbox.run(["sh", "-c", "cat mine; echo; ls | wc -l"])
            return bytes(result.stdout)

    async def go() -> list[bytes]:
        return await asyncio.gather(*(one(number) for number in range(50)))

    assert local.run(go()) == [f"{number}\n4\n".encode() for number in range(50)]


def test_a_closed_host_leaves_no_process_and_no_cgroup(tmp_path: Path) -> None:
    marker = f"86398.125{os.getpid()}"

    async def go() -> int:
        async with await LocalHost.open(Store(tmp_path)) as host:
            sandbox = await host.start(())
            await sandbox.spawn(["sleep", marker])
            return host.launcher_pid

    pid = asyncio.run(go())
    assert not Path(f"/proc/{pid}").exists()
    assert _with_argument(marker) == []
    assert _groups(pid) == []


def test_a_killed_process_is_dead_before_its_parent_reaps_it() -> None:
    process = subprocess.Popen(["sleep", "600"])
    tag = process_tag(process.pid)
    assert not tag_is_dead(tag)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie from here on
    assert tag_is_dead(tag)
    process.wait()
    assert tag_is_dead(tag)


async def _open_and_close(store: Path) -> None:
    async with await LocalHost.open(store):
        assert list((store / "partial").iterdir()) == []


def _groups(launcher: int) -> list[str]:
    """Control group folders that carry the name of this launcher."""
    walk = os.walk("/sys/fs/cgroup")  # goes on where a folder of somebody else's vanishes meanwhile
    start = f"{cgroups.PREFIX}{launcher}."
    return [str(Path(folder, name)) for folder, names, _ in walk for name in names if name.startswith(start)]


def _until(ready: Callable[[], bool], what: str, seconds: float = 120.0) -> None:
    """Five seconds are promised after a kill; a busy machine gets more."""
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}"
        time.sleep(0.05)


def _stat(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()


def _started(pid: int) -> bytes:
    """When a process started; nothing when it is gone or only waits to be buried."""
    with suppress(OSError):
        fields = _stat(pid)
        return b"" if fields[0] in b"ZX" else fields[19]
    return b""


def _below(ancestor: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            children.setdefault(int(_stat(int(entry.name))[1]), []).append(int(entry.name))
    found, waiting = [], [ancestor]
    while waiting:
        inner = children.get(waiting.pop(), [])
        found += inner
        waiting += inner
    return found


def _with_argument(argument: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            command = (entry / "cmdline").read_bytes().split(b"\0")
            if command[:1] == [b"sleep"] and argument.encode() in command:
                found.append(int(entry.name))
    return found
