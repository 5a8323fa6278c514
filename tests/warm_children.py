"""Children that have torch already: a process that imported it once is copied, where a test starts many.

Importing torch takes 1.7 s of a processor in every child, and a test of the loop starts two to eight of them. So in all
tests `python -m MODULE ...` of MODULES is not a new interpreter: another process, which has imported torch and nothing
of a test's, is copied, takes the command's streams, folder and variables, and runs the module as `python -m` would. The
copy is a child of the process that asked, with its arguments in `/proc`, so waiting for it, killing it and finding it
are as ever. Within `warm_children` so is `python -m etude ...`, within `warm_programs` also `python -c CODE` and
`python FILE.py`; their children are copies too, of one that each keeps from before it began. Whatever is started in
another way begins from nothing, as it does outside of tests.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import pytest

COMMAND = "etude"
MODULES = ("etude.serve.server", "etude.rl.learner.process", "etude.learn.parallel.launch")
PRELOADED = (
    *("torch._dynamo", "torch.distributed.fsdp", "aiohttp.web"),
    *(
        "etude.engine.thread",
        "etude.learn.parallel.rank_learner",
        "etude.learn.lora",
        *("etude.model.weight_transfer.publish", "etude.serve.openai.app", "etude.cli.main"),
    ),
)
ROOM = 1 << 14  # bytes for the arguments of a copy
_CLONE_PARENT = 0x8000
_SYS_CLONE = {"x86_64": 56, "aarch64": 220} if sys.platform == "linux" else {}  # elsewhere nothing is copied


class WarmProcess:
    """The process that is copied, from the side of those that ask for a copy."""

    def __init__(self, line: socket.socket | None = None, programs: bool = False) -> None:
        self.commands = line is not None  # whether `-m etude` is a copy as well
        self.programs = programs  # and `-c CODE` and files
        self._turn = threading.Lock()
        self._really = subprocess._fork_exec  # type: ignore[attr-defined]
        self._line = line
        self._process: subprocess.Popen[bytes] | None = None

    def _start(self) -> socket.socket:
        line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, str(Path(__file__)), str(theirs.fileno()), "." * ROOM]
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment)
        return line

    def fork_exec(
        self,
        arguments: Sequence[str | bytes],
        executables: Any,
        close: Any,
        kept: Sequence[int],
        folder: Any,
        variables: Sequence[bytes] | None,
        *rest: Any,
    ) -> int:
        """What subprocess calls to start a program, with its order of arguments."""
        words = [os.fsdecode(word) for word in arguments]
        if not self._copies(words) or os.uname().machine not in _SYS_CLONE:
            pid: int = self._really(arguments, executables, close, kept, folder, variables, *rest)
            return pid
        streams = [given if given >= 0 else own for own, given in enumerate((rest[0], rest[3], rest[5]))]
        failing, session = rest[7], rest[9]  # the pipe that tells of a failed exec: a copy never has it
        others = [number for number in kept if number != failing]
        if variables is None:
            variables = [os.fsencode(f"{name}={value}") for name, value in os.environ.items()]
        asked = {
            "words": words,
            "folder": os.fsdecode(folder) if folder else os.getcwd(),  # noqa: PTH109 - what a child would inherit
            "variables": [os.fsdecode(each) for each in variables],
            "others": others,
            "session": bool(session),
            "programs": self.programs,
        }
        with self._turn:
            self._line = self._line or self._start()
            socket.send_fds(self._line, [json.dumps(asked).encode()], [*streams, *others])
            return int(self._line.recv(64))

    def _copies(self, words: list[str]) -> bool:
        if words[0] != sys.executable or len(words) < 2:
            return False
        if words[1] == "-m":
            return words[2] in MODULES or (self.commands and words[2] == COMMAND)
        # The process that is copied is a program, too.
        return self.programs and (words[1] == "-c" or words[1].endswith(".py")) and words[1] != str(Path(__file__))

    def close(self) -> None:
        if self._line is not None and self._process is not None:
            self._line.close()
            self._process.wait()


@pytest.fixture(scope="session")
def warm_process() -> Iterator[WarmProcess]:
    """One for all tests of this process, started by the first child that is asked for."""
    process = WarmProcess()
    yield process
    process.close()


@pytest.fixture(scope="module", autouse=True)
def _warm_modules(warm_process: WarmProcess) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "_fork_exec", warm_process.fork_exec)
        yield


@pytest.fixture(scope="module")
def warm_children(warm_process: WarmProcess) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warm_process, "commands", True)
        yield


@pytest.fixture(scope="module")
def warm_programs(warm_process: WarmProcess, warm_children: None) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warm_process, "programs", True)
        yield


@pytest.fixture
def cold_children(warm_process: WarmProcess) -> Iterator[None]:
    """New interpreters for one test: one that changes what they load, by a `sitecustomize` for instance."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "_fork_exec", warm_process._really)
        yield


def serve(line: socket.socket) -> None:
    """The process itself: a copy for each request, until nobody can ask any more."""
    libc = ctypes.CDLL(None, use_errno=True)
    number = _SYS_CLONE[os.uname().machine]
    while True:
        data, descriptors, *_ = socket.recv_fds(line, 1 << 20, 64)
        if not data:
            return
        # A sibling and no child of ours: whoever asked is its parent, and can wait for it.
        pid = libc.syscall(number, _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
        if pid == 0:
            ctypes.pythonapi.PyOS_AfterFork_Child()
            _become(json.loads(data), descriptors)
        line.send(str(pid).encode())
        for descriptor in descriptors:
            os.close(descriptor)


def _become(asked: dict[str, Any], descriptors: list[int]) -> NoReturn:
    code = 1
    try:
        if asked["session"]:
            os.setsid()
        targets = [0, 1, 2, *asked["others"]]
        # First out of the way of the numbers that they get.
        high = [os.dup2(descriptor, 1000 + place) for place, descriptor in enumerate(descriptors)]
        for target, descriptor in zip(targets, high, strict=True):
            os.dup2(descriptor, target)
        _close_all_but(targets)
        if asked["words"][1] != "-m" or asked["words"][2] == COMMAND:
            _keep_a_copy(asked["programs"])
        # As they are in a new interpreter; the process that was copied may leave interrupts to others.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _open_streams()
        os.chdir(asked["folder"])
        os.environ.clear()
        os.environ.update(each.partition("=")[::2] for each in asked["variables"])
        tempfile.tempdir = None  # $TMPDIR may be another
        _tell_arguments(asked["words"])
        _run(asked["words"][1:], asked["folder"])
        code = 0
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
        if isinstance(left.code, str):
            sys.stderr.write(f"{left.code}\n")
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _run(words: list[str], folder: str) -> None:
    """What an interpreter does with these arguments."""
    own = str(Path(folder, words[0]).parent) if words[0].endswith(".py") else folder
    sys.path[:0] = [own, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    if words[0] == "-m":
        sys.argv = ["-m", *words[2:]]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        sys.modules["__main__"] = main = ModuleType("__main__")
        exec(compile(words[1], "<string>", "exec"), main.__dict__)
    else:
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")


def _keep_a_copy(programs: bool) -> None:
    """One that has done nothing yet, for the children of this one; it ends with it, and holds none of its files."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # they are for the command
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _close_all_but([theirs.fileno()])
        for _ in range(3):
            os.open(os.devnull, os.O_RDWR)
        serve(theirs)
        os._exit(0)
    theirs.close()
    subprocess._fork_exec = WarmProcess(ours, programs).fork_exec  # type: ignore[attr-defined]


def _close_all_but(kept: list[int]) -> None:
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - numbers
        if int(name) not in kept:
            with contextlib.suppress(OSError):
                os.close(int(name))


def _open_streams() -> None:
    """As a new interpreter would: those of the process that was copied are of another kind, a file perhaps."""
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # type: ignore[misc]  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8", closefd=False)  # type: ignore[misc]  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", 1, "utf-8", "backslashreplace", closefd=False)  # type: ignore[misc]  # noqa: SIM115


def _tell_arguments(words: list[str]) -> None:
    """Over those of the process that was copied, where `/proc/PID/cmdline` has them."""
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    told = b"".join(os.fsencode(word) + b"\0" for word in words)[: end - start - 1]
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, told, len(told))


if __name__ == "__main__":
    sys.path.pop(0)  # this folder, whose names are not those of packages
    gc.disable()
    for module in PRELOADED:
        importlib.import_module(module)
    gc.freeze()  # copies share these pages for longer, and look for garbage among their own objects alone
    gc.enable()
    serve(socket.socket(fileno=int(sys.argv[1])))
