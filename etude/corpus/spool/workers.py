"""Processes that screen and sign chunks: this one alone for a small corpus, one for each core for a large one.

A worker is this module run as a program. It gets lines of JSON (a step and the number of a chunk) and answers each
when the files of that chunk are written; texts never travel between processes.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Self

from etude.core import child_process, process
from etude.core.errors import EtudeError
from etude.corpus.spool.files import Chunk
from etude.corpus.spool.screening import Screening, Step

ALONE_BYTES = 64_000_000  # of text: starting workers takes a second, and this process screens as much in ten
DEADLINE = 3600.0  # seconds for one chunk, of which a slow core needs ten
ERROR_CHARACTERS = 2_000  # of what a worker wrote before it ended


class Workers:
    """Does a step for chunks; `finish` waits for all of them."""

    def __init__(self, step: Step, screening: Screening, directory: Path, count: int = 0) -> None:
        self._step: Step = step
        self._screening = screening
        self._directory = directory
        self._count = count or process.available_cores()
        self._chunks: queue.SimpleQueue[Chunk | None] = queue.SimpleQueue()
        self._waiting = 0  # bytes of chunks given before the workers were started
        self._threads: list[threading.Thread] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._problem: BaseException | None = None
        self._closed = False

    def give(self, chunk: Chunk) -> None:
        if self._problem is not None:
            raise self._problem
        if self._screening.done(self._step, chunk):
            return
        self._chunks.put(chunk)
        self._waiting += chunk.file("documents").stat().st_size
        if self._waiting > ALONE_BYTES and not self._threads:
            self._start()

    def finish(self) -> None:
        """Returns when every chunk that was given is done."""
        self._chunks.put(None)
        if not self._threads:
            while (chunk := self._chunks.get()) is not None:
                self._screening.do(self._step, chunk.directory, chunk.number)
        for thread in self._threads:
            thread.join()
        if self._problem is not None:
            raise self._problem

    def _start(self) -> None:
        for number in range(self._count):
            thread = threading.Thread(target=self._serve, name=f"corpus worker {number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self) -> None:
        """One worker's whole life."""
        try:
            settings = json.dumps(asdict(self._screening))
            argv = ["--step", self._step, "--directory", str(self._directory), "--parent", str(os.getpid())]
            with (
                (self._directory / f"worker-{threading.get_native_id()}.log").open("w+b") as log,
                subprocess.Popen(
                    [sys.executable, "-m", "etude.corpus.spool.workers", *argv, "--settings", settings],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    bufsize=0,  # or closing the pipe of a worker that died would raise once more
                    start_new_session=True,
                ) as worker,
            ):
                self._processes.append(worker)
                try:
                    while (chunk := self._chunks.get()) is not None and self._problem is None and not self._closed:
                        self._ask(worker, chunk, Path(log.name))
                finally:
                    self._chunks.put(None)  # the others end at it too
                    worker.kill()
        except BaseException as problem:
            self._problem = self._problem or problem

    def _ask(self, worker: subprocess.Popen[bytes], chunk: Chunk, log: Path) -> None:
        assert worker.stdin is not None and worker.stdout is not None
        timer = threading.Timer(DEADLINE, worker.kill)
        timer.start()
        try:
            worker.stdin.write(f"{chunk.number}\n".encode())
            worker.stdin.flush()
            answer = worker.stdout.readline()
        except BrokenPipeError:
            answer = b""
        finally:
            timer.cancel()
        if answer.startswith(b"failed "):
            raise EtudeError(json.loads(answer.removeprefix(b"failed ")))
        if answer.strip() != b"done":
            said = log.read_text(errors="replace")[-ERROR_CHARACTERS:].strip() or "it wrote nothing"
            raise EtudeError(
                f"a worker ended while it looked at {chunk.file('documents')} (code {worker.wait()}): {said}; "
                "run the command again, which continues"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        self._chunks.put(None)
        if kind is not None:
            for worker in self._processes:
                worker.kill()
        for thread in self._threads:
            thread.join()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--step", choices=("screen", "sign"), required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--settings", required=True)
    given = parser.parse_args()
    child_process.die_with(given.parent, [])
    screening = Screening(**json.loads(given.settings))
    for line in sys.stdin.buffer:
        try:
            screening.do(given.step, given.directory, int(line))
            answer = "done"
        except (EtudeError, OSError) as error:  # a full disk, a forbidden text that is gone
            answer = f"failed {json.dumps(str(error))}"
        print(answer, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
