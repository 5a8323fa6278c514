"""CRIU in the namespaces of a sandbox: processes into image files (`dump`), image files into processes (`restore`).

Both run in a fork of the launcher that never returns. CRIU must be the machine's root: nobody less may read a process's
system call filter. It joins every namespace of the sandbox but the user's; the processes that it makes join that one
before they are given anything of their image. So it is only ever fed what it wrote itself, which
`frozen_sandboxes.py` checks. Knows nothing of messages, stores and other sandboxes.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NoReturn

from etude.sandbox.identity import INSIDE, Identity
from etude.sandbox.local import kernel, program_start
from etude.sandbox.local.cgroups import ControlGroup
from etude.sandbox.local.rootfs import PROGRAM_ROOT

_SCRATCH: Final = "/run"  # on the stage, for CRIU's own files: what it says, and what it found out about the kernel
_OURS: Final = (
    kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS | kernel.CLONE_NEWNET | kernel.CLONE_NEWCGROUP
)
_NAMESPACES: Final = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
_COMMON: Final = (
    "--unprivileged",  # nothing that only the machine's root may do to a process: clocks, groups, large socket buffers
    "--manage-cgroups=ignore",
    "--tcp-established",
    "--file-locks",
)
_STILL_SECONDS: Final = 10.0  # for all processes that came back to be stopped
_GHOSTS: Final = 64 << 20  # bytes kept of an open file that has no name any more


@dataclass(frozen=True)
class Criu:
    """The host's program and what it is loaded with: from inside a sandbox none of it can be found by its path."""

    program: str
    loader: str
    libraries: tuple[str, ...]  # folders


@dataclass(frozen=True)
class TargetSandbox:
    """The sandbox that a fork of the launcher goes into; its process numbers are those of the sandbox already."""

    init: int  # pidfd
    group: ControlGroup | None
    identity: Identity


@dataclass(frozen=True)
class SavedProgram:
    """A program to restore: its number, the pipes of its streams when it was saved, and what takes their place."""

    pid: int
    pipes: tuple[int, ...]
    streams: tuple[int, ...]
    status: int  # its end is reported here, as `program_start.py` does


def dump(target: TargetSandbox, criu: Criu, images: int, pid: int, report: int) -> NoReturn:
    """Write a stopped process and all that it started into the folder behind `images`; it stays as it is."""
    with _reporting(report):
        opened = _OpenedCriu(criu, images)
        # Without CLONE_NEWUSER: entering it would make CRIU an ordinary user, who may not read a system call filter.
        kernel.call("setns", target.init, _OURS)
        # `--network-lock=skip`: a sandbox without network has no packets that need to be held back.
        opened.run("dump", "--tree", str(pid), "--leave-running", "--network-lock=skip", f"--ghost-limit={_GHOSTS}")
        _forget_the_user_namespace(images, pid)
        _report(report, {})
    os._exit(0)


def restore(target: TargetSandbox, criu: Criu, images: int, program: SavedProgram, report: int) -> NoReturn:
    """Make stopped processes of images, and be their supervisor from then on."""
    with _reporting(report):
        # Before CRIU makes anything: memory of the restored processes is then counted from the first page.
        if target.group is not None:
            target.group.add(0)  # ourselves, and with us everything that we start
        with open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123 - as in program_start.py
            file.write("1000")
        opened = _OpenedCriu(criu, images, program.streams)
        kernel.call("setns", target.init, _OURS)
        # CRIU leaves the restored processes as orphans (`--restore-detached`); they come to us, their supervisor.
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        inherited = zip(program.streams, program.pipes, strict=True)
        named = [f"--inherit-fd=fd[{stream}]:pipe:[{pipe}]" for stream, pipe in inherited]
        user = f"--join-ns=user:/proc/1/ns/user,{INSIDE},{INSIDE}"
        opened.run("restore", "--restore-detached", user, *named)
        for stream in program.streams:
            os.close(stream)
        # All of them are checked before any may go on: they are stopped.
        for process in _below(os.getpid()):
            _check(process, target.identity)
        _become_a_supervisor(target.init)
        _report(report, {"supervisor": os.getpid()})
    program_start.await_end(program.pid, program.status)


def skip_numbers(highest: int) -> NoReturn:
    """Let new processes of the sandbox be numbered above those that come program."""
    code = 1
    try:
        with open("/proc/sys/kernel/ns_last_pid", "w") as file:  # noqa: PTH123 - a setting
            file.write(str(highest))
        code = 0
    finally:
        os._exit(code)


class _OpenedCriu:
    """CRIU, opened while its files can be found, to be started where they cannot."""

    def __init__(self, criu: Criu, images: int, streams: tuple[int, ...] = ()) -> None:
        self._host = os.open("/", os.O_PATH)
        self._loader = os.open(criu.loader, os.O_RDONLY)
        self._program = os.open(criu.program, os.O_RDONLY)
        self._images = images
        self._streams = streams
        # The loader takes library folders by path. The host's root is only reachable through this descriptor.
        self._libraries = ":".join(f"{_descriptor_path(self._host)}{folder}" for folder in criu.libraries)

    def run(self, verb: str, *arguments: str) -> None:
        """To its end; what it complained about becomes an `OSError`."""
        kernel.mount("tmpfs", _SCRATCH, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=4m,mode=755")
        try:
            pid = os.fork()
            if pid == 0:
                self._become(verb, arguments)
            _, status = os.waitpid(pid, 0)
            if status != 0:
                raise OSError(0, _first_error())
        finally:
            kernel.unmount(_SCRATCH)
        for descriptor in (self._host, self._loader, self._program):
            os.close(descriptor)

    def _become(self, verb: str, arguments: Sequence[str]) -> NoReturn:
        try:
            os.setpriority(os.PRIO_PROCESS, 0, 0)  # processes may be made slower than we are, never faster
            for descriptor in (self._host, self._loader, self._program, self._images, *self._streams):
                os.set_inheritable(descriptor, True)
            # `--inhibit-cache`: the loader's cache is a file of the root that it runs in, which is the sandbox's.
            start = ["criu", "--inhibit-cache", "--library-path", self._libraries, _descriptor_path(self._program)]
            order = [verb, "--images-dir", _descriptor_path(self._images), "--work-dir", _SCRATCH, "--log-file", "log"]
            environment = {"XDG_RUNTIME_DIR": _SCRATCH, "PATH": ""}
            os.execve(_descriptor_path(self._loader), [*start, *order, *_COMMON, *arguments], environment)  # noqa: S606
        finally:
            os._exit(127)


def _first_error() -> str:
    """Why CRIU gave up: the first thing that it calls an error. Programs may have chosen some of the words."""
    try:
        # CRIU's log calls many things warnings; only lines with "Error" say why it stopped.
        said = [line.partition("Error ")[2] for line in _text(f"{_SCRATCH}/log").splitlines() if "Error " in line]
    except FileNotFoundError:
        return "it could not be started"
    first = (said or ["it gave no reason"])[0].rpartition("): ")[2]
    # It becomes a message in our log and terminal, and a program may have put control characters into a path.
    return "".join(each if each.isprintable() else "?" for each in first)


def _descriptor_path(descriptor: int) -> str:
    return f"/proc/self/fd/{descriptor}"


def _become_a_supervisor(init: int) -> None:
    """From the machine's root to a process of the sandbox without any right."""
    kernel.call("setns", init, kernel.CLONE_NEWUSER)
    os.close(init)
    os.setgroups([])
    os.setresgid(INSIDE, INSIDE, INSIDE)
    os.setresuid(INSIDE, INSIDE, INSIDE)
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.bar_capabilities()
    kernel.drop_capabilities()
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _below(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:  # noqa: PTH123 - /proc
        children = [int(each) for each in file.read().split()]
    return children + [each for child in children for each in _below(child)]


def _check(pid: int, identity: Identity) -> None:
    """A process that came back must stand still, and be held as every program of a sandbox is."""
    patience = time.monotonic() + _STILL_SECONDS
    # A stop takes a moment to be seen; a zombie cannot be stopped any more.
    while (facts := _status(pid))["State"][0] not in "TZ" and time.monotonic() < patience:
        time.sleep(0.001)  # the signal that stops it was sent, and is on its way
    if facts["State"][0] == "Z":
        return  # it was dead before, and only waits to be buried
    # Five capability sets, the bounding one included: none may hold anything.
    capabilities = {value for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb") for value in facts[name]}
    expected = {
        "state": facts["State"][0] == "T",
        "user": facts["Uid"] == [str(identity.uid)] * 4 and facts["Gid"] == [str(identity.gid)] * 4,
        "capabilities": {int(each, 16) for each in capabilities} == {0} and facts["NoNewPrivs"] == ["1"],
        # 2 is filter mode. A process without its filter could call everything again.
        "filter": facts["Seccomp"] == ["2"],
        "groups": _text(f"/proc/{pid}/cgroup") == _text("/proc/self/cgroup"),
        "root": os.readlink(f"/proc/{pid}/root") == PROGRAM_ROOT,  # noqa: PTH115 - /proc
        **{f"{name} namespace": _namespace(pid, name) == _namespace(1, name) for name in _NAMESPACES},
    }
    if wrong := [name for name, right in expected.items() if not right]:
        raise OSError(0, f"a process came back with the wrong {', '.join(wrong)}")


def _status(pid: int) -> dict[str, list[str]]:
    lines = _text(f"/proc/{pid}/status").splitlines()
    return {name: value.split() for name, _, value in (line.partition(":") for line in lines)}


def _namespace(pid: int, name: str) -> int:
    return os.stat(f"/proc/{pid}/ns/{name}").st_ino  # noqa: PTH116 - /proc


def _text(path: str) -> str:
    with open(path, errors="replace") as file:  # noqa: PTH123 - /proc, and a log
        return file.read()


@contextmanager
def _reporting(report: int) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        # Programs may have chosen the text, so its length is bounded.
        text = error.strerror or str(error) if isinstance(error, OSError) else repr(error)
        _report(report, {"error": text[:500]})
        os._exit(1)


def _report(report: int, message: dict[str, object]) -> None:
    os.write(report, json.dumps(message).encode())
    os.close(report)


# CRIU, started outside of the processes' user namespace, notes that they need a new one. They are to join the one of
# the sandbox that they come back in, so the note is changed: the two are called by the same number.

_ROOT_IDS, _USER_NAMESPACE, _BYTES = 3, 10, 2


def _forget_the_user_namespace(images: int, pid: int) -> None:
    ids = _read(images, f"ids-{pid}.img")
    (user,) = (value for number, _, value, _ in _fields(ids[12:]) if number == _USER_NAMESPACE)  # after magic and size
    inventory = _read(images, "inventory.img")
    body = b""
    for number, _, value, whole in _fields(inventory[8:]):
        if number == _ROOT_IDS and isinstance(value, bytes) and isinstance(user, int):
            changed = b"".join(
                _number(_USER_NAMESPACE << 3) + _number(user) if inner == _USER_NAMESPACE else unchanged
                for inner, _, _, unchanged in _fields(value)
            )
            whole = _number(_ROOT_IDS << 3 | _BYTES) + _number(len(changed)) + changed
        body += whole
    file = os.open("inventory.img", os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, dir_fd=images)
    with open(file, "wb") as out:  # noqa: PTH123 - a descriptor
        out.write(inventory[:4] + struct.pack("<I", len(body)) + body)


def _read(images: int, name: str) -> bytes:
    with open(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=images), "rb") as file:  # noqa: PTH123 - a descriptor
        return file.read()


def _fields(message: bytes) -> Iterator[tuple[int, int, int | bytes, bytes]]:
    """Number, kind, value and the encoding of each field of a protocol buffer."""
    at = 0
    while at < len(message):
        start = at
        tag, at = _take(message, at)
        value: int | bytes
        if tag & 7 == 0:
            value, at = _take(message, at)
        else:
            length, at = _take(message, at) if tag & 7 == _BYTES else ({1: 8, 5: 4}[tag & 7], at)
            value, at = message[at : at + length], at + length
        yield tag >> 3, tag & 7, value, message[start:at]


def _take(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (message[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if message[at - 1] < 128:
            return value, at


def _number(value: int) -> bytes:
    encoded = b""
    while value > 127:
        encoded, value = encoded + bytes([value & 127 | 128]), value >> 7
    return encoded + bytes([value])
