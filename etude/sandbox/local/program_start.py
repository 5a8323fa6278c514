"""One program, under a supervisor where others may run beside it: what happens between a request and exec.

The supervisor is a process of ours, the parent of all that the program starts: orphans come back to it, so what
belongs to a run is known for as long as it lives. It only waits. A run that starts when nothing else runs has none, as
a fork is what a run costs most: its orphans come to init. The program itself gives up every privilege, for good, before
it becomes what was asked for. Knows nothing about other programs or about files.
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

from etude.sandbox import program_exec
from etude.sandbox.base import SandboxLimits
from etude.sandbox.identity import INSIDE
from etude.sandbox.local import kernel
from etude.sandbox.local.rootfs import PROGRAM_ROOT
from etude.sandbox.local.seccomp import Filter

STATUS: Final = struct.Struct("=i")
NOT_CONFINED: Final = -1  # no wait status: we failed before the program began; the reason follows
_PIPE_BYTES: Final = 4096  # that any new pipe takes at once
_RESERVE: Final = 8  # processes of our own, which the kernel counts with the program's


@dataclass(frozen=True)
class Confinement:
    """What holds every program of one sandbox."""

    calls: Filter
    limits: SandboxLimits
    counted_memory: bool  # a cgroup holds the memory limit; otherwise each process gets a limit of its own

    def rlimits(self) -> list[tuple[int, int, int]]:
        """(kind, soft, hard); a second lies between the signal that says "too much time" and the one that ends it."""
        limits, processes = self.limits, self.limits.processes + _RESERVE
        found = [
            (resource.RLIMIT_CORE, 0, 0),
            (resource.RLIMIT_NPROC, processes, processes),
            (resource.RLIMIT_CPU, limits.cpu_seconds, limits.cpu_seconds + 1),
            (resource.RLIMIT_FSIZE, limits.disk, limits.disk),
            (resource.RLIMIT_NOFILE, limits.open_files, limits.open_files),
        ]
        # RLIMIT_DATA and not RLIMIT_AS: runtimes such as Go and Node reserve address space that they never use.
        return found if self.counted_memory else [*found, (resource.RLIMIT_DATA, limits.memory, limits.memory)]


@dataclass(frozen=True)
class Program:
    """What is to be started.

    One that is `apart` is alone in a pid namespace of its own, and what it starts is in another below: nothing that it
    starts can name it, and it takes all of that along when it ends.
    """

    argv: Sequence[str]
    cwd: str
    env: Mapping[str, str]
    stdin: bool
    apart: bool
    function: Callable[[], None] | None  # loaded already, to be run without an exec


@dataclass(frozen=True)
class ProgramPipes:
    """Both ends of what a program reads and writes."""

    ours: tuple[int, ...]  # stdin to write (when asked for), stdout to read, stderr to read
    programs: tuple[int, int, int]

    @classmethod
    def make(cls, stdin: bool) -> ProgramPipes:
        """As the sandbox's user, so that a program may open /dev/stdout again."""
        if stdin:
            program_in, our_in = os.pipe2(os.O_CLOEXEC)
        else:
            program_in, our_in = os.open(f"{PROGRAM_ROOT}/dev/null", os.O_RDONLY | os.O_CLOEXEC), -1
        our_out, program_out = os.pipe2(os.O_CLOEXEC)
        our_err, program_err = os.pipe2(os.O_CLOEXEC)
        ours = ((our_in,) if stdin else ()) + (our_out, our_err)
        return cls(ours, (program_in, program_out, program_err))


@dataclass(frozen=True)
class Started:
    """A child of ours, the supervisor or the program itself, and the orchestrator's ends of the program's streams."""

    child: int
    # A supervisor sends the program's wait status here, or nothing if it was killed. A program without one is waited
    # for, and says here only that it could not be confined.
    status: int
    streams: tuple[int, ...]


def start(program: Program, confinement: Confinement, *, supervised: bool) -> Started:
    pipes = ProgramPipes.make(program.stdin)
    status, report = os.pipe2(os.O_CLOEXEC)
    try:
        pid = os.fork() if supervised else _fork_program(program)
    except OSError as error:
        # The sandbox's own limits on processes or memory are used up: the program that wanted more sees it, as from
        # a shell. It must not look like a failure of ours, or programs could bring one about.
        os.write(pipes.programs[2], f"{program.argv[0]}: {error.strerror}\n".encode()[:_PIPE_BYTES])
        os.write(report, STATUS.pack(program_exec.NOT_STARTED << 8))
        for descriptor in (*pipes.programs, report):
            os.close(descriptor)
        return Started(0, status, pipes.ours)
    if pid == 0:
        for descriptor in pipes.ours:
            os.close(descriptor)  # or the program would never see the end of its input
        # The wakeup descriptor is init's: this process would write into init's socket.
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if supervised:
            _supervise(program, pipes.programs, report, confinement)
        _become(program, pipes.programs, report, confinement)
    for descriptor in (*pipes.programs, report):
        os.close(descriptor)
    return Started(pid, status, pipes.ours)


def _fork_program(program: Program) -> int:
    return kernel.clone(kernel.CLONE_NEWPID) if program.apart else os.fork()


def _supervise(program: Program, streams: tuple[int, int, int], report: int, confinement: Confinement) -> NoReturn:
    try:
        # Orphans of the program come to us and not to init, so they are known as this run's.
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        pid = _fork_program(program)
        if pid == 0:
            _become(program, streams, report, confinement)
        for descriptor in streams:
            os.close(descriptor)
        await_end(pid, report)
    finally:
        os._exit(0)


def await_end(program: int, report: int) -> NoReturn:
    """What a supervisor does: reap all that comes back to it, report how the program ended, and wait to be killed.

    Until then whatever the program left behind stays below it, where init finds it.
    """
    try:
        while True:
            pid, status = os.wait()
            if pid == program:
                # A write of four bytes to a pipe is whole or not at all.
                os.write(report, STATUS.pack(status))
                _reap_for_ever()
    finally:
        os._exit(0)


def _become(program: Program, streams: tuple[int, int, int], report: int, confinement: Confinement) -> NoReturn:
    try:
        _confine(streams, confinement, program.apart)
    except BaseException as error:
        # Ours, not the program's: it must not look like an exit code.
        os.write(report, STATUS.pack(NOT_CONFINED) + repr(error).encode()[:1000])
        os._exit(program_exec.NOT_STARTED)
    function = program.function
    call = None if function is None else lambda: _call(function, program.env)
    program_exec.become_program(program.argv, program.cwd, program.env, call)


def _call(function: Callable[[], None], env: Mapping[str, str]) -> NoReturn:
    """Be the program without exec: as that would, leave every descriptor and the old environment behind."""
    code = 1
    try:
        # A function has no exec that would close them: init's socket and other programs' pipes would stay open.
        kernel.call("close_range", 3, 0xFFFFFFFF, 0)
        os.environ.clear()
        os.environ.update(env)
        function()
        # A program may have closed its own output.
        if not sys.stdout.closed:
            sys.stdout.flush()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        # Not `sys.exit`: handlers registered in the launcher must not run in a program.
        os._exit(code)


def _confine(streams: tuple[int, int, int], confinement: Confinement, apart: bool) -> None:
    """Give up everything that the program must not have, for good."""
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    # A session of its own: no terminal of the host, and no signal meant for another group.
    os.setsid()
    _prefer_as_victim()
    for limit in confinement.rlimits():
        program_exec.set_limit(*limit)
    program_exec.restore_signals()
    # chroot needs a capability, so it comes before they are dropped.
    os.chroot(PROGRAM_ROOT)
    os.chdir("/")
    if os.getuid() != INSIDE:
        os.setresgid(INSIDE, INSIDE, INSIDE)
        os.setresuid(INSIDE, INSIDE, INSIDE)
    if apart:
        kernel.call("unshare", kernel.CLONE_NEWPID)  # for those that it starts
    kernel.drop_capabilities()
    # Last: the filter forbids some of the calls above.
    confinement.calls.install()
    if apart and os.fork() == 0:
        _be_process_one()


def _be_process_one() -> NoReturn:
    """The first process of the namespace that an `apart` program's own processes live in: orphans come to it.

    Not the program itself: process 1 of a namespace can be named by those in it, and be slowed down or limited.
    """
    try:
        os.setsid()
        kernel.call("close_range", 0, 0xFFFFFFFF, 0)
        _reap_for_ever()
    finally:
        os._exit(0)


def _reap_for_ever() -> NoReturn:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while True:
        try:
            # Waited for and not ignored: their processor time is then this one's, and the program's at the end.
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        signal.sigwait({signal.SIGCHLD})


def _prefer_as_victim() -> None:
    """When the sandbox is out of memory, its programs go before its init does."""
    # The file is only ours while our memory may be looked at; nobody here has the capabilities to do so yet.
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
    file = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
    os.write(file, b"1000")
    os.close(file)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
