"""What breaks outside the program is a `SandboxFailure` with its cause, and never an exit code."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import shutil
import signal
import struct
import sys
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import etude.sandbox
from etude.core.errors import EtudeError
from etude.sandbox.base import SandboxFailure, SandboxLimits
from etude.sandbox.hosts import open_host
from etude.sandbox.local import sandbox as local_sandbox
from etude.sandbox.local.host import LocalHost
from etude.sandbox.store.layers import Store


def test_a_launcher_that_is_killed_fails_every_sandbox_and_no_start_hangs(tmp_path: Path) -> None:
    async def go() -> None:
        async with await LocalHost.open(Store(tmp_path)) as host:
            sandbox = await host.start([host.store.add_files({})])
            waiting = asyncio.create_task(sandbox.run(["sleep", "600"], timeout=600))
            process = await sandbox.spawn(["sleep", "600"])
            os.kill(host.launcher_pid, signal.SIGKILL)
            with pytest.raises(SandboxFailure) as caught:
                await waiting
            assert caught.value.cause == "died"
            with pytest.raises(SandboxFailure):
                await process.wait(60)
            with pytest.raises(SandboxFailure):
                await sandbox.read("/etc/passwd")
            with pytest.raises(SandboxFailure):
                await host.start(())
            await sandbox.close()

    asyncio.run(asyncio.wait_for(go(), 60))


def test_an_init_that_is_killed_fails_its_own_sandbox_only(tmp_path: Path) -> None:
    async def go() -> None:
        async with await LocalHost.open(Store(tmp_path)) as host:
            layer = host.store.add_files({})
            victim = await host.start([layer])
            (init,) = _children(host.launcher_pid)
            bystander = await host.start([layer])
            waiting = asyncio.create_task(victim.run(["sleep", "600"], timeout=600))
            await asyncio.sleep(0)
            os.kill(init, signal.SIGKILL)
            with pytest.raises(SandboxFailure) as caught:
                await waiting
            assert caught.value.cause == "died"
            assert (await bystander.run(["true"])).code == 0
            await victim.close()

    asyncio.run(asyncio.wait_for(go(), 60))


def test_an_init_that_hangs_is_given_up_after_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        async with await LocalHost.open(Store(tmp_path)) as host:
            sandbox = await host.start(())
            (init,) = _children(host.launcher_pid)
            os.kill(init, signal.SIGSTOP)
            monkeypatch.setattr(local_sandbox, "_ANSWER_SECONDS", 0.2)
            with pytest.raises(SandboxFailure, match=r"waited 0\.2 s for the answer to 'open'") as caught:
                await sandbox.read("/etc/passwd")
            assert caught.value.cause == "deadline"
            monkeypatch.undo()
            await sandbox.close()
            assert _children(host.launcher_pid) == []

    asyncio.run(asyncio.wait_for(go(), 60))


def test_host_files_shown_one_by_one_may_be_more_than_the_stage_has_room_for(local: Any, tmp_path: Path) -> None:
    files = [tmp_path / f"module_{n}.py" for n in range(6)]  # as a standard library of which one folder is hidden
    for file in files:
        file.write_bytes(b"x" * (1 << 20))

    async def go() -> None:
        layer = local.store.add_files({"a": b""}, shows=(*local.layer.shows, *(str(file) for file in files)))
        async with await local.host.start([layer]) as sandbox:
            counted = await sandbox.run(["wc", "-c", *(str(file) for file in files)])
            assert counted.stdout.split()[-2:] == [str(6 << 20).encode(), b"total"]

    local.run(go())


def test_a_layer_that_is_gone_or_in_the_way_fails_the_start_and_leaves_nothing(local: Any, tmp_path: Path) -> None:
    async def go() -> None:
        before = _children(local.host.launcher_pid)
        gone = local.store.add_files({"gone": b"gone"})
        shutil.rmtree(gone.path.parent)
        with pytest.raises(SandboxFailure) as caught:
            await local.host.start([gone])
        assert caught.value.cause == "store"
        trap = tmp_path / "trap"
        trap.mkdir()
        (trap / "proc").symlink_to("/layer")
        with pytest.raises(SandboxFailure, match="in the way of /proc") as refused:
            await local.host.start([local.store.add(trap, at="/", shows=())])
        assert refused.value.cause == "start"
        with pytest.raises(SandboxFailure, match="No such file"):
            await local.host.start([local.store.add_files({"a": b""}, shows=("/no/such/folder",))])
        with pytest.raises(EtudeError, match="absolute path"):
            await local.host.start([local.layer], workdir="relative")
        assert _children(local.host.launcher_pid) == before
        assert (await (await local.host.start([local.layer])).run(["true"])).code == 0

    local.run(go())


def test_a_snapshot_that_is_damaged_or_too_large_is_refused(local: Any) -> None:
    async def go() -> None:
        async with await local.host.start([local.layer]) as sandbox:
            await sandbox.write("/workspace/large", b"x" * (4 << 20))
            snapshot = await sandbox.snapshot()
        with pytest.raises(SandboxFailure, match="No space left") as caught:
            await local.host.start(snapshot, limits=SandboxLimits(disk=1 << 20))
        assert caught.value.cause == "start"
        os.truncate(snapshot.path, snapshot.size - 1000)
        with pytest.raises(SandboxFailure, match="does not start and end as"):
            await local.host.start(snapshot)
        with pytest.raises(EtudeError, match="does not match its name"):
            local.store.snapshot(snapshot.digest)
        snapshot.path.unlink()
        with pytest.raises(SandboxFailure) as missing:
            await local.host.start(snapshot)
        assert missing.value.cause == "store"

    local.run(go())


@pytest.mark.parametrize("name", ["../up", "/absolute", "a/b", "..", "."])
def test_packed_changes_cannot_write_outside_their_folder(local: Any, name: str, tmp_path: Path) -> None:
    async def go() -> None:
        async with await local.host.start([local.layer]) as sandbox:
            await sandbox.write("/workspace/NAME", b"x")
            snapshot = await sandbox.snapshot()
        whole = snapshot.path.read_bytes()
        start, length = struct.unpack("=QQ", whole[-16:])
        index = whole[start : start + length].replace(b'"NAME"', json.dumps(name).encode())
        snapshot.path.write_bytes(whole[:start] + index + struct.pack("=QQ", start, len(index)))
        with pytest.raises(SandboxFailure, match="impossible name"):
            await local.host.start(snapshot)
        with pytest.raises(EtudeError, match="impossible name"):
            local.store.add_snapshot(snapshot)

    local.run(go())


def test_a_machine_without_namespaces_says_so_and_names_the_weaker_backend(local: Any) -> None:
    """A sandbox is such a machine: no namespaces are made inside it, but the plain backend works there."""
    room = Path(etude.sandbox.__file__).parent
    modules = [
        *room.rglob("*.py"),
        *(room.parent / name for name in ("__init__.py", "core/__init__.py", "core/errors.py")),
    ]
    files = {str(path.relative_to(room.parents[1])): path.read_bytes() for path in modules}
    code = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, "/workspace")
from etude.core.errors import EtudeError
from etude.sandbox.hosts import open_host
async def main():
    try:
        await open_host("local", Path("/tmp/store"))
    except EtudeError as error:
        print(error)
    async with await open_host("plain", Path("/tmp/store")) as host:
        async with await host.start([host.store.add_files({"a": b"inside"})]) as sandbox:
            print((await sandbox.run(["cat", "a"])).stdout.decode())
asyncio.run(main())
"""

    async def go() -> str:
        async with await local.host.start([local.store.add_files(files)]) as sandbox:
            result = await sandbox.run([sys.executable, "-c", code])
            assert result.code == 0, result.stderr.decode()
            return str(result.stdout.decode())

    refusal, answer = local.run(go()).splitlines()
    assert "sandboxes cannot be made on this machine" in refusal
    assert "plain" in refusal
    assert answer == "inside"


def test_the_weaker_backend_is_stamped_and_unknown_ones_are_refused(plain: Any, local: Any, tmp_path: Path) -> None:
    assert plain.host.capabilities.stamp()["isolated"] is False
    assert local.host.capabilities.stamp()["isolated"] is True
    with pytest.raises(EtudeError, match="no sandbox backend 'best'"):
        asyncio.run(open_host("best", tmp_path))


def test_network_is_there_only_when_asked_for(local: Any) -> None:
    code = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1])), 50).close()"

    async def go() -> None:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        port = str(server.sockets[0].getsockname()[1])
        for network, code_expected in ((True, 0), (False, 1)):
            async with await local.host.start([local.layer], network=network) as sandbox:
                assert (await sandbox.run([sys.executable, "-c", code, port])).code == code_expected
        server.close()
        await server.wait_closed()

    local.run(go())


def test_running_programs_stand_still_while_a_snapshot_is_taken_and_go_on_afterwards(local: Any) -> None:
    code = "n = 0\nwhile True:\n n += 1\n for f in 'ab':\n  open(f, 'w').write(str(n) * 100)"

    async def go() -> None:
        async with await local.host.start([local.layer]) as sandbox:
            process = await sandbox.spawn([sys.executable, "-S", "-c", code])
            await sandbox.run(["sh", "-c", "until test -s b; do :; done"])
            for _ in range(5):
                async with await sandbox.fork() as copy:
                    assert len(await copy.diff()) == 2
            first = await sandbox.read("/workspace/a")
            await sandbox.run(["sh", "-c", f"until test \"$(cat a)\" != '{first.decode()}'; do :; done"])
            assert process.running

    local.run(go())


def _children(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            if int((entry / "stat").read_bytes().rpartition(b")")[2].split()[1]) == parent:
                found.append(int(entry.name))
    return found


def test_a_closed_sandbox_waits_for_no_garbage_collection(local: Any) -> None:
    async def go() -> None:
        sandbox = await local.host.start([local.layer])
        seen = weakref.ref(sandbox)
        assert (await sandbox.run(["true"])).ok
        await sandbox.close()
        del sandbox
        await asyncio.sleep(0)  # what was scheduled for it
        assert seen() is None

    gc.collect()
    gc.disable()
    try:
        local.run(go())
    finally:
        gc.enable()
