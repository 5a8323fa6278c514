"""The supervisor of one program in the plain backend: limits it, waits for it, and ends what it started.

A process of its own, with the program as JSON on `control`. When `control` is closed at the other end, by wish or
because the orchestrator died, everything ends. The program's wait status goes to `report`. On Linux orphans come back
to the supervisor and are ended too; elsewhere only the program's process group is.
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
from typing import Any, Final, NoReturn

from etude.sandbox import process_table, program_exec

_PR_SET_CHILD_SUBREAPER: Final = 36
_DEATH_SECONDS: Final = 5.0  # for killed processes to be gone
_LINUX: Final = sys.platform.startswith("linux")


def main(control: int, report: int) -> None:
    request = json.loads(_read_line(control))
    if _LINUX:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    program = os.fork()
    if program == 0:
        _become(request)
    status = int(signal.SIGKILL)  # unless it ended by itself
    while True:
        ready, _, _ = select.select([control, wake], [], [])
        if control in ready:
            break
        os.read(wake, 4096)
        ended, found = os.waitpid(program, os.WNOHANG)
        if ended:
            status = found
            break
    _end_all(program)
    with suppress(BrokenPipeError):
        os.write(report, json.dumps(status).encode())


def _read_line(control: int) -> bytes:
    text = b""
    while not text.endswith(b"\n"):
        block = os.read(control, 1 << 16)
        if not block:
            os._exit(1)
        text += block
    return text


def _become(request: dict[str, Any]) -> NoReturn:
    try:
        os.setsid()
        program_exec.restore_signals()
        for name, value in request["limits"]:
            with suppress(AttributeError, ValueError, OSError):  # not every system knows every limit
                program_exec.set_limit(getattr(resource, name), value, value)
        program_exec.become_program(request["argv"], request["cwd"], request["env"])
    finally:
        os._exit(program_exec.NOT_STARTED)


def _end_all(program: int) -> None:
    # The group first: it is one call that a fork cannot outrun for its members.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(program, signal.SIGKILL)
    deadline = time.monotonic() + _DEATH_SECONDS
    while time.monotonic() < deadline:
        # Again in each round: what was killed may have started others before.
        for pid in _descendants() if _LINUX else ():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.002)


def _descendants() -> list[int]:
    children = process_table.children(process_table.processes())
    return process_table.with_descendants(children.get(os.getpid(), ()), children)
