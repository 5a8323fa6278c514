"""One run of a repository's suite, for those who make tasks from it: not a grade, and nothing here is a secret.

    descriptor 0   the job: files to lay over the workspace, which tests, in which order, whether to trace; and modules
                   (`code`) that are to do something else than their files say, and whose code may not be
                   read (`unread`) by what has this file name, nor copied (`watched`: functions by file), nor
                   run in another program (`programs`: false); and whether tests record values (`record`)
    descriptor 1   "ready", a line for each file that is read; for each test one when it begins and one with its
                   outcome, or "endless" for one that takes longer than any may (`test_seconds`), which ends the run;
                   then what each test took, or reached; then "done"

Runs in a sandbox of its own, as the interpreter of the repository's environment.
"""

from __future__ import annotations

import base64
import fcntl
import gc
import importlib
import json
import marshal
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

from etude.tasks.sandbox_side import detect_source_reading as unread
from etude.tasks.sandbox_side import repository_suite as repository
from etude.tasks.sandbox_side import start_services as services
from etude.tasks.sandbox_side import test_process
from etude.tasks.sandbox_side.code_copies import Copies
from etude.tasks.sandbox_side.function_tracing import Tracer
from etude.tasks.sandbox_side.grade_process import lay_out

_FIRST_FREE = 100  # descriptors below are for the tests, which may count on the lowest ones


def main() -> None:
    job: dict[str, Any] = json.loads(test_process.read_part(0))
    output = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(2, 1)  # what the suite prints may explain why it did not run
    os.close(nothing)
    root = os.getcwd()  # noqa: PTH109 - compared with the files of code objects

    def say(*line: Any) -> None:
        test_process.write_line(output, line)

    serving = services.start(job["services"])
    say("", "ready", "")
    lay_out(job["files"])
    code = job.pop("code", {})
    loaded = repository.run_as(root, code)
    if job.get("unread"):
        hidden = [os.path.join(root, path) for path in code]  # noqa: PTH118
        examples = job["unread"].startswith("<")  # which ask for no signatures
        before = {path: (_content(path) or b"").decode("utf-8-sig") for path in code}
        copies = Copies(before, job["watched"], loaded)
        for path, made in zip(code, loaded, strict=True):
            _write_compiled(path, made)
        unread.guard(
            hidden,
            f"{root}/",
            job["unread"],
            [repository.HELD_LOADER],
            signatures=not examples,
            copies=copies,
            programs=job["programs"],
        )
    test_process.forget_ourselves()
    test_process.add_workspace([os.path.normpath(f"{root}/{path}") for path in (*job["paths"], "")])

    variants = job["variants"]
    if variants is not None:
        _load_pytest()
        for number, files in enumerate(variants):
            if number and serving:  # what a variant left in them is nothing to the next
                services.stop(serving)
                serving = services.start(job["services"])
            say("", "variant", "")
            own = job | (job["variant_tests"][number] if job.get("variant_tests") else {})
            _apart(files, lambda own=own: _run(own, root, say), job["variant_seconds"])  # type: ignore[misc]
    else:
        _run(job, root, say)
    os._exit(0)  # threads that a test left behind keep nobody waiting


def _write_compiled(path: str, code: CodeType) -> None:
    """The file does what is imported does, also for another program; but there is no text in it to compare."""
    before = os.stat(path) if os.path.exists(path) else None  # noqa: PTH110, PTH116
    if before is not None:
        os.unlink(path)  # noqa: PTH108 - it may be one that nobody may write to
    with open(path, "wb") as file:  # noqa: PTH123
        file.write(b"import marshal\nexec(marshal.loads(bytes.fromhex('%s')))\n" % marshal.dumps(code).hex().encode())
    if before is not None:
        os.chmod(path, before.st_mode & 0o777)  # noqa: PTH101
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _load_pytest() -> None:
    """Once, for all variants: each starts from a copy of this process, in half of the time (57 of 108 ms)."""
    repository.load_pytest()
    config = importlib.import_module("_pytest.config")
    for name in getattr(config, "default_plugins", ()):  # else each variant would import them again
        importlib.import_module(f"_pytest.{name}")
    # Or the first collection of garbage in each variant would write to, and so copy, every page.
    gc.collect()
    gc.freeze()


def _apart(files: dict[str, list[Any] | None], run: Callable[[], None], seconds: float) -> None:
    """In a process of its own with these files laid over the workspace, for so long; afterwards they are as before."""
    with laid_over(files):
        pid = os.fork()
        if pid == 0:
            try:
                run()
            finally:
                os._exit(0)
        handle = os.pidfd_open(pid)
        if not select.select([handle], [], [], seconds)[0]:
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(handle)


@contextmanager
def laid_over(files: dict[str, list[Any] | None]) -> Iterator[None]:
    """With these files laid over the workspace; afterwards they are as before."""
    before = {path: _content(path) for path in files}
    lay_out(files)
    yield
    lay_out({path: None if data is None else [base64.b64encode(data).decode(), False] for path, data in before.items()})


def _content(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            return file.read()
    except OSError:
        return None


class Stopwatch:
    """The seconds that each test takes, its fixtures with it, and the reading of each file of tests."""

    def __init__(self) -> None:
        self.took: dict[str, float] = {}
        self._name, self._since = "", 0.0

    def begin(self, test: str) -> None:
        now = time.perf_counter()
        if self._name:
            self.took[self._name] = self.took.get(self._name, 0.0) + now - self._since
        self._name, self._since = test, now

    read = begin


class Announcer:
    """Says which test begins, or which file is read: the last one of a run without an end is the one to blame."""

    def __init__(self, inner: repository.Watcher, say: Callable[..., None], seconds: float | None) -> None:
        self._inner, self._say, self._seconds = inner, say, seconds
        self._running = ""
        if seconds:
            signal.signal(signal.SIGALRM, self._stop)

    def begin(self, test: str) -> None:
        self._inner.begin(test)
        self._running = test
        if test:
            self._say(test, "began", "")
        if self._seconds:
            signal.setitimer(signal.ITIMER_REAL, self._seconds if test else 0.0)

    def read(self, path: str) -> None:
        self._inner.read(path)
        self._say(path, "began", "")

    def _stop(self, *given: object) -> None:
        # A test that set an alarm of its own may bring us here after its end.
        if self._running:
            self._say(self._running, "endless", "")
            os._exit(0)


def _run(job: dict[str, Any], root: str, say: Callable[..., None]) -> None:
    watch = Stopwatch()
    tracer = Tracer(root, job["trace"]) if job["trace"] is not None else None
    if tracer is not None:
        tracer.start()
    code = repository.run(
        root,
        job["places"],
        job["options"],
        test_process.with_records(say) if job.get("record") else say,
        chosen=None if job["tests"] is None else frozenset(job["tests"]),
        order=job["order"],
        watcher=Announcer(tracer or watch, say, job.get("test_seconds")),
        most_failures=job["most_failures"],
    )
    if tracer is not None:
        _tell_traces(tracer, say)
    for test, seconds in watch.took.items():
        say(test, "took", f"{seconds:.4f}")
    say("", "took", f"{_processor_seconds():.4f}")
    say("", "done", str(code))
    sys.stdout.flush()
    sys.stderr.flush()


def _processor_seconds() -> float:
    """What this process and its children needed of processors: of a suite that waits, much less than of the clock. What
    a busy machine kept us waiting for is no wait of the suite's own."""
    try:
        with open("/proc/self/schedstat", "rb") as file:  # noqa: PTH123
            queued = int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        queued = 0.0
    return queued + sum(os.times()[:4])


def _tell_traces(tracer: Tracer, say: Callable[..., None]) -> None:
    """Each function's name once, then numbers."""
    reached = {test: sorted(names) for test, names in tracer.reached.items()}
    number: dict[str, int] = {}
    for names in reached.values():
        for name in names:
            if name not in number:
                number[name] = len(number)
                say("", "function", name)
    for test, names in reached.items():
        say(test, "reached", json.dumps([number[name] for name in names]))
