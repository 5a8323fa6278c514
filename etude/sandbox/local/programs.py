"""One program under its supervisor: what happens between a request and exec.

The supervisor is a process of ours, the parent of all that the program starts: orphans come back to it, so what
belongs to a run can be told apart for as long as it lives. It only waits. The program itself gives up every
privilege, for good, before it becomes what was asked for. Knows nothing about other programs or about files.
"""

from __future__ import annotations

import os
import resource
import signal
import struct
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

from etude.sandbox.local import kernel
from etude.sandbox.local.rootfs import HOME, ROOM
from etude.sandbox.local.seccomp import Filter

STATUS: Final = struct.Struct("=i")
NOT_CONFINED: Final = -1  # no wait status: we failed before the program began; the reason follows
_NOT_FOUND, _NOT_STARTED = 127, 126  # as a shell says it
_RESERVE: Final = 8  # processes of our own, which the kernel counts with the program's

ENVIRONMENT: Final = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": HOME,
    "USER": "agent",
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    "TERM": "dumb",
    "PAGER": "cat",
    "PYTHONDONTWRITEBYTECODE": "1",
}


@dataclass(frozen=True)
class Fence:
    """What holds every program of one sandbox."""

    calls: Filter
    memory: int
    disk: int
    processes: int
    cpu_seconds: int
    open_files: int
    counted_memory: bool  # a cgroup holds the memory limit; otherwise each process gets a limit of its own

    def rlimits(self) -> list[tuple[int, int, int]]:
        """(kind, soft, hard); a second lies between the signal that says "too much time" and the one that ends it."""
        limits = [
            (resource.RLIMIT_CORE, 0, 0),
            (resource.RLIMIT_NPROC, self.processes + _RESERVE, self.processes + _RESERVE),
            (resource.RLIMIT_CPU, self.cpu_seconds, self.cpu_seconds + 1),
            (resource.RLIMIT_FSIZE, self.disk, self.disk),
            (resource.RLIMIT_NOFILE, self.open_files, self.open_files),
        ]
        if not self.counted_memory:
            limits.append((resource.RLIMIT_DATA, self.memory, self.memory))
        return limits


@dataclass(frozen=True)
class Apart:
    """A program that nothing in its sandbox can signal, and that takes all it started along when it ends."""

    function: Callable[[], None] | None  # loaded already, to be run without an exec; None: an ordinary program


@dataclass(frozen=True)
class Streams:
    """Both ends of what a program reads and says."""

    ours: tuple[int, ...]  # stdin to write (when asked for), stdout to read, stderr to read
    programs: tuple[int, int, int]

    @classmethod
    def make(cls, stdin: bool) -> Streams:
        """As the sandbox's user, so that a program may open /dev/stdout again."""
        if stdin:
            program_in, our_in = os.pipe2(os.O_CLOEXEC)
        else:
            program_in, our_in = os.open(f"{ROOM}/dev/null", os.O_RDONLY | os.O_CLOEXEC), -1
        our_out, program_out = os.pipe2(os.O_CLOEXEC)
        our_err, program_err = os.pipe2(os.O_CLOEXEC)
        ours = ((our_in,) if stdin else ()) + (our_out, our_err)
        return cls(ours, (program_in, program_out, program_err))


@dataclass(frozen=True)
class Started:
    """A running supervisor, and the orchestrator's ends of the program's streams."""

    supervisor: int
    status: int  # the program's wait status comes here; nothing but the end if the supervisor was killed
    streams: tuple[int, ...]


def start(
    argv: Sequence[str], cwd: str, env: Mapping[str, str], stdin: bool, fence: Fence, apart: Apart | None = None
) -> Started:
    """With `apart` the program is process 1 of a pid namespace of its own."""
    streams = Streams.make(stdin)
    status, tell = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        for descriptor in streams.ours:
            os.close(descriptor)  # or the program would never see the end of its input
        _supervise(argv, cwd, env, streams.programs, tell, fence, apart)
    for descriptor in (*streams.programs, tell):
        os.close(descriptor)
    return Started(pid, status, streams.ours)


def _supervise(
    argv: Sequence[str],
    cwd: str,
    env: Mapping[str, str],
    streams: tuple[int, int, int],
    tell: int,
    fence: Fence,
    apart: Apart | None,
) -> NoReturn:
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        program = os.fork() if apart is None else kernel.clone(kernel.CLONE_NEWPID)
        if program == 0:
            _become(argv, cwd, env, streams, tell, fence, apart)
        for descriptor in streams:
            os.close(descriptor)
        await_end(program, tell)
    finally:
        os._exit(0)


def await_end(program: int, tell: int) -> NoReturn:
    """What a supervisor does: bury all that comes back to it, and tell how the program ended."""
    try:
        while True:
            pid, status = os.wait()
            if pid == program:
                break
        os.write(tell, STATUS.pack(status))
    finally:
        os._exit(0)


def _become(
    argv: Sequence[str],
    cwd: str,
    env: Mapping[str, str],
    streams: tuple[int, int, int],
    tell: int,
    fence: Fence,
    apart: Apart | None,
) -> NoReturn:
    try:
        _confine(streams, fence)
    except BaseException as error:
        # Ours, not the program's: it must not look like an exit code.
        os.write(tell, STATUS.pack(NOT_CONFINED) + repr(error).encode()[:1000])
        os._exit(_NOT_STARTED)
    code, what = _NOT_STARTED, cwd
    try:
        os.chdir(cwd)
        if apart is not None and apart.function is not None:
            _go_on(apart.function, env)
        what = argv[0]
        os.execvpe(argv[0], list(argv), dict(env))  # noqa: S606 - no shell is what we want
    except OSError as error:
        if what != cwd and isinstance(error, FileNotFoundError | NotADirectoryError):
            code = _NOT_FOUND
        os.write(2, os.fsencode(f"{what}: {error.strerror}\n"))
    except ValueError as error:  # a null byte in an argument
        os.write(2, os.fsencode(f"{what!r}: {error}\n"))
    finally:
        os._exit(code)


def _go_on(function: Callable[[], None], env: Mapping[str, str]) -> NoReturn:
    """Be the program without exec: as that would, leave every descriptor and the old environment behind."""
    code = 1
    try:
        kernel.call("close_range", 3, 0xFFFFFFFF, 0)
        os.environ.clear()
        os.environ.update(env)
        function()
        if not sys.stdout.closed:
            sys.stdout.flush()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _confine(streams: tuple[int, int, int], fence: Fence) -> None:
    """Give up everything that the program must not have, for good."""
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    os.setsid()
    _prefer_as_victim()
    for kind, soft, hard in fence.rlimits():
        _, highest = resource.getrlimit(kind)
        if highest != resource.RLIM_INFINITY:
            soft, hard = min(soft, highest), min(hard, highest)
        resource.setrlimit(kind, (soft, hard))
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)  # the interpreter ignores them, and exec would keep that
    os.chroot(ROOM)
    os.chdir("/")
    kernel.drop_capabilities()
    fence.calls.install()


def _prefer_as_victim() -> None:
    """When the sandbox is out of memory, its programs go before its init does."""
    # The file is only ours while our memory may be looked at; nobody here has the capabilities to do so yet.
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
    file = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
    os.write(file, b"1000")
    os.close(file)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
