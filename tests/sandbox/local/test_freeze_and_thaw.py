"""Programs that are kept with their memory and brought back. What needs CRIU says so where there is none."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from etude.core.errors import EtudeError
from etude.sandbox.base import Freezes, FrozenSandbox, NotFrozen, SandboxFailure, SandboxLimits, Thaws
from etude.sandbox.local.find_criu import find_criu
from etude.sandbox.local.sandbox import LocalProcess, LocalSandbox
from etude.sandbox.local.seccomp import DENIED
from etude.sandbox.store import frozen_sandboxes
from etude.sandbox.store.layers import Store

PYTHON = sys.executable
# Answers each line of its input by running it: what it says after a thaw, it says with the memory that it had.
TEACHABLE = """
import sys
for line in sys.stdin:
    try:
        exec(line.encode().decode("unicode_escape"))
    except Exception as error:
        print(type(error).__name__, getattr(error, "errno", ""))
    print("ok", flush=True)
"""


def _why_not() -> str:
    try:
        find_criu()
    except EtudeError as error:
        return str(error)
    return ""


WHY_NOT = _why_not()
needs_criu = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


async def teachable(sandbox: LocalSandbox) -> LocalProcess:
    process = await sandbox.spawn([PYTHON, "-I", "-S", "-u", "-c", TEACHABLE])
    await tell(process, "pass")
    return process


async def tell(process: LocalProcess, code: str) -> str:
    """What the program says to a piece of code."""
    await process.send(code.encode("unicode_escape") + b"\n")
    said = b""
    while not said.endswith(b"ok\n"):
        assert process.running, (said, process.output())
        out, err = process.output()
        assert not err
        said += out
        await asyncio.sleep(0.005)
    return said.removesuffix(b"ok\n").decode().strip()


async def frozen_and_thawed(
    local: Any, before: str, limits: SandboxLimits | None = None
) -> tuple[LocalSandbox, LocalProcess]:
    """A program that was told something, in a new sandbox after the end of the old one."""
    async with await local.host.start([local.layer], limits=limits) as sandbox:
        process = await teachable(sandbox)
        await tell(process, before)
        frozen = await sandbox.freeze()
    thawed = await local.host.thaw(frozen)
    (back,) = thawed.programs
    return thawed, back


@needs_criu
def test_a_program_counts_on_in_a_new_sandbox_and_its_file_goes_on_where_it_was(local: Any) -> None:
    async def go() -> None:
        before = "n = 41; data = list(range(1000)); file = open('log.txt', 'w'); file.write('one '); file.flush()"
        thawed, back = await frozen_and_thawed(local, before)
        async with thawed:
            assert isinstance(thawed, Freezes)
            assert isinstance(local.host, Thaws)
            assert await tell(back, "n += 1; print(n, sum(data), file.tell())") == "42 499500 4"
            await tell(back, "file.write('two'); file.flush()")
            assert await thawed.read("log.txt") == b"one two"
            assert [each.path for each in await thawed.diff("/workspace")] == ["/workspace/log.txt"]
            assert (await thawed.run([PYTHON, "hello.py"])).stdout == b"hello\n"

    local.run(go())


@needs_criu
def test_one_frozen_sandbox_is_thawed_many_times_and_each_goes_its_own_way(local: Any) -> None:
    async def go() -> None:
        async with await local.host.start([local.layer]) as sandbox:
            process = await teachable(sandbox)
            await tell(process, "open('a.txt', 'w').write('0'); n = 10")
            frozen = await sandbox.freeze()
            assert frozen_sandboxes.load(local.store, frozen.digest).layers == frozen.layers
            one, two = await local.host.thaw(frozen), await local.host.thaw(frozen)
            async with one, two:
                for n, (room, program) in enumerate(
                    [(sandbox, process), (one, one.programs[0]), (two, two.programs[0])]
                ):
                    said = await tell(program, f"n += {n}; open('a.txt', 'a').write(str(n)); print(n)")
                    assert (said, await room.read("a.txt")) == (str(10 + n), f"0{10 + n}".encode())
                again = await one.freeze()
            async with await local.host.thaw(again) as third:
                assert await tell(third.programs[0], "print(n)") == "11"

    local.run(go())


@needs_criu
def test_a_listening_server_answers_and_its_connections_and_children_go_on(local: Any) -> None:
    before = """
import os, socket, subprocess, tempfile, threading
server = socket.create_server(("127.0.0.1", 8123))
near = socket.create_connection(("127.0.0.1", 8123))
far, _ = server.accept()
near.sendall(b"sent before")
child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdin.write(b"written before\\n")
child.stdin.flush()
ended = subprocess.Popen(["sh", "-c", "exit 7"], stdout=subprocess.PIPE)
ended.stdout.read()
left, right = os.pipe()
os.write(right, b"in a pipe")
nameless = tempfile.TemporaryFile()
nameless.write(b"without a name")
counted = []
event = threading.Event()
def count():
    while event.wait():
        counted.append(1)
        event.clear()
threading.Thread(target=count, daemon=True).start()
"""
    after = """
child.stdin.write(b"and after\\n")
child.stdin.flush()
far.sendall(b"sent after")
nameless.seek(0)
event.set()
while not counted: pass
said = [far.recv(50), near.recv(50), child.stdout.readline(), child.stdout.readline(), os.read(left, 50)]
print([*said, nameless.read(), child.poll(), ended.wait()])
def serve():
    while True:
        connection, _ = server.accept()
        connection.sendall(b"served")
        connection.close()
threading.Thread(target=serve, daemon=True).start()
"""

    async def go() -> None:
        thawed, back = await frozen_and_thawed(local, before)
        async with thawed:
            said = [b"sent before", b"sent after", b"written before\n", b"and after\n", b"in a pipe", b"without a name"]
            assert await tell(back, after) == str([*said, None, 7])
            ask = "import socket; print(socket.create_connection(('127.0.0.1', 8123)).recv(50).decode())"
            assert (await thawed.run([PYTHON, "-c", ask])).stdout == b"served\n"

    local.run(go())


@needs_criu
def test_all_programs_come_back_in_their_order_and_their_ends_are_told(local: Any) -> None:
    async def go() -> None:
        async with await local.host.start([local.layer]) as sandbox:
            shell = await sandbox.spawn(["sh"])
            await shell.send(b"answer=42; cd src\necho up\n")
            python = await teachable(sandbox)
            ended = await sandbox.spawn(["true"])
            await ended.wait(50)
            while b"up" not in shell.output()[0]:
                await asyncio.sleep(0.01)
            assert sandbox.programs == (shell, python)
            frozen = await sandbox.freeze()
            assert shell.running
            await shell.send(b"exit 3\n")
            assert (await shell.wait(50)).code == 3
        async with await local.host.thaw(frozen) as thawed:
            shell, python = thawed.programs
            await shell.send(b"echo $answer; cat module.py; exit $answer\n")
            result = await shell.wait(50)
            assert (result.code, result.stdout) == (42, b"42\nVALUE = 1\n")
            await python.close_stdin()
            assert (await python.wait(50)).code == 0
            assert thawed.programs == ()

    local.run(go())


@needs_criu
def test_what_comes_back_can_be_killed_and_reset_away(local: Any) -> None:
    async def go() -> None:
        thawed, back = await frozen_and_thawed(local, "import subprocess; child = subprocess.Popen(['sleep', '600'])")
        async with thawed:
            await thawed.write("new.txt", b"new")
            result = await back.kill()
            assert result.code == -9
            alive = ["sh", "-c", "set -- /proc/[0-9]*; echo $#"]
            fresh = await local.host.start([local.layer])
            async with fresh:
                assert (await thawed.run(alive)).stdout == (await fresh.run(alive)).stdout
        thawed, back = await frozen_and_thawed(local, "open('kept.txt', 'w').write('kept')")
        async with thawed:
            await thawed.write("new.txt", b"new")
            await thawed.reset()
            assert not back.running
            assert [each.path for each in await thawed.diff("/workspace")] == ["/workspace/kept.txt"]

    local.run(go())


def _outside(name: str) -> list[int]:
    """Processes of the machine whose arguments hold this."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if name.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


@needs_criu
def test_what_comes_back_has_no_more_rights_than_it_had_and_ends_with_its_sandbox(local: Any, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("the host's")
    numbers = [column[0] for column in DENIED.values() if column[0] is not None]
    attack = f"""
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)
for number in {numbers}:
    ctypes.set_errno(0)
    if libc.syscall(number, -1, 0, 0, 0, 0) >= 0 or ctypes.get_errno() not in (1, 38):
        print("call", number, ctypes.get_errno())
for path in ({str(secret)!r}, "/room", "/stage", "/proc/1/root/", "/run/log", "/proc/1/environ"):
    if os.path.exists(path):
        try:
            print(path, os.listdir(path) if os.path.isdir(path) else open(path).read())
        except PermissionError:
            pass
for attempt in (lambda: os.setuid(0), lambda: os.chroot("/"), lambda: os.setgroups([0])):
    try:
        attempt()
    except PermissionError:
        continue
    print("allowed", attempt)
facts = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(facts["Uid"].split(), facts["Gid"].split(), facts["Groups"].split())
print({{facts[name].strip() for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}})
print(facts["NoNewPrivs"].strip(), facts["Seccomp"].strip())
print(sorted(os.listdir("/proc/self/fd"))[:-1], os.readlink("/proc/self/root"), os.path.exists("/proc/self/cwd"))
print(len([name for name in os.listdir("/proc") if name.isdigit()]), [name for _, name in socket.if_nameindex()])
"""

    async def go() -> None:
        code = (
            "import resource as r; print([r.getrlimit(n) for n in (r.RLIMIT_NPROC, r.RLIMIT_FSIZE, r.RLIMIT_NOFILE)])"
        )
        async with await local.host.start([local.layer]) as sandbox:
            process = await teachable(sandbox)
            limits = await tell(process, code)
            expected = await tell(process, attack)
            assert expected.startswith("['1000', '1000', '1000', '1000'] ['1000'")
            frozen = await sandbox.freeze()
        before = _outside(TEACHABLE)
        async with await local.host.thaw(frozen) as thawed:
            (back,) = thawed.programs
            assert await tell(back, attack) == expected
            assert await tell(back, code) == limits
            (pid,) = set(_outside(TEACHABLE)) - set(before)
            supervisor = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            children = Path(f"/proc/{local.host.launcher_pid}/task/{local.host.launcher_pid}/children").read_text()
            inits = [int(each) for each in children.split() if int(each) != supervisor]
            groups = Path(f"/proc/{pid}/cgroup").read_text()
            assert groups in [Path(f"/proc/{each}/cgroup").read_text() for each in inits]
            for process_id in (pid, supervisor):
                text = Path(f"/proc/{process_id}/status").read_text()
                assert "CapEff:\t0000000000000000" in text
                assert "CapPrm:\t0000000000000000" in text
                assert text.split("Uid:")[1].split()[0] == str(local.layer.path.stat().st_uid)
        assert not Path(f"/proc/{pid}").exists()
        assert not Path(f"/proc/{supervisor}").exists()

    local.run(go())


@needs_criu
def test_what_comes_back_is_held_by_the_limits_of_its_new_sandbox(local: Any) -> None:
    fork_many = """
import os, time
made = 0
try:
    while made < 100:
        if os.fork() == 0:
            time.sleep(600)
        made += 1
except BlockingIOError:
    print(made < 40)
"""

    async def go() -> None:
        limits = SandboxLimits(memory=128 << 20, disk=16 << 20, processes=20)
        thawed, back = await frozen_and_thawed(local, "kept = bytearray(30 << 20)", limits)
        async with thawed:
            assert await tell(back, fork_many) == "True"
            await back.send(b"more = bytearray(400 << 20)\n")
            result = await back.wait(50)
            assert result is not None
            assert (result.code, result.oom) == (-9, True)

    local.run(go())


@needs_criu
def test_what_cannot_be_kept_is_refused_in_one_sentence_and_goes_on(local: Any) -> None:
    async def refused(sandbox: LocalSandbox, words: str) -> None:
        with pytest.raises(NotFrozen, match=words) as caught:
            await sandbox.freeze()
        assert "\n" not in str(caught.value)

    async def go() -> None:
        async with await local.host.start([local.layer], network=True) as sandbox:
            await refused(sandbox, "network")
        async with await local.host.start([local.layer]) as sandbox:
            run = asyncio.create_task(sandbox.run(["sh", "-c", "mkfifo go; read line < go"]))
            await asyncio.sleep(0)  # it is asked for before the freeze
            await refused(sandbox, "a run is going on")
            await sandbox.run(["sh", "-c", "until [ -p go ]; do :; done; echo > go"])
            assert (await run).ok
            process = await teachable(sandbox)
            await tell(process, "import os; file = open('/dev/shm/named', 'w')")
            await refused(sandbox, "/dev/shm")
            await tell(process, "os.unlink('/dev/shm/named')")
            await tell(process, "import socket; server = socket.socket(socket.AF_UNIX); server.bind('here')")
            await refused(sandbox, "a Unix socket with a path")
            await tell(process, "server.close()")
            await tell(process, "import subprocess; subprocess.run(['sh', '-c', 'sleep 600 &'])")
            await refused(sandbox, "outlived their parent")
            assert await tell(process, "print('well')") == "well"
            assert list((local.store.root / "partial").iterdir()) == []

    local.run(go())


def _kept(store: Store) -> FrozenSandbox:
    with store.scratch() as folder:
        (folder / frozen_sandboxes.CHANGES).write_bytes(b"changes")
        (folder / "0").mkdir()
        (folder / "0" / "pages-1.img").write_bytes(bytes(1000))
        return frozen_sandboxes.save(store, folder, {"layers": [store.add_files({"a": b"a"}).digest], "programs": []})


def test_only_what_the_store_wrote_itself_is_given_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, other = Store(tmp_path / "one"), Store(tmp_path / "two")
    frozen = _kept(store)
    folder, facts = frozen_sandboxes.verified(store, frozen)
    assert facts["programs"] == []
    assert (folder.stat().st_mode & 0o777, (store.root / "memory.key").stat().st_mode & 0o777) == (0o700, 0o600)
    assert frozen_sandboxes.verified(store, frozen_sandboxes.load(store, frozen.digest))[0] == folder

    # The same folder in another store: its content is what its name says, its seal is not that store's.
    shutil.copytree(store.root / "memory", other.root / "memory")
    with pytest.raises(EtudeError, match="was not written by the store"):
        frozen_sandboxes.verified(other, frozen)
    # A description that leads elsewhere.
    with pytest.raises(EtudeError, match="not the digest"):
        frozen_sandboxes.verified(store, replace(frozen, digest="../../two/memory/" + frozen.digest))
    with pytest.raises(SandboxFailure, match="cannot be read"):
        frozen_sandboxes.verified(store, replace(frozen, digest="0" * 64))
    assert frozen_sandboxes.verified(store, replace(frozen, path=other.root))[0] == folder
    # From before a reboot.
    with monkeypatch.context() as patch:
        patch.setattr(frozen_sandboxes, "boot", lambda: "another one")
        with pytest.raises(EtudeError, match="last start"):
            frozen_sandboxes.verified(store, frozen)


def _one_byte(folder: Path) -> None:
    (folder / "0" / "pages-1.img").write_bytes(bytes(999) + b"x")


def _another_file(folder: Path) -> None:
    (folder / "0" / "core-1.img").write_bytes(b"")


def _a_link(folder: Path) -> None:
    (folder / "0" / "pages-1.img").unlink()
    (folder / "0" / "pages-1.img").symlink_to("/dev/zero")


def _a_seal_of_zeros(folder: Path) -> None:
    (folder / "seal").write_text("0" * 64)


@pytest.mark.parametrize("change", [_one_byte, _another_file, _a_link, _a_seal_of_zeros])
def test_what_was_changed_since_is_refused(tmp_path: Path, change: Callable[[Path], None]) -> None:
    store = Store(tmp_path)
    frozen = _kept(store)
    change(frozen.path)
    with pytest.raises((EtudeError, SandboxFailure)):
        frozen_sandboxes.verified(store, frozen)


def test_frozen_sandboxes_are_pruned_and_keep_their_layers_until_then(tmp_path: Path) -> None:
    store = Store(tmp_path)
    frozen = _kept(store)
    (layer,) = frozen.layers
    assert store.prune(1 << 20) == []
    assert set(store.prune(0)) == {frozen.digest, layer.digest}
    assert not frozen.path.exists()


def test_without_criu_one_sentence_says_so_and_file_snapshots_work(local: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etude.sandbox.local.find_criu.shutil.which", lambda name, path: None)
    monkeypatch.setattr(local.host, "_criu", None)

    async def go() -> None:
        async with await local.host.start([local.layer]) as sandbox:
            attempts: list[Callable[[], Awaitable[object]]] = [sandbox.freeze]
            attempts.append(lambda: local.host.thaw(FrozenSandbox("0" * 64, Path("/nowhere"), (), 0)))
            for attempt in attempts:
                with pytest.raises(EtudeError, match=r"CRIU, which is not installed|only be kept by root"):
                    await attempt()
            await sandbox.write("a.txt", b"a")
            async with await local.host.start(await sandbox.snapshot()) as copy:
                assert await copy.read("a.txt") == b"a"

    local.run(go())


@needs_criu
def test_what_came_back_ends_when_the_orchestrator_is_killed(tmp_path: Path) -> None:
    script = f"""
import asyncio, os, pathlib
from etude.sandbox.local.host import LocalHost

async def main():
    host = await LocalHost.open(pathlib.Path({str(tmp_path)!r}))
    sandbox = await host.start([host.store.add_files({{}})])
    await sandbox.spawn(["sleep", "{600 + os.getpid()}.25"])
    frozen = await sandbox.freeze()
    await sandbox.close()
    thawed = await host.thaw(frozen)
    print(thawed.programs[0].running, flush=True)
    os.kill(os.getpid(), 9)

asyncio.run(main())
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(frozen_sandboxes.__file__).parents[3])}
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, env=environment)
    assert (ended.returncode, ended.stdout) == (-9, "True\n"), ended.stderr
    deadline = time.monotonic() + 60
    while left := _outside(f"{600 + os.getpid()}.25"):
        assert time.monotonic() < deadline, left
        time.sleep(0.02)
