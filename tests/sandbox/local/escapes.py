"""Attempts to get out of a sandbox, or to harm the machine around it. A script: prints one JSON object of findings.

`python escapes.py FOLDER` runs every scenario as the user who called it; the tests call it as root and as an ordinary
user. A scenario returns what it found: an empty list when nothing escaped. Needs nothing but the sandbox room and
the standard library, so that it runs under any interpreter that an ordinary user may start.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from etude.sandbox.base import Sandbox, SandboxLimits
from etude.sandbox.local.host import LocalHost
from etude.sandbox.local.seccomp import DENIED
from etude.sandbox.store.layers import Store

PYTHON = sys.executable
MIB = 1 << 20
PRELUDE = """
import ctypes, errno, json, os, signal, socket, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def attempt(name, call):
    "Says so when the call works."
    try:
        value = call()
    except (OSError, ValueError) as error:
        return error
    print("ESCAPED", name, repr(value)[:200], flush=True)
def syscall(number, *arguments):
    "0 or more, or OSError."
    value = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments))
    if value < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return value
def read(path, size=64):
    with open(path, "rb") as file:
        data = file.read(size)
    if not data:
        raise OSError("nothing in it")
    return data
def write(path, data=b"1"):
    with open(path, "wb") as file:
        file.write(data)
"""


class World:
    """What a scenario may use: a host, and things of the machine that no sandbox may touch."""

    def __init__(self, host: LocalHost, store: Store, folder: Path) -> None:
        self.host = host
        self.layer = store.add_files({"a.txt": b"a\n"})
        self.folder = folder
        self.secret = folder / "secret.txt"
        self.secret.write_text("the host's secret")

    async def attack(self, code: str, sandbox: Sandbox, timeout: float = 60.0) -> list[str]:
        """Run Python code in a sandbox; every line that says ESCAPED is a finding, and so is an attack that broke."""
        result = await sandbox.run([PYTHON, "-I", "-S", "-c", PRELUDE + code], timeout=timeout)
        said = result.stdout.decode(errors="replace").splitlines()
        found = [line for line in said if line.startswith("ESCAPED")]
        if "finished" not in said:
            found.append(f"the attack itself failed: {result.code} {result.stderr.decode(errors='replace')[-400:]}")
        return found

    def unharmed(self) -> list[str]:
        return [] if self.secret.read_text() == "the host's secret" else ["the host's file was changed"]


Scenario = Callable[[World], Awaitable[list[str]]]


async def network(world: World) -> list[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket(socket.AF_UNIX) as abstract:
        port = listener.getsockname()[1]
        name = f"etude-escape-{os.getpid()}"
        abstract.bind("\0" + name)
        abstract.listen()
        async with await world.host.start([world.layer]) as sandbox:
            code = f"""
def connect(kind, address):
    with socket.socket(kind, socket.SOCK_STREAM) as s:
        s.settimeout(1)
        s.connect(address)
attempt("host loopback", lambda: connect(socket.AF_INET, ("127.0.0.1", {port})))
attempt("host abstract socket", lambda: connect(socket.AF_UNIX, chr(0) + {name!r}))
attempt("internet", lambda: connect(socket.AF_INET, ("1.1.1.1", 80)))
attempt("internet 6", lambda: connect(socket.AF_INET6, ("2606:4700:4700::1111", 80)))
attempt("udp", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("8.8.8.8", 53)))
attempt("name", lambda: socket.getaddrinfo("example.org", 80))
attempt("hypervisor", lambda: socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM))
attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
attempt("packets", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
attempt("kernel crypto", lambda: socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET))
attempt("audit", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 9))
if [name for _, name in socket.if_nameindex()] != ["lo"]:
    print("ESCAPED interfaces", socket.if_nameindex())
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname()).close()  # its own loopback works
print("finished")
"""
            return await world.attack(code, sandbox)


async def host_files(world: World) -> list[str]:
    expected = {"bin", "dev", "etc", "home", "lib", "lib32", "lib64", "libx32", "proc", "sbin", "tmp", "usr", "var"}
    expected |= {"workspace"} | {path.split("/")[1] for path in world.layer.shows}
    async with await world.host.start([world.layer]) as sandbox:
        code = f"""
secret = {str(world.secret)!r}
for path in (secret, "/etc/shadow", "/etc/machine-id", "/root/.bashrc", "/root/.ssh", "/var/log", "/sys/kernel",
             "/dev/mem", "/dev/sda", "/dev/vda", "/dev/kmsg", "/dev/fuse", "/dev/kvm", "/layer", "/host", "/files",
             "/room", "/boot", "../../../.." + secret, "/proc/self/cwd/../../.." + secret, "/proc/self/root/layer"):
    attempt(path, lambda: os.stat(path))
for folder in ("/usr/bin", "/usr/lib", {json.dumps(str(Path(PYTHON).parent))}, "/proc", "/dev"):
    attempt("write into " + folder, lambda: write(folder + "/escaped"))
for path in ("/usr/bin/env", {json.dumps(str(Path(PYTHON).resolve()))}):
    attempt("change " + path, lambda: os.chmod(path, 0o777))
    attempt("remove " + path, lambda: os.unlink(path))
    attempt("open " + path, lambda: os.open(path, os.O_WRONLY))
    fd = os.open(path, os.O_RDONLY)
    attempt("reopen " + path, lambda: os.open(f"/proc/self/fd/{{fd}}", os.O_WRONLY))
unexpected = set(os.listdir("/")) - set({sorted(expected)!r})
if unexpected:
    print("ESCAPED root", unexpected)
print("finished")
"""
        found = await world.attack(code, sandbox)
    return found + world.unharmed()


async def other_processes(world: World) -> list[str]:
    bystander = subprocess.Popen(["sleep", "600"])
    try:
        async with await world.host.start([world.layer]) as neighbour, await world.host.start([world.layer]) as sandbox:
            other = await neighbour.spawn(["sleep", "600"], env={"NEIGHBOUR": "secret"})
            code = f"""
own = os.getpid()
for name in os.listdir("/proc"):
    if name.isdigit() and int(name) not in (own, os.getppid(), 1):
        print("ESCAPED sees process", name, open(f"/proc/{{name}}/cmdline").read())
for pid in ({bystander.pid}, {os.getpid()}, {world.host.launcher_pid}):
    if pid > 1000:
        attempt(f"signal {{pid}}", lambda: os.kill(pid, 0))
for name in ("KILL", "STOP", "INT", "TERM", "HUP", "SEGV", "CHLD", "USR1"):
    number = getattr(signal, "SIG" + name)
    try:
        os.kill(1, number)  # accepted and without effect
    except OSError:
        pass
attempt("priority of 1", lambda: os.setpriority(os.PRIO_PROCESS, 1, -5))
print("finished")
"""
            found = await world.attack(code, sandbox)
            if (await sandbox.run(["true"])).code != 0 or not other.running or bystander.poll() is not None:
                found.append("a process that should live was ended")
            return found
    finally:
        bystander.kill()
        bystander.wait()


async def daemon_outlives_timeout(world: World) -> list[str]:
    found = []
    async with await world.host.start([world.layer]) as sandbox:
        code = """
for _ in range(5):
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        if os.fork() == 0:
            os.setsid()
            while True:
                open("/workspace/beat", "ab").write(b".")
                time.sleep(0.001)
        os._exit(0)
print("finished", flush=True)
time.sleep(600)
"""
        found += await _attack_until_its_deadline(world, code, sandbox)
        found += await _still_beats(sandbox)
        # The same while something else is allowed to stay, and with the supervisor shot first.
        stays = await sandbox.spawn(["sleep", "600"])
        found += await _attack_until_its_deadline(world, code, sandbox)
        found += await _still_beats(sandbox, allowed=1)
        shot = code.replace("time.sleep(600)", "os.kill(os.getppid(), signal.SIGKILL)")
        found += await world.attack(shot, sandbox)
        found += await _still_beats(sandbox, allowed=1)
        if not stays.running:
            found.append("the program that may stay was ended")
    return found


async def _attack_until_its_deadline(world: World, code: str, sandbox: Sandbox) -> list[str]:
    """An attack that never ends: a busy machine may need longer than the first deadline to begin it."""
    for seconds in (1.0, 4.0, 16.0):
        if not (found := await world.attack(code, sandbox, timeout=seconds)):
            break
    return found


async def _still_beats(sandbox: Sandbox, allowed: int = 0) -> list[str]:
    result = await sandbox.run(["sh", "-c", "wc -c < beat; ls -d /proc/[0-9]* | wc -l; wc -c < beat"])
    first, processes, second = (int(line) for line in result.stdout.split())
    # Process 1, a supervisor and its program for each of ours, and the shell's own helpers.
    return [] if first == second and processes <= 6 + 2 * allowed else [f"a daemon lives: {result.stdout!r}"]


def _descendants() -> int:
    """Processes that we, the launcher or a sandbox started: other tests may run beside this one."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it ended meanwhile
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])

    def ours(pid: int) -> bool:
        while pid > 1 and pid != os.getpid():
            pid = parents.get(pid, 0)
        return pid == os.getpid()

    return sum(ours(pid) for pid in parents)


async def fork_bomb(world: World) -> list[str]:
    before, peak = _descendants(), 0
    async with await world.host.start([world.layer], limits=SandboxLimits(processes=64)) as sandbox:
        # The first process leaves its children to go on, however slowly a busy machine let it start.
        code = """
import time
print("finished", flush=True)
first, end = os.getpid(), time.monotonic() + 0.7
while True:
    if os.getpid() == first and time.monotonic() > end:
        os._exit(0)
    try:
        if os.fork() == 0:
            os.setsid()
    except OSError:
        pass
"""
        task = asyncio.create_task(world.attack(code, sandbox))
        while not task.done():
            peak = max(peak, _descendants())
            await asyncio.sleep(0.02)
        found = await task
        if peak - before > 64 + 40:
            found.append(f"{peak - before} processes more than before")
        stays = await sandbox.spawn(["sleep", "600"])  # and while another program may stay
        found += await world.attack(code, sandbox)
        del stays
        if (await sandbox.run(["true"])).code != 0:
            found.append("the sandbox does not work any more")
        threads = await sandbox.run([PYTHON, "-I", "-S", "-c", _THREADS], timeout=60)
        if int(threads.stdout or b"0") > 64 + 8:
            found.append(f"{threads.stdout!r} threads")
    return found


_THREADS = """
import threading, time
made = 0
try:
    for made in range(10000):
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
except RuntimeError:
    pass
print(made, flush=True)
import os; os._exit(0)
"""


async def memory(world: World) -> list[str]:
    found = []
    limits = SandboxLimits(memory=128 * MIB, disk=64 * MIB)
    one = "blocks = []\nwhile True: blocks.append(bytearray(1 << 20))"
    many = """
def hog():
    blocks = []
    while True:
        blocks.append(bytearray(1 << 20))
for _ in range(8):
    if os.fork() == 0:
        hog()
hog()
"""
    shared = """
import mmap
blocks = []
while True:
    block = mmap.mmap(-1, 1 << 20)
    block.write(b"x" * (1 << 20))
    blocks.append(block)
"""
    unmapped = """
import itertools
for n in itertools.count():
    if n % 32 == 0:
        file = os.memfd_create(str(n))
    os.write(file, b"x" * (1 << 20))
    os.write(1, b"x")
"""
    # Pages that processes share are counted for each of them here; and where watching holds the limit, it looks
    # every 50 ms.
    most = limits.memory + limits.disk + (256 * MIB if world.host.capabilities.memory == "watch" else 128 * MIB)
    for name, code in (("one process", one), ("many", many), ("shared", shared), ("unmapped", unmapped)):
        async with await world.host.start([world.layer], limits=limits) as sandbox:
            task = asyncio.create_task(sandbox.run([PYTHON, "-I", "-S", "-c", PRELUDE + code], timeout=60))
            peak = 0
            while not task.done():
                peak = max(peak, _resident_below(world.host.launcher_pid))
                await asyncio.sleep(0.005)
            result = await task
            if name == "unmapped":
                peak = result.stdout.count(b"x") * MIB
            if result.ok or result.timed_out or peak > most:
                found.append(f"{name}: held {peak // MIB} MiB and ended with {result.code}")
            if (await sandbox.run(["true"])).code != 0:
                found.append(f"{name}: the sandbox does not work any more")
    return found


def _resident_below(ancestor: int) -> int:
    """Bytes of memory that all descendants of a process hold."""
    children: dict[int, list[int]] = {}
    resident: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError, IndexError):
            fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(entry.name))
            resident[int(entry.name)] = int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    total, waiting = 0, list(children.get(ancestor, ()))
    while waiting:
        pid = waiting.pop()
        total += resident[pid]
        waiting += children.get(pid, ())
    return total


async def disk_fill(world: World) -> list[str]:
    free = shutil.disk_usage(world.folder).free
    limits = SandboxLimits(disk=32 * MIB)
    async with await world.host.start([world.layer], limits=limits) as sandbox:
        code = f"""
written = 0
for place in ("/workspace", "/tmp", "/dev/shm", "/home/agent", "/", "/etc", "/var/tmp"):
    try:
        for n in range(10):
            with open(f"{{place}}/fill{{n}}", "wb", buffering=0) as file:
                while True:
                    written += file.write(b"x" * 65536)
    except OSError:
        pass
if written > {limits.disk}:
    print("ESCAPED wrote", written)
attempt("sparse", lambda: os.truncate("/workspace/fill0", 1 << 40))
made = 0
try:
    os.unlink("/workspace/fill0")
    for made in range(100_000):
        open(f"/workspace/n{{made}}", "wb").close()
    print("ESCAPED files", made)
except OSError:
    pass
print("finished")
"""
        # A write beyond the file size limit is a signal unless the program ignores it, as Python does.
        found = await world.attack(code, sandbox)
        try:
            await sandbox.write("/workspace/from-outside", b"x" * limits.disk)
            found.append("a write from outside passed the limit")
        except OSError:
            pass
        await sandbox.reset()
        await sandbox.write("/workspace/from-outside", b"fits again")
    if free - shutil.disk_usage(world.folder).free > 512 * MIB:
        found.append("the host's disk was filled")
    return found


async def links_out(world: World) -> list[str]:
    found = []
    secret = str(world.secret)
    async with await world.host.start([world.layer]) as sandbox:
        targets = (
            *(secret, "../../../.." + secret, "/proc/1/root" + secret, "/proc/self/root" + secret, "/etc/shadow"),
            *("/proc/1/environ", "/proc/1/maps", "/proc/self/environ", "/proc/1/cwd/layer", "/layer/0", "/files/upper"),
            *(f"/proc/{who}/fd/{n}" for who in ("self", "1") for n in range(24)),
        )
        script = "".join(f"os.symlink({target!r}, '/workspace/link{n}')\n" for n, target in enumerate(targets))
        script += "os.symlink('/workspace', '/workspace/around')\nprint('finished')"
        found += await world.attack(script, sandbox)
        for n, target in enumerate(targets):
            with suppress(OSError):
                data = await sandbox.read(f"/workspace/around/link{n}")
                found.append(f"read through a link to {target}: {data[:60]!r}")
            with suppress(OSError):
                await sandbox.write(f"/workspace/link{n}", b"overwritten")
        with suppress(OSError):
            await sandbox.read("/workspace/../../../.." + secret)
            found.append("read through ..")
        await sandbox.write("/workspace/../../../../outside", b"")  # .. of the root is the root
        hard = """
for path in ("/usr/bin/env", "/etc/ld.so.cache", "/proc/self/status", "/dev/null"):
    attempt("hard link to " + path, lambda: os.link(path, "/workspace/hard"))
fd = os.open("/usr/bin/env", os.O_RDONLY)
attempt("hard link by descriptor", lambda: os.link(f"/proc/self/fd/{fd}", "/workspace/hard", follow_symlinks=True))
print("finished")
"""
        found += await world.attack(hard, sandbox)
        # A link that changes while it is read: whatever wins, it is not the host's.
        flip = "while True:\n for t in ('a.txt', '/proc/1/environ', %r):\n  os.symlink(t, 'n'); os.rename('n', 'flip')"
        flipping = await sandbox.spawn([PYTHON, "-I", "-S", "-c", PRELUDE + flip % secret])
        for _ in range(300):
            with suppress(OSError):
                if await sandbox.read("/workspace/flip") != b"a\n":
                    found.append("read something else through a changing link")
        await flipping.kill()
        for change in await sandbox.diff():
            if not change.path.startswith(("/workspace", "/outside", "/etc", "/tmp", secret[: secret.rindex("/")][:4])):
                found.append(f"an unexpected change: {change.path}")
    return found + world.unharmed()


async def proc_tricks(world: World) -> list[str]:
    async with await world.host.start([world.layer]) as sandbox:
        code = """
for name in ("environ", "maps", "mem", "auxv", "stack", "syscall", "pagemap", "io", "personality"):
    attempt("/proc/1/" + name, lambda: read("/proc/1/" + name))
for name in ("fd", "fdinfo", "map_files", "root", "cwd", "task/1/fd"):
    attempt("/proc/1/" + name, lambda: os.listdir("/proc/1/" + name + "/"))
for name in ("root", "cwd", "exe", "ns/mnt", "ns/net", "fd/0", "fd/3", "fd/4"):
    attempt("/proc/1/" + name, lambda: os.readlink("/proc/1/" + name))
parent = os.getppid()
attempt("supervisor memory", lambda: open(f"/proc/{parent}/mem", "r+b"))
attempt("supervisor descriptors", lambda: os.listdir(f"/proc/{parent}/fd"))
for path in ("sys/kernel/core_pattern", "sys/kernel/hostname", "sys/vm/drop_caches", "sys/kernel/modprobe",
             "sys/net/ipv4/ip_forward", "sys/user/max_user_namespaces", "self/uid_map", "self/gid_map",
             "self/setgroups", "irq/default_smp_affinity", "mtrr"):
    attempt("write " + path, lambda: write("/proc/" + path))
attempt("protect from oom", lambda: write("/proc/self/oom_score_adj", b"-1000"))
for path in ("/proc/kcore", "/proc/kmsg", "/proc/keys", "/proc/timer_list", "/proc/vmallocinfo", "/proc/slabinfo"):
    attempt(path, lambda: read(path))
try:
    write("/proc/sysrq-trigger", b"h")  # may seem to work: it goes nowhere
except OSError:
    pass
print("finished")
"""
        return await world.attack(code, sandbox)


async def nested_namespaces(world: World) -> list[str]:
    async with await world.host.start([world.layer]) as sandbox:
        code = """
unshare, setns = {"x86_64": (272, 308), "aarch64": (97, 268)}[os.uname().machine]
clone = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
flags = {"user": 0x10000000, "mnt": 0x20000, "pid": 0x20000000, "net": 0x40000000, "ipc": 0x8000000,
         "uts": 0x4000000, "cgroup": 0x2000000, "time": 0x80}
for name, flag in flags.items():
    attempt("unshare " + name, lambda: syscall(unshare, flag))
    attempt("unshare user and " + name, lambda: syscall(unshare, flag | 0x10000000))
    if name != "time":
        def child():
            pid = syscall(clone, flag | 17, 0, 0, 0, 0)
            if pid == 0:
                os._exit(0)
            return pid
        attempt("clone " + name, child)
    attempt("setns " + name, lambda: syscall(setns, os.open(f"/proc/self/ns/{name}", os.O_RDONLY), 0))
arguments = struct.pack("=8Q", 0x10000000, 0, 0, 0, 17, 0, 0, 0)
attempt("clone3", lambda: syscall(435, arguments, len(arguments)))
import subprocess
for command in ("unshare -Ur true", "unshare -m true", "nsenter -t 1 -a true", "mount -t tmpfs none /tmp",
                "chroot / true"):
    try:
        if subprocess.run(command.split(), capture_output=True).returncode == 0:
            print("ESCAPED", command)
    except FileNotFoundError:
        pass
print("finished")
"""
        return await world.attack(code, sandbox)


async def denied_calls(world: World) -> list[str]:
    machine = os.uname().machine
    column = {"x86_64": 0, "aarch64": 1}[machine]
    numbers = {name: pair[column] for name, pair in DENIED.items() if pair[column] is not None}
    async with await world.host.start([world.layer]) as sandbox:
        code = f"""
for name, number in {numbers!r}.items():
    error = attempt(name, lambda: syscall(number, 0, 0, 0, 0, 0, 0))
    if error is not None and error.errno not in (errno.EPERM, errno.ENOSYS):
        print("ESCAPED", name, "reached the kernel:", error)
attempt("trace", lambda: syscall(numbers["ptrace"], 0, 0, 0, 0))
attempt("personality", lambda: syscall({135 if column == 0 else 92}, 0x0400000))
TIOCSTI = 0x5412
import fcntl, pty
main, side = pty.openpty()
attempt("type into a terminal", lambda: fcntl.ioctl(side, TIOCSTI, b"x"))
""".replace('numbers["ptrace"]', str(numbers["ptrace"]))
        if machine == "x86_64":
            # The same calls under other numbers: x32, and the 32-bit entry, whose caller must not survive.
            code += """
attempt("x32 mount", lambda: syscall(0x40000000 + 165, 0, 0, 0, 0, 0))
pid = os.fork()
if pid == 0:
    import mmap
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(b"\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3")  # mov eax, 20 (getpid); int 0x80; ret
    ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
    os._exit(0)
if os.waitpid(pid, 0)[1] == 0:
    print("ESCAPED the 32-bit entry works")
"""
        return await world.attack(code + 'print("finished")', sandbox)


async def privileges(world: World) -> list[str]:
    async with await world.host.start([world.layer]) as sandbox:
        code = """
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
    if int(status[name], 16):
        print("ESCAPED", name, status[name])
if status["NoNewPrivs"].strip() != "1" or status["Seccomp"].strip() != "2" or status["Uid"].split() != ["1000"] * 4:
    print("ESCAPED", status["NoNewPrivs"], status["Seccomp"], status["Uid"])
if os.listdir("/proc/self/fd") != ["0", "1", "2", "3"]:
    print("ESCAPED descriptors", os.listdir("/proc/self/fd"))
attempt("setuid", lambda: os.setuid(0))
attempt("setgroups", lambda: os.setgroups([0]))
attempt("block device", lambda: os.mknod("/workspace/disk", 0o60600, os.makedev(254, 0)))
attempt("character device", lambda: os.mknod("/workspace/mem", 0o20600, os.makedev(1, 1)))
attempt("a deletion mark", lambda: os.mknod("/workspace/mark", 0o20600, 0))
attempt("nice", lambda: os.nice(-5))
import resource
attempt("more processes", lambda: resource.setrlimit(resource.RLIMIT_NPROC, (100000, 100000)))
attempt("chown", lambda: os.chown("/workspace/a.txt", 0, 0))
import shutil, subprocess
shutil.copy("/usr/bin/id", "/workspace/id")
os.chmod("/workspace/id", 0o6755)
if subprocess.run(["/workspace/id", "-u"], capture_output=True).stdout != b"1000\\n":
    print("ESCAPED setuid file")
print("finished")
"""
        found = await world.attack(code, sandbox)
        after = await sandbox.fork()
        modes = await after.run(["stat", "-c", "%a", "id"])
        if int(modes.stdout, 8) & 0o6000:
            found.append("a fork kept a setuid bit")
        await after.close()
        return found


async def hostile_names_and_depth(world: World) -> list[str]:
    """What a program leaves behind must not trip whoever looks at it."""
    found = []
    async with await world.host.start([world.layer]) as sandbox:
        code = """
os.mkdir("/workspace/names")
for name in (b"new\\nline", b"\\xff\\xfe", b"\\x1b[2J", b"-rf", b"a" * 255, "\\u202etxt.exe".encode()):
    open(b"/workspace/names/" + name, "wb").close()
os.symlink("loop", "/workspace/loop")
os.symlink(".", "/workspace/self")
with open("/workspace/sparse", "wb") as file:
    file.truncate(300 << 20)
print("finished")
"""
        found += await world.attack(code, sandbox)
        changes = await sandbox.diff("/workspace/names")
        if len(changes) != 7 or "/workspace/names/\udcff\udcfe" not in {change.path for change in changes}:
            found.append(f"names: {changes!r}")
        snapshot = await sandbox.snapshot()
        async with await world.host.start(snapshot) as copy:
            if await copy.diff() != await sandbox.diff():
                found.append("a snapshot with strange names differs")
        if snapshot.size > MIB:
            found.append(f"a sparse file made a snapshot of {snapshot.size} bytes")
        deep = """
for _ in range(3000):
    os.mkdir("d")
    os.chdir("d")
print("finished")
"""
        found += await world.attack(deep, sandbox)
        for verb in (sandbox.diff, sandbox.snapshot, sandbox.fork):
            try:
                await verb()
                found.append(f"{verb.__name__} accepted folders 3000 deep")
            except OSError:
                pass
        await sandbox.reset()
        if await sandbox.diff() or (await sandbox.run(["true"])).code != 0:
            found.append("the sandbox does not work any more")
    return found


async def output_flood(world: World) -> list[str]:
    async with await world.host.start([world.layer]) as sandbox:
        for seconds in (0.5, 2.0, 8.0):  # a busy machine may need more than the first to begin
            result = await sandbox.run(["sh", "-c", "yes & yes >&2"], timeout=seconds, max_output=1 << 16)
            if result.truncated:
                break
        if len(result.stdout) + len(result.stderr) > 3 << 16 or not (result.truncated and result.timed_out):
            return [f"kept {len(result.stdout)} and {len(result.stderr)} bytes"]
    return []


SCENARIOS: dict[str, Scenario] = {
    scenario.__name__: scenario
    for scenario in (
        *(network, host_files, other_processes, daemon_outlives_timeout, fork_bomb, memory, disk_fill, links_out),
        *(proc_tricks, nested_namespaces, denied_calls, privileges, hostile_names_and_depth, output_flood),
    )
}


async def main(folder: Path) -> dict[str, list[str]]:
    store = Store(folder / "store")
    findings: dict[str, list[str]] = {}
    async with await LocalHost.open(store) as host:
        world = World(host, store, folder)
        for name, scenario in SCENARIOS.items():
            began = time.monotonic()
            try:
                findings[name] = await asyncio.wait_for(scenario(world), 300)
            except Exception as error:
                findings[name] = [f"the scenario itself failed: {error!r}"]
            print(f"{name} {time.monotonic() - began:.2f} s", file=sys.stderr)
    return findings


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(Path(sys.argv[1])))))
