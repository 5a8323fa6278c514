"""The one process that reports a grade: it forks a test process and never loads the agent's code.

    descriptor 0   header, the test process's part, and last of all the nonce
    descriptor 1   the report, which starts with the nonce

Only the header is read before the test process runs. That reads its own part, after which descriptor 0 is closed to it
and to all that come from it; the nonce is read when they are all dead. So no process that could run the agent's code
has ever held the nonce. Another part of the plan runs in another sandbox, where nothing of this one is left. In a warm
start this is process 1 of its own pid namespace: nothing in there can signal it, and everything in there ends with it.
"""

# Plain strings as paths: a warm process should hold no more modules than it needs.
# ruff: noqa: PTH103, PTH108, PTH109, PTH118, PTH120
from __future__ import annotations

import base64
import ctypes
import importlib
import importlib.machinery
import json
import os
import signal
import time
from contextlib import suppress
from typing import Any, Final

from etude.tasks.sandbox_side import interpreter_warmup, test_process
from etude.tasks.sandbox_side import start_services as services
from etude.tasks.sandbox_side.child_output import listen

LONGEST: Final = 4 << 20  # bytes that a test process may write
_PR_SET_DUMPABLE: Final = 4
_LIBC: Final = ctypes.CDLL(None)


def prepare() -> None:
    """What is the same for every job, done once by the process that warm starts are forked from."""
    test_process.isolate(())
    # Looks for what is nowhere, and so lists the standard library's folders: a worker needs them for its first import.
    importlib.machinery.PathFinder.find_spec("no module has this name")
    interpreter_warmup.warm_up()


def main() -> None:
    """Grades the job on descriptor 0. Any failure of ours ends without a report, which is never a score."""
    _LIBC.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)  # nobody else may look into this process or its children
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)  # as every interpreter starts: an error says it
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # sent to a test process it ends it, like any other signal
    os.environ.pop("PYTHONHASHSEED", None)  # it has done its work; warm or cold looks the same
    os.umask(0o022)
    header = json.loads(test_process.read_part(0))
    test_process.isolate(header["packages"])
    if header["suite"] == "pytest":
        importlib.import_module("pytest")  # before the fork
    header["paths"] = [os.path.normpath(os.path.join(os.getcwd(), entry)) for entry in header["entries"]]
    started = time.monotonic()
    services.start(header["services"])  # before a file of the agent's is there
    serving = time.monotonic() - started
    refused = lay_out(header["files"])
    deadline = time.monotonic() + header["seconds"]
    report = _run_tests(header, deadline)
    _write(1, _rest(0) + json.dumps({"refused": refused, "serving": serving, "tests": report}).encode())


def lay_out(files: dict[str, list[Any] | None]) -> list[list[str]]:
    """Puts the agent's files into the workspace, which is the current folder; what could not be, and why."""
    refused = []
    # A file may lie where a deleted folder was.
    for path, content in sorted(files.items(), key=lambda entry: entry[1] is not None):  # deletions first
        try:
            if content is None:
                os.unlink(path)
                continue
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            # O_NOFOLLOW: a link of the pristine workspace must not carry the write elsewhere.
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644)
            _write(file, base64.b64decode(content[0]))
            os.fchmod(file, 0o755 if content[1] else 0o644)
            os.close(file)
        except OSError as error:
            refused.append([path, error.strerror or str(error)])
    return refused


def _run_tests(header: dict[str, Any], deadline: float) -> dict[str, Any]:
    started = time.monotonic()
    pipe, output = os.pipe()
    pid = os.fork()
    if pid == 0:
        # A group of its own, which `_end` kills where this is not process 1.
        os.setsid()
        test_process.run_tests(header, output)
    os.close(output)
    handle = os.pidfd_open(pid)
    try:
        lines, cut = listen(pipe, handle, deadline, LONGEST)
    finally:
        # Everything is dead before the nonce is read below.
        _end(pid)
        os.close(pipe)
        os.close(handle)
    status, cpu_seconds = _wait(pid)
    return {
        "lines": lines.decode("latin-1"),  # what a test process of ours writes is ASCII
        "ended": cut or test_process.describe(status),
        "seconds": time.monotonic() - started,
        "cpu_seconds": cpu_seconds,
    }


def _end(pid: int) -> None:
    """The test process and all that it left behind."""
    # As process 1, one call reaches all, and nothing can slip through by forking.
    if os.getpid() == 1:
        with suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        return
    for target in (os.killpg, os.kill):
        with suppress(ProcessLookupError):
            target(pid, signal.SIGKILL)


def _wait(pid: int) -> tuple[int, float]:
    """Its status; its processor time and, as process 1, that of everything it left behind."""
    _, status, usage = os.wait4(pid, 0)
    seconds = usage.ru_utime + usage.ru_stime
    if os.getpid() == 1:
        with suppress(ChildProcessError):
            while True:
                _, _, usage = os.wait4(-1, 0)
                seconds += usage.ru_utime + usage.ru_stime
    return status, seconds


def _rest(descriptor: int) -> bytes:
    parts = []
    while part := os.read(descriptor, 1 << 16):
        parts.append(part)
    return b"".join(parts)


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
