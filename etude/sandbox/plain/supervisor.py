"""The supervisor of one program in the plain backend: limits it, waits for it, and ends what it started.

A script of its own process, without anything of Etude's: `python supervise.py CONTROL REPORT`, with the program as
JSON on CONTROL. When CONTROL is closed at the other end, by wish or because the orchestrator died, everything ends.
The program's wait status goes to REPORT. On Linux orphans come back to the supervisor and are ended too; elsewhere
only the program's process group is.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path


def main(control: int, report: int) -> None:
    request = json.loads(_read_request(control))
    linux = sys.platform.startswith("linux")
    if linux:
        set_child_subreaper = 36
        ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    program = os.fork()
    if program == 0:
        _become(request)
    status = 9  # killed, unless it ended by itself
    while True:
        ready, _, _ = select.select([control, wake], [], [])
        if control in ready:
            break
        os.read(wake, 4096)
        ended, found = os.waitpid(program, os.WNOHANG)
        if ended:
            status = found
            break
    _end_all(program, linux)
    with suppress(BrokenPipeError):
        os.write(report, json.dumps(status).encode())


def _read_request(control: int) -> bytes:
    text = b""
    while not text.endswith(b"\n"):
        block = os.read(control, 1 << 16)
        if not block:
            os._exit(1)
        text += block
    return text


def _become(request: dict[str, object]) -> None:
    argv, env, cwd = request["argv"], request["env"], request["cwd"]
    limits, code = request["limits"], 126
    try:
        if not isinstance(argv, list) or not isinstance(env, dict) or not isinstance(limits, list):
            raise ValueError("not a request")
        os.setsid()
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        for name, wanted in limits:
            kind = getattr(resource, name, None)
            if kind is not None:
                _, highest = resource.getrlimit(kind)
                value = wanted if highest == resource.RLIM_INFINITY else min(wanted, highest)
                with suppress(ValueError, OSError):  # not every system knows every limit
                    resource.setrlimit(kind, (value, value))
        what = str(cwd)
        os.chdir(what)
        what = argv[0]
        os.execvpe(argv[0], argv, env)  # noqa: S606 - no shell is what we want
    except OSError as error:
        if what != cwd and isinstance(error, FileNotFoundError | NotADirectoryError):
            code = 127
        os.write(2, os.fsencode(f"{what}: {error.strerror}\n"))
    except ValueError as error:
        os.write(2, os.fsencode(f"{error}\n"))
    finally:
        os._exit(code)


def _end_all(program: int, linux: bool) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(program, signal.SIGKILL)
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline:
        for pid in _descendants() if linux else ():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.002)


def _descendants() -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                parent = int((entry / "stat").read_bytes().rpartition(b")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found, waiting = [], list(children.get(os.getpid(), ()))
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting += children.get(pid, ())
    return found


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
