"""Nothing that one sandbox does can be read in another: each way that once carried a byte, from sender to receiver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

PYTHON = [sys.executable, "-I", "-S", "-c"]
SHOWN = str(Path(os.__file__).with_name("pydoc_data") / "topics.py")  # large, of the host, and seldom read
PRELUDE = f"""
import ctypes, fcntl, json, mmap, os, select, struct, sys, time
SHOWN = {SHOWN!r}
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    value = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments))
    return value if value >= 0 else -ctypes.get_errno()
def say(value):
    print(json.dumps(value), flush=True)
"""
needs_own_users = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give each sandbox a user of its own")


def own_files(local: Any) -> bool:
    """What the stamp says. Where a machine cannot do it, the tests below hold the stamp to that."""
    return bool(local.host.capabilities.files == "own inodes")


@contextmanager
def sender(local: Any, code: str) -> Iterator[None]:
    """A live sandbox in which this code has run and stays."""
    sandbox = local.run(local.host.start([local.layer]))
    try:
        process = local.run(sandbox.spawn([*PYTHON, f"{PRELUDE}{code}\nsay('sent')\ntime.sleep(600)"]))

        async def said() -> bytes:
            seen = b""
            while b"sent" not in seen:
                ended = await process.wait(0.01)
                out, err = process.output()
                assert ended is None, ended.stderr + err
                seen += out
            return seen

        local.run(said())
        yield
    finally:
        local.run(sandbox.close())


def receive(local: Any, code: str) -> Any:
    """What this code says in a sandbox of its own."""

    async def go() -> Any:
        async with await local.host.start([local.layer]) as sandbox:
            result = await sandbox.run([*PYTHON, PRELUDE + code])
            assert result.code == 0, result.stderr.decode()
            return json.loads(result.stdout)

    return local.run(go())


def test_locks(local: Any) -> None:
    files = ["/usr/bin/env", SHOWN, "/usr", "/dev/null", "/etc/passwd", "/etc/ld.so.cache", "/proc/stat"]
    hold = (
        f"kept = [os.open(path, os.O_RDONLY) for path in {files}]\nfor fd in kept:\n    fcntl.flock(fd, fcntl.LOCK_EX)"
    )
    look = f"""
taken = []
for path in {files}:
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        taken.append(path)
    asked = struct.pack("hhqqi", fcntl.F_WRLCK, 0, 0, 0, 0)
    if struct.unpack("hhqqi", fcntl.fcntl(fd, fcntl.F_GETLK, asked))[0] != fcntl.F_UNLCK:
        taken.append(path + " (range)")
say(taken)
"""
    ranges = "\nfor fd in kept:\n    if os.fstat(fd).st_mode & 0o100000: fcntl.lockf(fd, fcntl.LOCK_SH)"
    with sender(local, hold + ranges):
        assert (receive(local, look) == []) is own_files(local)


def test_watches_see_neither_a_neighbour_nor_the_host(local: Any) -> None:
    watch = """
watcher = libc.inotify_init1(os.O_NONBLOCK)
for path in ("/usr/bin", "/usr/bin/env", os.path.dirname(SHOWN), SHOWN, "/dev", "/dev/null", "/etc", "/workspace"):
    assert libc.inotify_add_watch(watcher, path.encode(), 0xFFF) >= 0, path
say("watching")
sys.stdin.readline()
ready = select.select([watcher], [], [], 0.2)[0]
say(len(os.read(watcher, 65536)) if ready else 0)
"""

    async def go() -> int:
        async with await local.host.start([local.layer]) as receiver, await local.host.start([local.layer]) as other:
            process = await receiver.spawn([*PYTHON, PRELUDE + watch])
            while not process.output()[0]:
                ended = await process.wait(0.01)
                assert ended is None, ended.stderr
            files = ["/usr/bin/env", SHOWN, "/dev/null", "/etc/passwd", "/workspace/hello.py"]
            touch = f"for path in {files}: open(path, 'rb').read()"
            assert (await other.run([*PYTHON, touch])).code == 0
            for path in ("/usr/bin/env", SHOWN, "/dev/null"):  # the host's own
                Path(path).read_bytes()
            await process.send(b"now\n")
            ended = await process.wait(30)
            assert ended is not None and ended.code == 0
            return int(ended.stdout)

    assert (local.run(go()) == 0) is own_files(local)


def test_what_is_in_memory_of_a_shared_file(local: Any) -> None:
    ask = """
size = os.path.getsize(SHOWN)
fd = os.open(SHOWN, os.O_RDONLY)
view = mmap.mmap(fd, size, prot=mmap.PROT_READ)
address = ctypes.addressof((ctypes.c_char * size).from_buffer_copy(b"x" * size))
held = ctypes.create_string_buffer(64)
buffer = ctypes.create_string_buffer(4096)
vector = struct.pack("QQ", ctypes.addressof(buffer), 4096)
range_, stat = struct.pack("QQ", 0, size), ctypes.create_string_buffer(40)
answers = [call(327, fd, vector, 1, at, 0, 8) for at in range(0, size, 65536)]
answers += [call(451, fd, range_, stat, 0), stat.raw.hex(), call(27, address & ~4095, 4096, held), held.raw.hex()]
answers += [call(221, fd, 0, 0, 4), call(221, fd, 0, 0, 3), call(187, fd, 0, size)]
try:
    os.preadv(fd, [bytearray(10)], 0, os.RWF_NOWAIT)
    answers.append("read")
except OSError as error:
    answers.append(error.errno)
say(answers)
"""
    descriptor = os.open(SHOWN, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        before = receive(local, ask)
        with sender(local, "open(SHOWN, 'rb').read()"):
            assert receive(local, ask) == before
        assert all(answer < 0 for answer in before[:3])
    finally:
        os.close(descriptor)


def test_aio_contexts(local: Any) -> None:
    take = "context = ctypes.create_string_buffer(8)\nsay(call(206, 60000, context))"
    assert receive(local, take) < 0
    assert (
        receive(local, "say(os.path.exists('/proc/sys/fs/aio-nr') or os.path.exists('/proc/sys/fs/file-nr'))") is False
    )


@needs_own_users
def test_allowances_by_user(local: Any) -> None:
    take = """
kept = []
try:
    while len(kept) < 400:
        kept.append(os.pipe())
        fcntl.fcntl(kept[-1][0], 1031, 1 << 20)
except OSError:
    pass
try:
    while len(kept) < 480:
        kept.append(os.pipe())
except OSError:
    pass
watchers = [libc.inotify_init1(0) for _ in range(400)]
"""
    look = "say([fcntl.fcntl(os.pipe()[0], 1032), libc.inotify_init1(0) >= 0])"
    with sender(local, take):
        assert receive(local, look) == [1 << 16, True]


def test_keys(local: Any) -> None:
    add = """say([call(248, b"user", b"name", b"value", 5, -4), call(250, 0, -4, 1),
    call(249, b"user", b"name", None, -4)])"""
    assert all(answer < 0 for answer in receive(local, add))
    assert receive(local, "say([open('/proc/' + name).read() for name in ('keys', 'key-users')])") == ["", ""]


def test_system_v_and_message_queues(local: Any) -> None:
    make = "made = [call(29, 77, 4096, 0o1666), call(68, 77, 0o1666), call(64, 77, 1, 0o1666)]\n"
    make += "made += [call(240, b'queue', os.O_CREAT | os.O_RDWR, 0o666, None)]\nassert min(made) >= 0, made"
    look = "say([call(29, 77, 0, 0), call(68, 77, 0), call(64, 77, 0, 0), call(240, b'queue', os.O_RDWR, 0, None)])"
    with sender(local, make):
        assert receive(local, look) == [-2, -2, -2, -2]


def test_counters_of_the_machine(local: Any) -> None:
    """Every file of /proc that is not of a process, before and after another sandbox was busy."""
    look = """
seen = {}
for root, folders, files in os.walk("/proc"):
    if root == "/proc":
        folders[:] = [name for name in folders if not name.isdigit() and name not in ("self", "thread-self", "net")]
    for name in files:
        path = os.path.join(root, name)
        try:
            with open(path, "rb", buffering=0) as file:
                seen[path] = file.read(1 << 16).hex()
        except OSError:
            pass
say(seen)
"""
    noise = """
kept = [open("/usr/bin/env") for _ in range(300)]
terminals = [os.openpty() for _ in range(5)]
watch = libc.inotify_init1(0)
pages = bytearray(64 << 20)
pages[::4096] = b"x" * len(pages[::4096])
for _ in range(40):
    if os.fork() == 0:
        time.sleep(600)
"""
    # How long the machine is up and how long it was idle, and random numbers: what a clock tells too, and nothing.
    # What is mounted is its own.
    changing = {"/proc/uptime", "/proc/mounts", "/proc/sys/kernel/random/uuid", "/proc/sys/kernel/ns_last_pid"}
    before = receive(local, look)
    with sender(local, noise):
        after = receive(local, look)
    assert {path for path in before if after.get(path) != before[path]} - changing == set()
    assert before["/proc/meminfo"] and before["/proc/stat"]


IN_A_CONTAINER = """
import asyncio, fcntl, os, sys
from pathlib import Path
from etude.sandbox.hosts import open_host
from etude.sandbox.local import kernel
from etude.sandbox.store.layers import Store

kernel.call("unshare", 0x20000)  # mounts of our own
kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
folder = Path(sys.argv[1])
for name, size in (("small", 9), ("large", 3 << 20)):
    (folder / name).write_bytes(b"x" * size)
kernel.bind_path(str(folder / "small"), "/usr/bin/uptime")
kernel.bind_path(str(folder / "large"), "/usr/bin/perl")

async def main():
    async with await open_host("local", store := Store(folder / "store")) as host:
        print(host.capabilities.files)
        async with await host.start([store.add_files({"a": b"a"})]) as sandbox:
            print(sandbox.capabilities.files)
            print((await sandbox.read("/usr/bin/uptime")).decode())
            print(len(await sandbox.read("/usr/bin/perl")) == 3 << 20)
            lock = os.open("/usr/bin/env", os.O_RDONLY)
            fcntl.flock(lock, fcntl.LOCK_EX)
            code = "import fcntl; fcntl.flock(open('/usr/bin/env'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
            print((await sandbox.run([sys.executable, "-I", "-S", "-c", code])).code)
        (folder / "machine").mkdir()
        (folder / "machine" / "large").write_bytes(b"x" * (3 << 20))
        layer = store.add_files({"b": b"b"}, shows=(str(folder / "machine" / "large"),))
        async with await host.start([layer]) as sandbox:
            print(sandbox.capabilities.files)

asyncio.run(main())
"""


@needs_own_users
def test_single_files_mounted_into_system_folders_take_nothing_away(local: Any, tmp_path: Path) -> None:
    """As a container runtime does it for drivers: the folder is still an overlay. A sandbox has a stamp of its own."""
    if not own_files(local) or not all(Path(path).is_file() for path in ("/usr/bin/uptime", "/usr/bin/perl")):
        pytest.skip("needs two programs to mount over, and a machine whose folders can be lowers")
    done = subprocess.run(
        [sys.executable, "-c", IN_A_CONTAINER, str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    # What is small is shown as a copy, what is too large to copy is not; a large file that a layer names is shared.
    assert done.stdout.split() == ["own", "inodes", "own", "inodes", "x" * 9, "False", "0", "shared", "inodes"]


def test_mounts_and_groups_name_no_place_of_the_host(local: Any) -> None:
    said = receive(local, "say([open('/proc/self/' + name).read() for name in ('mountinfo', 'mounts', 'cgroup')])")
    store = str(local.store.root)
    assert not any(word in text for text in said for word in (store, "etude-sandboxes"))
    assert all(line.endswith(":/") for line in said[2].splitlines())
    if any(word in text for text in said for word in ("/dev/vd", "/dev/sd", "ext4")):
        assert not own_files(local)  # folders that could not be lowers are shown as what they are
        return
    for line in said[0].splitlines():
        root, point = line.split(" ")[3:5]
        # Of a file system of the sandbox's own: its root, or one of its few folders and files.
        named = root == "/" or root.split("/")[1] in ("machine", "host", "sys", "shm", "null")
        assert named or not own_files(local), (root, point)
