"""A process of ours beside this one: started, spoken to over a socket, ended, and never left behind.

Both sides are here. The parent starts a module with `start` and gets a `Child` with its log; the child calls
`end_with` first, so that it ends with its parent in whatever way that ends, and removes what it held on disk. What the
two say to each other over the socket is not known here, nor what the child computes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import os
import select
import shutil
import signal
import socket as sockets
import sys
import tempfile
import threading
import time
import weakref
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from etude.core.errors import EtudeError
from etude.core.tcp_address import FILE, Announced, TcpAddress, listen_at

LOG_LINES = 30  # of a dead child's log, shown in the error
LOOK = 0.5  # seconds between two looks at the parent where the kernel cannot report its end
LACK_OF_MEMORY = (
    " (it was killed; if nobody did that, the system had no memory left: free some, or ask for less at once)"
)
_PREFIX = "etude-child-"


class Child:
    """A process that we started, where its log lies, and what it said when it was ready.

    `folder` is its own and lives as long as it does; `leaves` are other files that it may leave when it is killed.
    """

    def __init__(self, name: str, process: Process, log: Path, folder: Folder, leaves: Sequence[Path] = ()) -> None:
        self.name, self.process, self.log, self.folder = name, process, log, folder
        self.said = ""
        # also at the end of this process, when nobody called `close`
        self._sweep = weakref.finalize(self, _sweep, os.getpid(), folder, tuple(leaves))

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def ended(self) -> bool:
        return self.process.returncode is not None

    async def wait(self) -> None:
        await self.process.wait()

    async def last_words(self) -> str | None:
        """How it ended and the end of its log; None while it lives."""
        try:
            code = await asyncio.wait_for(self.process.wait(), timeout=5)
        except TimeoutError:
            return None
        why = LACK_OF_MEMORY if code == -signal.SIGKILL else ""
        return f"the {self.name} process ended with code {code}{why}; {self.log_end()}"

    def log_end(self) -> str:
        return log_end(self.log)

    async def close(self, seconds: float) -> None:
        """Asks it to stop, waits for what it is doing, and kills it if that takes too long."""
        try:
            if self.process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    self.process.terminate()
                try:
                    await asyncio.wait_for(self.process.wait(), timeout=seconds)
                except TimeoutError:
                    with contextlib.suppress(ProcessLookupError):
                        self.process.kill()
                    await self.process.wait()
        finally:
            self._sweep()


def log_end(log: Path) -> str:
    """The last lines of a program's log, for an error."""
    try:
        lines = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
    except OSError:
        return f"its log {log} is gone"
    return f"the end of its log {log}:\n" + ("\n".join(f"    {line}" for line in lines) or "    (nothing)")


class Folder:
    """A new temporary folder for a child, locked while this process lives: unlocked ones are a dead process's."""

    def __init__(self, name: str) -> None:
        _remove_abandoned()
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{name}-", dir=_place()))
            # Until it is locked, another process that starts a child may take it for abandoned and remove it.
            with contextlib.suppress(FileNotFoundError):
                self._lock = os.open(self.path, os.O_RDONLY)
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if self.path.exists():
                        break
                os.close(self._lock)

    @property
    def socket(self) -> Path:
        return self.path / "socket"

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


async def start(
    name: str,
    module: str,
    arguments: Sequence[str],
    *,
    ready: str,
    log: Path | None = None,
    deadline: float = 120.0,
    leaves: Sequence[Path] = (),
    socket: Path | None = None,
    announced: Announced | None = None,
    lease: float = 0.0,
    environment: Mapping[str, str] | None = None,
    place: Path | None = None,
    on_start: Callable[[Child], None] | None = None,
) -> Child:
    """Runs `python -m module`, which gets a socket of its own and must print a line that starts with `ready`.

    The rest of that line is `said` of the child. Its errors go to `log`, or to a file that is removed with it. It has
    a session of its own: a Ctrl-C in the terminal is for this process, which decides when the child ends. With
    `socket`, it listens there: one that is started again has the same address. With `announced`, it listens on TCP and
    writes its address where that says. With a `lease`, it ends unless somebody writes to its standard input every so
    many seconds. It has the variables of `environment` and the working directory `place`. `on_start`
    hears of the process before it is ready.
    """
    try:
        folder = Folder(name)
    except OSError as refused:
        raise EtudeError(f"the {name} process cannot be started without a temporary folder: {refused}") from None
    log = log or folder.path / f"{name}.log"
    own = ["--socket", str(socket or folder.socket), "--parent", str(os.getpid()), "--folder", str(folder.path)]
    if announced is not None:
        own += ["--announce", str(announced.path), "--host", announced.host, "--incarnation", announced.incarnation]
    if lease:
        own += ["--lease", str(lease)]
    try:
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", module, *arguments, *own),
                stdin=PIPE if lease else DEVNULL,
                stdout=PIPE,
                stderr=output,
                start_new_session=True,
                env=None if environment is None else {**os.environ, **environment},
                cwd=place,
            )
    except BaseException as failed:
        folder.remove()
        if isinstance(failed, OSError):
            raise EtudeError(f"the {name} process cannot be started with its log at {log}: {failed}") from None
        raise
    child = Child(name, process, log, folder, leaves)
    if on_start is not None:
        on_start(child)
    try:
        assert process.stdout is not None
        line = (await asyncio.wait_for(process.stdout.readline(), timeout=deadline)).decode(errors="replace")
        if not line.startswith(ready):
            said = await child.last_words()
            raise EtudeError(said or f"the {name} process said {line!r} where {ready!r} belongs")
    except BaseException as failed:
        # Read now: `close` removes the folder that the log may lie in.
        said = child.log_end()
        await child.close(0)
        if isinstance(failed, TimeoutError):
            raise EtudeError(f"the {name} process was not ready within {deadline:g} s; {said}") from None
        raise
    child.said = line.removeprefix(ready).strip()
    return child


# In the child


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that `start` adds."""
    parser.add_argument("--socket", type=Path, help="a local socket to listen on")
    parser.add_argument("--parent", type=int, help="end when this process, the parent, ends")
    parser.add_argument("--folder", type=Path, help="removed when the parent ends")
    parser.add_argument("--announce", type=Path, help="listen on TCP, and write the address to this file")
    parser.add_argument("--host", default="127.0.0.1", help="address of this machine to listen on")
    parser.add_argument("--incarnation", default="0.0", help="which of the processes of its name this is")
    parser.add_argument("--lease", type=float, default=0.0, help="end after so many seconds without input")


class Listening:
    """Where a child takes connections: its local socket, or TCP where it was told to announce that."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.address: TcpAddress | None = None
        if options.announce is not None:
            self.socket, self.address = listen_at(Announced(options.announce, options.host, options.incarnation))
            self.name = f"{FILE}{options.announce}"
        else:
            self.socket, self.name = listen(options.socket), f"unix:{options.socket}"


def end_with(options: argparse.Namespace, leaves: Sequence[Path | None]) -> None:
    """Ends this process with its parent, and when its lease is not renewed; removes `leaves` then."""
    there = [path for path in leaves if path is not None]
    if options.parent is not None:
        die_with(options.parent, there)
    if options.lease:
        keep_lease(options.lease, there)


def keep_lease(seconds: float, leaves: Sequence[Path]) -> None:
    """Ends this process when nothing has come from its standard input for so long, or that is closed.

    Its parent may live and have lost its right to it: a supervisor on a host that is cut off does not renew.
    """

    def watch() -> None:
        while select.select([0], [], [], seconds)[0] and os.read(0, 4096):
            pass
        print(f"the lease of this process was not renewed for {seconds:g} s; it ends", file=sys.stderr, flush=True)
        remove(leaves)
        os._exit(1)

    threading.Thread(target=watch, name="lease", daemon=True).start()


def die_with(parent: int, leaves: Sequence[Path]) -> None:
    """Ends this process when its parent ends, however that happens, and removes `leaves` (files and folders) then.

    A thread waits for it. A signal from the kernel would come more surely, but SIGKILL leaves files behind, and any
    other waits until Python's main thread comes out of whatever it computes.
    """

    def watch() -> None:
        _wait_for_end(parent)
        remove(leaves)
        # Not sys.exit: this is not the main thread, and that one may be in the middle of a long computation.
        os._exit(1)

    threading.Thread(target=watch, name="parent watch", daemon=True).start()


def _wait_for_end(parent: int) -> None:
    if hasattr(os, "pidfd_open"):
        with contextlib.suppress(OSError):  # gone already, or a kernel without it
            handle = os.pidfd_open(parent)
            if os.getppid() == parent:  # and not another one that got its number
                select.select([handle], [], [])
            return
    while os.getppid() == parent:
        time.sleep(LOOK)


def listen(path: Path) -> sockets.socket:
    """A listening local socket that this user alone can open."""
    listener = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
    # By umask: with a chmod afterwards there would be a moment in which others could connect.
    before = os.umask(0o177)
    try:
        if path.is_socket():  # what a process that was killed left behind
            path.unlink()
        listener.bind(str(path))
        listener.listen(1024)
    except OSError as refused:
        listener.close()
        raise EtudeError(f"cannot listen on {path} ({refused}); choose another place") from None
    finally:
        os.umask(before)
    return listener


def remove(paths: Sequence[Path]) -> None:
    """Files and folders, whether they are there or not."""
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.unlink()


def _place() -> Path:
    """Where temporary folders go, unless that is too deep: the path of a socket has at most 107 bytes, 103 on macOS."""
    place = Path(tempfile.gettempdir())
    # The longest is that of an engine which was started again: 31 bytes of folder, then "/engine-99.1000.frames".
    return place if len(os.fsencode(place)) <= 50 else Path("/tmp")  # noqa: S108 (each folder made in it is ours alone)


def _sweep(owner: int, folder: Folder, leaves: tuple[Path, ...]) -> None:
    if os.getpid() == owner:  # a fork that ends must not take them from us
        remove(leaves)
        folder.remove()


def _remove_abandoned() -> None:
    """Folders of processes that were killed together with their children, so that nobody was left to remove them."""
    for path in _place().glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            # Another user's folder, or a link to one, is not ours to remove.
            if path.is_symlink() or path.stat().st_uid != os.getuid():
                continue
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                # A folder whose lock cannot be taken belongs to a living process.
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(handle)
