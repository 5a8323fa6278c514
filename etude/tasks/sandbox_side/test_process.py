"""One run of tests: a child of `grade_process` that reads its own part of the job, runs it and reports each outcome.

Either the agent's code runs apart, in a worker that was forked before the first test was read, and this process only
asks it; or together with the tests in this process, where nothing it holds is safe: it therefore holds no secret but
the mark of its lines, and cannot distinguish a real test from a mutated one. Knows one suite and the chosen tests.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import random
import resource
import site
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Final, NoReturn

from etude.tasks.sandbox_side import node_tests as node
from etude.tasks.sandbox_side import pytest_grading as pytests
from etude.tasks.sandbox_side import repository_suite as repository
from etude.tasks.sandbox_side import unittest_grading as unittests
from etude.tasks.sandbox_side.code_process import Worker
from etude.tasks.sandbox_side.recorder import Recorder
from etude.tasks.sandbox_side.remote_objects import Link, RemoteFinder
from etude.tasks.sandbox_side.tests_in_memory import MemoryFinder
from etude.tasks.sandbox_side.unittest_grading import Report
from etude.tasks.sandbox_side.watcher import Watcher

_PR_SET_DUMPABLE: Final = 4
LENGTH: Final = struct.Struct("=Q")
STANDARD: Final = os.path.dirname(os.__file__)  # noqa: PTH120 - before the path is ours


def run_tests(header: dict[str, Any], output: int) -> NoReturn:
    """In a fresh child: run the next part of the job on descriptor 0, report its outcomes, and end.

    `ready` is reported before the agent's code can have run here, `done` after everything: without the first, or in a
    process of our own alone without the second, it was us who failed.
    """
    mark = ""
    try:
        # Before anything else: time that is used from here on counts.
        _limit(header["cpu_seconds"])
        # Forked before the tests are read: nothing of them is in its memory.
        worker, link = _fork_worker(header) if header["apart"] else (0, None)
        job = json.loads(read_part(0))
        mark = job["mark"]
        # A number that nobody would try; close-on-exec, so that no program inherits it.
        output = fcntl.fcntl(output, fcntl.F_DUPFD_CLOEXEC, random.SystemRandom().randrange(100, 900))
        # The job's descriptor goes too: the nonce is still in that pipe.
        close_all_but(output, *([link.fileno()] if link else []))
        silence()
        report = _reporter(output, mark)
        watcher = _watcher(header["watch"], report) if header["watch"] else None
        if watcher is not None:
            report = _watched(report, watcher)
        if header["suite"] == "repository":
            _run_repository(header, job, report)
        elif header["suite"] == "node":
            _run_node(header, job, report, lambda: write_line(output, ["", "", "forged", ""]))
        else:
            _run_in_memory(header, job, report, worker, link)
        if watcher is not None:
            watcher.finish()
        report("", "done", "")
    except BaseException:
        # Also for what the tested code raised through us: the verdict tells the two apart by `ready`.
        write_line(output, [mark, "", "broken", traceback.format_exc()[-2000:]])
    finally:
        # No exit handler of the tested code runs.
        os._exit(0)


def _reporter(output: int, mark: str) -> Report:
    write = write_line  # held here: the tested code may replace what this module has

    def report(name: str, status: str, text: str) -> None:
        write(output, [mark, name, status, text])

    return report


def _watcher(watch: dict[str, Any], report: Report) -> Watcher:
    root = os.getcwd()  # noqa: PTH109 - as modules spell their files

    def tell(kind: str, what: str, where: str) -> None:
        report("", "watched", json.dumps([kind, what, where.removeprefix(f"{root}/")]))

    functions = {f"{root}/{path}": names for path, names in watch["functions"].items()}
    return Watcher(frozenset(f"{root}/{path}" for path in watch["files"]), functions, watch["tests"], tell)


def _watched(report: Report, watcher: Watcher) -> Report:
    """Starts to watch when the tests are about to be loaded, and looks at the framework after each of them."""

    def watched(name: str, status: str, text: str) -> None:
        report(name, status, text)
        if status == "ready":
            watcher.start()
        elif name:
            watcher.after_test()

    return watched


def _end_of(worker: int) -> str:
    """How a process ended whose socket has closed. The agent's code may have closed it and live on."""
    for _ in range(200):
        pid, status = os.waitpid(worker, os.WNOHANG)
        if pid:
            return describe(status)
        time.sleep(0.005)
    return "it closed its socket"


def _run_in_memory(
    header: dict[str, Any], job: dict[str, Any], report: Report, worker: int, link: socket.socket | None
) -> None:
    """Tests from memory; the tested code is in this process, or at the other end of the link."""
    sys.meta_path.insert(0, MemoryFinder(job["tests"]))
    remote = Link(link, header["roots"], header["plain"]) if link else None
    if remote is None:
        add_path(header["paths"])
    else:
        sys.meta_path.insert(1, RemoteFinder(remote))
    if header["suite"] == "pytest":
        # pytest reports `ready` itself, after it has loaded and before it collects.
        pytests.run(job["run"], job["tests"], report)
    else:
        report("", "ready", "")
        unittests.run(job["run"], report)
    if remote is not None and remote.gone:
        report("", "worker", _end_of(worker))


def _run_repository(header: dict[str, Any], job: dict[str, Any], report: Report) -> None:
    """Tests of a repository, as its environment runs them; the tested code is in this process."""
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)  # as tests know their process: it holds no secret
    root = os.getcwd()  # noqa: PTH109 - as modules spell their files
    repository.keep(root, job["tests"])
    if header["recorded"]:
        report = with_records(report)
    report("", "ready", "")
    site.main()  # the environment's packages; and what they load on the way, which may be the agent's
    add_workspace(header["paths"])
    paths = list(dict.fromkeys(name.partition("::")[0] for name in job["run"]))
    repository.run(root, paths, header["options"], report, chosen=frozenset(job["run"]), order=header["order"])


def with_records(report: Report) -> Report:
    """Reports what each test recorded before it reports how the test ended."""
    recorder = Recorder()
    recorder.install()

    def recorded(name: str, status: str, text: str) -> None:
        if name:
            report(name, "recorded", recorder.take())
        report(name, status, text)

    return recorded


def _run_node(header: dict[str, Any], job: dict[str, Any], report: Report, mark_forged: Callable[[], None]) -> None:
    """Tests of a JavaScript repository: in processes of their own with the tested code, and none of it in this one."""
    for path, text in job["tests"].items():
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)  # noqa: PTH103, PTH120
        with open(path, "w", encoding="utf-8", newline="") as file:  # noqa: PTH123
            file.write(text)
    report("", "ready", "")
    node.run_chosen(header, job, report, mark_forged)


def write_line(descriptor: int, line: Sequence[str]) -> None:
    data = memoryview(json.dumps(line).encode() + b"\n")
    while data:
        data = data[os.write(descriptor, data) :]


def _fork_worker(header: dict[str, Any]) -> tuple[int, socket.socket]:
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            ours.close()
            close_all_but(theirs.fileno())
            silence()
            add_path(header["paths"])
            Worker(theirs).serve()
        finally:
            os._exit(0)
    theirs.close()
    return pid, ours


# A process of our own on its way to run somebody else's code


def isolate(packages: Sequence[str]) -> None:
    """What is imported from here on is the standard library's, then `packages`'; nothing of ours, no main program."""
    # No entry for the current folder: a file called json.py in the workspace would be ours otherwise.
    sys.path[:] = [STANDARD, f"{STANDARD}/lib-dynload", *packages]
    for folder in sys.path_importer_cache.keys() - set(sys.path):
        del sys.path_importer_cache[folder]
    # Caches would be written into the workspace, where they are a change.
    sys.dont_write_bytecode = True
    forget_ourselves()


def forget_ourselves() -> None:
    """Whoever imports a module of our name from here on means another one."""
    if "etude" not in sys.modules:  # forgotten before the fork
        return
    for name in [name for name in sys.modules if name.partition(".")[0] == "etude"]:
        del sys.modules[name]
    sys.modules["__main__"] = ModuleType("__main__")
    sys.argv[:] = [""]


def add_path(paths: Sequence[str]) -> None:
    """After the standard library, so that no file of the workspace takes the place of one of its modules."""
    sys.path[2:2] = paths


def add_workspace(paths: Sequence[str]) -> None:
    """Last of all: what a repository's environment has installed is never taken from the workspace."""
    sys.path += [path for path in dict.fromkeys(paths) if path not in sys.path]


def silence() -> None:
    """What the tested code reads and prints is nothing to anybody."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    if nothing > 2:
        os.close(nothing)


def close_all_but(*keep: int) -> None:
    """Standard streams stay; every other descriptor goes."""
    at = 3
    for descriptor in sorted(keep):
        os.closerange(at, descriptor)
        at = descriptor + 1
    os.closerange(at, max(at, resource.getrlimit(resource.RLIMIT_NOFILE)[0]))


def _limit(cpu_seconds: int) -> None:
    soft, hard = cpu_seconds, cpu_seconds + 1
    highest = resource.getrlimit(resource.RLIMIT_CPU)[1]
    if highest != resource.RLIM_INFINITY:
        soft, hard = min(soft, highest), min(hard, highest)
    resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


def read_part(descriptor: int) -> bytes:
    """One part of the job, and not a byte of the next one."""
    (length,) = LENGTH.unpack(read_exactly(descriptor, LENGTH.size))
    return read_exactly(descriptor, length)


def read_exactly(descriptor: int, count: int) -> bytes:
    parts = []
    while count:
        part = os.read(descriptor, min(count, 1 << 20))
        if not part:
            raise EOFError("the job ended early")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def describe(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"signal {-code}" if code < 0 else f"exit {code}"
