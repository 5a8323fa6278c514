"""The services of an environment, as its sandbox starts them: before anything else, ready once their ports answer.

A service is [name, argv, port]. It has nothing of who starts it: no descriptor, no session, no folder. In an agent's
sandbox this file is a program of its own, given as text: the services are its argument, it says "ready" and stays, as
they end with it. So it needs the standard library alone. Knows nothing of what a service does or who asks it.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, NoReturn

SECONDS: Final = 60.0  # for all of them to listen
NOT_UP: Final = 69  # the exit code of a program of ours when one does not; its last line says why
_LOG: Final = 4096  # bytes of its last words that are looked at


def start(services: Sequence[Sequence[Any]]) -> list[int]:
    """Starts all, and returns their process numbers once all listen; where one does not, this process ends."""
    ends = time.monotonic() + SECONDS
    started = [_launch(list(argv)) for _, argv, _ in services]
    for (name, _, port), (pid, log) in zip(services, started, strict=True):
        while not _listens(port):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
                _give_up(f"the service {name} ended with {code} and never listened on port {port}{_said(log)}")
            if time.monotonic() > ends:
                _give_up(f"the service {name} did not listen on port {port} within {SECONDS:g} s{_said(log)}")
            time.sleep(0.01)
        os.close(log)
    return [pid for pid, _ in started]


def stop(pids: Sequence[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _give_up(why: str) -> NoReturn:
    os.write(2, f"{why}\n".encode())
    os._exit(NOT_UP)


def _launch(argv: list[str]) -> tuple[int, int]:
    log = os.open("/tmp", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)  # noqa: S108 - a file without a name
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            os.chdir("/")
            nothing = os.open(os.devnull, os.O_RDONLY)
            for descriptor, source in enumerate((nothing, log, log)):
                os.dup2(source, descriptor)
            os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
            for number in (signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            os.execve(argv[0], argv, {**os.environ, "PYTHONSAFEPATH": "1"})  # noqa: S606 - no shell is what we want
        except OSError as error:
            os.write(2, f"{argv[0]}: {error.strerror}\n".encode())
        finally:
            os._exit(127)
    return pid, log


def _listens(port: int) -> bool:
    with socket.socket() as client:
        client.settimeout(1.0)
        return client.connect_ex(("127.0.0.1", port)) == 0


def _said(log: int) -> str:
    size = os.fstat(log).st_size
    lines = os.pread(log, _LOG, max(0, size - _LOG)).decode(errors="replace").strip().splitlines()
    return f": {ascii(lines[-1])[1:-1][:200]}" if lines else ""


def main() -> None:
    start(json.loads(sys.argv[1]))
    print("ready", flush=True)
    with suppress(ChildProcessError):
        while True:
            os.wait()


if __name__ == "__main__":
    main()
