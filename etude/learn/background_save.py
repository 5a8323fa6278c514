"""Checkpoints that are written while training goes on: one at a time, by a thread over copies of the tensors.

Whoever owns the folder commits it when `finish` has returned. A kill before that leaves the checkpoint before it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from etude.core import durable
from etude.core.errors import EtudeError

SECONDS = 3600.0  # longest that anybody waits for the disk


class BackgroundSave:
    """The files that one process writes of a checkpoint."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._failed: Exception | None = None

    def start(self, write: Callable[[], None], directory: Path) -> None:
        """Calls `write`, which must use nothing that training changes, and brings the directory to the disk."""
        if self._thread is not None:
            raise EtudeError("a checkpoint is still being written; finish it before another one")

        def work() -> None:
            try:
                write()
                for path in directory.rglob("*"):
                    # Another rank writes there, too: its temporary files go, and the files that they become it syncs.
                    with suppress(FileNotFoundError):
                        durable.sync(path)
            except Exception as failed:  # every kind: `finish` must not return as if all were written
                self._failed = failed

        self._failed = None
        # A daemon: a process that ends for another reason does not wait for a checkpoint that nobody would commit.
        self._thread = threading.Thread(target=work, name="checkpoint", daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether `finish` would not wait."""
        return self._thread is None or not self._thread.is_alive()

    def finish(self, seconds: float = SECONDS) -> None:
        """Waits until all is written; raises what went wrong."""
        if self._thread is None:
            return
        self._thread.join(seconds)
        if self._thread.is_alive():
            raise EtudeError(f"a checkpoint was not written within {seconds:g} s; is the disk still there?")
        self._thread = None
        if self._failed is not None:
            raise self._failed
