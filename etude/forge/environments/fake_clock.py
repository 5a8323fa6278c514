"""Another date for the programs of a sandbox: a library of ours that is loaded before the system's.

Shifts what programs get when they ask for the time of day; how much time passes stays as it is, and so do the
times of files. Made by the machine's C compiler when it is first asked for. Knows no tests.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Final

from etude.core.errors import EtudeError
from etude.sandbox.base import Layer
from etude.sandbox.store.layers import Store

_FOLDER, _NAME = "/opt/clock", "clock.so"
_SECONDS: Final = 120.0


def clock_layer(store: Store) -> Layer:
    """The library, to lie over the other layers of a sandbox."""
    return store.add_files({_NAME: _compiled()}, at=_FOLDER, shows=())


def clock_variables(date: str) -> dict[str, str]:
    """What makes it this day (2031-02-28), at the present time of day, for whoever has the layer."""
    try:
        day = datetime.strptime(date, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        raise EtudeError(f"a date is written 2031-02-28, not {date!r}") from None
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    # Whole days: the time of day stays as it is.
    shift = int((day - today).total_seconds())
    return {"LD_PRELOAD": f"{_FOLDER}/{_NAME}", "ETUDE_CLOCK_SHIFT": str(shift)}


@cache
def _compiled() -> bytes:
    compiler = shutil.which("cc")
    if compiler is None:
        raise EtudeError("another date needs a C compiler named cc on this machine, and there is none")
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(__file__).with_suffix(".c"), Path(folder) / _NAME
        command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
        if done.returncode:
            raise EtudeError(f"the library for another date cannot be compiled: {done.stderr.strip()[:300]}")
        return library.read_bytes()
