"""Process 1 of a sandbox: starts programs, ends them, answers for files. Ends with its socket, and all with it.

It is the only process in the sandbox that we trust, and the only one with any privilege over its namespaces; no
program can signal it, trace it or read its memory. It speaks `wire` messages with the orchestrator, each answered
under its number. Knows nothing about the host: it was left behind before the first message.
"""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import socket
import stat
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fcntl import ioctl
from typing import Any, Final

from etude.sandbox import process_table
from etude.sandbox.local import kernel, program_start, wire
from etude.sandbox.local.cgroups import oom_kills
from etude.sandbox.local.program_start import Confinement, Program, ProgramPipes
from etude.sandbox.local.rootfs import RootFilesystem
from etude.sandbox.process_table import processes
from etude.sandbox.store.overlay_changes import differences
from etude.sandbox.store.packed_changes import pack

_DEATH_SECONDS: Final = 5.0  # for killed processes to be gone
_WATCH_SECONDS: Final = 0.05  # between two looks at the memory, where no cgroup holds it
_CLOSE_SECONDS: Final = 0.01  # the same once a quarter of it is taken: the rest can be gone in 50 ms


Preloaded = Mapping[str, Callable[[], None]]  # modules that the launcher has loaded, by name: their `main`


@dataclass
class LiveProgram:
    """A program that has not been reported as ended."""

    number: int
    child: int  # of ours: its supervisor, or the program itself; 0 while it is being brought back
    status: int
    started: float
    deadline: float | None
    oom_before: int
    pipes: tuple[int, ...]  # the kernel's numbers of its streams
    supervised: bool = True
    cleared: bool = False  # it has ended, and nothing was left below its supervisor
    oom: bool = False


class Init:
    def __init__(
        self,
        connection: socket.socket,
        files: RootFilesystem,
        confinement: Confinement,
        oom_counter: int | None,
        preloaded: Preloaded,
    ) -> None:
        self._connection = connection
        self._reader = wire.Reader(connection)
        self._files = files
        self._confinement = confinement
        self._oom_counter = oom_counter
        self._preloaded = preloaded
        self._proc_device = os.stat("/proc").st_dev  # noqa: PTH116 - beside its kind
        self._live: dict[int, LiveProgram] = {}  # by the descriptor of its status
        self._unsupervised: LiveProgram | None = None  # one at most, which started when nothing else ran
        self._exited: int | None = None  # the wait status of that one
        self._stopped = False
        self._watch_seconds = _WATCH_SECONDS
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        wake, woken = socket.socketpair()
        wake.setblocking(False)
        woken.setblocking(False)
        self._woken = woken
        self._wake = wake  # kept: the signal module only knows its number
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._poll.register(woken, select.POLLIN)

    def serve(self) -> None:
        """Until the orchestrator's end of the socket is closed, whoever closed it."""
        while True:
            # One thread and one poll: a second thread would make the forks of `program_start.py` unsafe.
            ready = {descriptor for descriptor, _ in self._poll.poll(self._patience())}
            if self._woken.fileno() in ready:
                self._drain_wakeups()
                self._reap()
            # Ends before deadlines: a program that ended just in time is not reported as timed out.
            for descriptor in ready & self._live.keys():
                self._ended(self._live[descriptor])
            # After those: sweeping for them may have reaped it.
            if self._unsupervised is not None and self._exited is not None:
                self._ended(self._unsupervised)
            now = time.monotonic()
            for program in [each for each in self._live.values() if each.deadline is not None]:
                if program.deadline is not None and program.deadline <= now and program.status in self._live:
                    self._end(program, timed_out=True)
            if self._live and not self._confinement.counted_memory:
                self._watch_memory()
            if self._connection.fileno() in ready:
                if not self._reader.fill():
                    return
                while (message := self._reader.take()) is not None:
                    self._answer(*message)

    def _patience(self) -> int | None:
        """Milliseconds until something is due."""
        if self._exited is not None and self._unsupervised is not None:
            return 0  # a sweep has reaped it, and has taken the wakeup
        due = [each.deadline for each in self._live.values() if each.deadline is not None]
        if self._live and not self._confinement.counted_memory:
            due.append(time.monotonic() + self._watch_seconds)
        return max(0, int((min(due) - time.monotonic()) * 1000) + 1) if due else None

    def _answer(self, message: wire.Message, descriptors: tuple[int, ...]) -> None:
        number = message["id"]
        try:
            # An answer is sent in every case: the orchestrator would otherwise wait until its deadline.
            answer, attached = self._do(message, descriptors)
        except OSError as error:
            answer, attached = {"errno": error.errno or errno.EIO, "text": error.strerror or str(error)}, ()
        except Exception as error:
            # The orchestrator reports it as a failure of the machinery, with these words.
            answer, attached = {"failure": f"{type(error).__name__}: {error}"}, ()
        finally:
            wire.close_all(descriptors)
        wire.send(self._connection, {"id": number, **answer}, attached)
        wire.close_all(attached)

    def _do(self, message: wire.Message, descriptors: tuple[int, ...]) -> tuple[dict[str, Any], tuple[int, ...]]:
        match message["do"]:
            case "run":
                return {}, self._run(message)
            case "kill":
                for program in [each for each in self._live.values() if each.number == message["program"]]:
                    self._end(program)
            case "open":
                return {}, (self._open(message["path"]),)
            case "create":
                return {}, (self._create(message["path"], message["mode"]),)
            case "diff":
                return {}, (_in_memory(differences(self._files.upper, self._files.lowers)),)
            case "pack":
                self._pack(descriptors[0])
            case "stop programs":
                return self._stop_for_freeze(), ()
            case "continue programs":
                self._continue()
            case "expect":
                return {}, self._expect(message["id"])
            case "supervised":
                self._live_numbered(message["program"]).child = message["supervisor"]
            case "listen":
                return {}, (_listen(message["port"]),)
            case "reset":
                self._end_all()
                self._files.reset()
            case unknown:
                raise ValueError(f"unknown request {unknown!r}")
        return {}, ()

    # Programs.

    def _run(self, message: wire.Message) -> tuple[int, ...]:
        if self._stopped:
            raise OSError(errno.EBUSY, "the sandbox is being frozen")
        before = self._oom_kills()
        function = self._preloaded[message["preloaded"]] if message["preloaded"] else None
        program = Program(message["argv"], message["cwd"], message["env"], message["stdin"], message["apart"], function)
        # What may stay is told apart from what is started beside it later, and is known to a freeze by its supervisor.
        supervised = bool(self._live) or message["timeout"] is None
        started = program_start.start(program, self._confinement, supervised=supervised)
        now = time.monotonic()
        deadline = None if message["timeout"] is None else now + message["timeout"]
        # Pipes are known by inode: CRIU's images name them so, and `restore` puts the new streams in their place.
        pipes = tuple(os.fstat(each).st_ino for each in started.streams) if supervised else ()
        live = LiveProgram(message["id"], started.child, started.status, now, deadline, before, pipes)
        live.supervised = supervised or not started.child  # of one that could not be forked, the pipe says how it ended
        self._follow(live)
        return started.streams

    def _follow(self, program: LiveProgram) -> None:
        self._live[program.status] = program
        if program.supervised:
            self._poll.register(program.status, select.POLLIN)
        else:
            self._unsupervised, self._exited = program, None

    # Programs that are saved with their memory, and that come back. The launcher runs CRIU (`criu.py`).

    def _stop_for_freeze(self) -> dict[str, Any]:
        """Stop everything, and say which programs there are: their first process and the pipes of their streams."""
        # A run has a deadline, which would pass while its process lies in the store.
        if self._stopped or any(each.deadline is not None for each in self._live.values()):
            return {"refused": "it is being frozen already" if self._stopped else "a run is going on"}
        self._stop()
        self._stopped = True
        everything = processes()
        found = []
        for program in sorted(self._live.values(), key=lambda each: each.number):
            # CRIU dumps a tree by its root. A supervisor with two children has taken in orphans, which belong to no
            # such tree.
            below = [row for row in everything if row.parent == program.child]
            if len(below) != 1 or below[0].dead:
                return self._refuse("a program has just ended, or has left processes that outlived their parent")
            found.append({"pid": below[0].pid, "pipes": program.pipes})
        # /dev/shm is a tmpfs of its own: it is in no overlay, so packed changes do not hold it.
        if self._files.shared_memory():
            return self._refuse("files in /dev/shm are not carried over, and there are some")
        if _sockets_with_a_path():
            return self._refuse("a program has a Unix socket with a path, which CRIU looks for outside of its root")
        # Threads take numbers of the pid namespace too.
        numbers = [int(thread) for row in everything for thread in process_table.threads(row.pid)]
        return {"programs": found, "highest": max(numbers)}

    def _refuse(self, reason: str) -> dict[str, Any]:
        self._continue()
        return {"refused": reason}

    def _continue(self) -> None:
        self._stopped = False
        with suppress(ProcessLookupError):
            os.kill(-1, signal.SIGCONT)

    def _expect(self, number: int) -> tuple[int, ...]:
        """A program that will be brought back: our ends of new streams, its ends, and where its end is reported."""
        streams = ProgramPipes.make(stdin=True)
        status, report = os.pipe2(os.O_CLOEXEC)
        pipes = tuple(os.fstat(each).st_ino for each in streams.ours)
        self._follow(LiveProgram(number, 0, status, time.monotonic(), None, self._oom_kills(), pipes))
        return (*streams.ours, *streams.programs, report)

    def _live_numbered(self, number: int) -> LiveProgram:
        return next(each for each in self._live.values() if each.number == number)

    def _ended(self, program: LiveProgram) -> None:
        """It ended by itself; whatever it left behind ends now."""
        # The report is shorter than PIPE_BUF, so one read gets all of it.
        report = os.read(program.status, 4096)
        status: int | None = program_start.STATUS.unpack_from(report)[0] if report else self._exit_of(program)
        if status == program_start.NOT_CONFINED:
            self._report(program, 0, failure=report[program_start.STATUS.size :].decode(errors="replace"))
        else:
            # Without a status: a program killed its supervisor, which nothing else ends before its time.
            self._report(program, -int(signal.SIGKILL) if status is None else os.waitstatus_to_exitcode(status))

    def _exit_of(self, program: LiveProgram) -> int | None:
        return None if program.supervised else self._exited

    def _end(self, program: LiveProgram, timed_out: bool = False) -> None:
        """It belongs to no live program from here on, and is killed as all that it left."""
        self._report(program, -int(signal.SIGKILL), timed_out)

    def _report(self, program: LiveProgram, code: int, timed_out: bool = False, failure: str = "") -> None:
        # Before the sweep: the time that leftovers take to die is not the program's.
        seconds = time.monotonic() - program.started
        del self._live[program.status]
        if program.supervised:
            self._poll.unregister(program.status)
        else:
            self._unsupervised = None
        os.close(program.status)
        # Leftovers die before the answer goes out: who reads the result may look at the files at once.
        self._sweep(program)
        oom = program.oom or self._oom_kills() > program.oom_before
        done = {"code": code, "timed_out": timed_out, "oom": oom, "seconds": seconds}
        wire.send(
            self._connection,
            {"id": program.number, "failure": failure} if failure else {"id": program.number, "done": done},
        )

    def _end_all(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        for program in list(self._live.values()):
            self._end(program)
        self._sweep()

    def _sweep(self, ended: LiveProgram | None = None) -> None:
        """Kill every process that belongs to no live program, after the end of one; return when they are gone."""
        patience = time.monotonic() + _DEATH_SECONDS
        while True:
            alone = not self._live
            # With programs that stay, strays are looked for one by one. A bomb that outruns this takes them along.
            strays = [-1] if alone or time.monotonic() > patience - _DEATH_SECONDS / 2 else self._strays(ended)
            for pid in strays:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)  # to -1: all but us, in one step that no fork can slip through
            anybody = self._reap()
            if not anybody or (not alone and not strays):
                return
            if time.monotonic() > patience:
                raise RuntimeError(f"processes did not die within {_DEATH_SECONDS:g} s of being killed")
            self._await_death()

    def _strays(self, ended: LiveProgram | None) -> list[int]:
        rows = processes()
        children = process_table.children(rows)
        if ended is not None and ended.supervised and any(row.pid == ended.child and not row.dead for row in rows):
            # All that it left is below its supervisor, which goes last.
            below = process_table.with_descendants(children.get(ended.child, []), children)
            ended.cleared = not below
            return below or [ended.child]
        if ended is not None and ended.cleared and self._unsupervised is not None:
            return []  # other children of ours may be orphans of the one without a supervisor, which lives
        known = {each.child for each in self._live.values()}
        return process_table.with_descendants([pid for pid in children.get(1, []) if pid not in known], children)

    def _reap(self) -> bool:
        """Reap the dead; whether any child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if self._unsupervised is not None and pid == self._unsupervised.child:
                self._exited = status

    def _await_death(self) -> None:
        select.select([self._woken], [], [], 0.02)
        self._drain_wakeups()

    def _drain_wakeups(self) -> None:
        with suppress(BlockingIOError):
            while self._woken.recv(4096):
                pass

    # Memory.

    def _oom_kills(self) -> int:
        return 0 if self._oom_counter is None else oom_kills(os.pread(self._oom_counter, 4096, 0))

    def _watch_memory(self) -> None:
        """Where no cgroup counts: end everything once its processes together hold more than the limit."""
        # Process 1 is this one, which the limit is not about.
        pids = [row.pid for row in processes() if row.pid != 1]
        held = sum(process_table.resident(pid) for pid in pids)
        self._watch_seconds = _CLOSE_SECONDS if held > self._confinement.limits.memory / 4 else _WATCH_SECONDS
        if held <= self._confinement.limits.memory:
            return
        if (
            # Resident memory counts a page once for each process that shares it, so forks of one program look too
            # large.
            sum(process_table.share(pid) for pid in pids) <= self._confinement.limits.memory
        ):  # dearer to ask: pages held in common count once
            return
        for program in self._live.values():
            program.oom = True
        self._end_all()

    # Files. Every path is resolved with the programs' root as its root.

    def _open(self, path: str) -> int:
        # O_NONBLOCK, or opening a pipe that nobody writes to would hang the whole sandbox.
        file = kernel.open_beneath(self._files.root, path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        return self._regular(file, path)

    def _create(self, path: str, mode: int | None) -> int:
        folder, _, name = path.rpartition("/")
        if not name:
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        self._make_folders(folder)
        flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY
        file = self._regular(kernel.open_beneath(self._files.root, path, flags, 0o666 if mode is None else mode), path)
        # Not O_TRUNC: it is only known after the open that this is a regular file.
        os.ftruncate(file, 0)
        if mode is not None:
            # The mode that was asked for, whatever the umask.
            os.fchmod(file, mode & 0o777)
        return file

    def _regular(self, file: int, path: str) -> int:
        """Only files are handed out: a pipe or device would hang or mislead the orchestrator, /proc show it us."""
        status = os.fstat(file)
        if stat.S_ISREG(status.st_mode) and status.st_dev != self._proc_device:
            return file
        os.close(file)
        if stat.S_ISDIR(status.st_mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        raise OSError(errno.EINVAL, "not a regular file", path)

    def _make_folders(self, path: str) -> None:
        try:
            os.close(kernel.open_beneath(self._files.root, path or "/", os.O_PATH | os.O_DIRECTORY))
        except FileNotFoundError:
            above, _, name = path.rstrip("/").rpartition("/")
            self._make_folders(above)
            parent = kernel.open_beneath(self._files.root, above or "/", os.O_PATH | os.O_DIRECTORY)
            try:
                with suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=parent)
            finally:
                os.close(parent)

    def _pack(self, out: int) -> None:
        # A freeze has stopped them already, and lets them go on itself.
        stop = bool(self._live) and not self._stopped
        if stop:
            self._stop()
        try:
            pack(self._files.upper, out)
        finally:
            if stop:
                self._continue()

    def _stop(self) -> None:
        """Stop every program and wait until none is in the middle of a system call."""
        with suppress(ProcessLookupError):
            os.kill(-1, signal.SIGSTOP)
        patience = time.monotonic() + 1.0
        # A stop signal is only noticed when a system call ends: a write that is going on would still change the files.
        while any(not row.still for row in processes() if row.pid != 1):
            if time.monotonic() > patience:
                return
            time.sleep(0.001)


def settle(own_network: bool) -> None:
    """What a new init does for itself, before anything can be asked of it."""
    kernel.call("sethostname", b"sandbox", 7)
    if own_network:
        # The loopback of a new network namespace is down, and servers under test listen on it.
        _loopback_up()
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)  # /proc/1 of the sandbox shows nothing of us
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    # The bounding set can only be emptied with a capability, so it is done before programs start.
    kernel.bar_capabilities()


def serve(
    connection: socket.socket,
    files: RootFilesystem,
    confinement: Confinement,
    oom_counter: int | None,
    preloaded: Preloaded,
) -> None:
    """From a mounted root to the end of the sandbox."""
    init = Init(connection, files, confinement, oom_counter, preloaded)
    wire.send(connection, {"ready": True, "own files": files.own_files, "seconds": time.process_time()})
    init.serve()


def _loopback_up() -> None:
    get_flags, set_flags, up = 0x8913, 0x8914, 0x1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        # With ioctl: no `ip` program needs to be on the host.
        request = ioctl(any_socket, get_flags, struct.pack("16sh14x", b"lo", 0))
        name, flags = struct.unpack("16sh14x", request)
        ioctl(any_socket, set_flags, struct.pack("16sh14x", name, flags | up))


def _listen(port: int) -> int:
    """A listening socket of this network namespace. Who gets it accepts from in here, wherever they are."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    listener.bind(("127.0.0.1", port))
    listener.listen(128)
    return listener.detach()


def _in_memory(value: Any) -> int:
    """A value of any size, as JSON behind a descriptor."""
    # A descriptor instead of a message: the list of a large diff does not fit into one.
    file = os.memfd_create("answer", os.MFD_CLOEXEC)
    with open(os.dup(file), "wb") as stream:  # noqa: PTH123 - a descriptor
        stream.write(json.dumps(value).encode())
    os.lseek(file, 0, os.SEEK_SET)
    return file


def _sockets_with_a_path() -> bool:
    with open("/proc/net/unix", "rb") as file:  # noqa: PTH123 - beside its kind
        # Names that start with @ are abstract ones, which have no path.
        return any(len(fields) > 7 and fields[7][:1] != b"@" for fields in list(map(bytes.split, file))[1:])
