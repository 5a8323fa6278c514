"""Another date for the programs of a sandbox: a library of ours that is loaded before the system's.

Shifts what programs are told when they ask for the time of day; how much time passes stays as it is, and so do the
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
_SOURCE: Final = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static long shift(void) {
    const char *given = getenv("ETUDE_CLOCK_SHIFT");
    return given ? atol(given) : 0;
}

int clock_gettime(clockid_t which, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(which, now);
    if (!failed && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) now->tv_sec += shift();
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec fine;
    (void)zone;
    int failed = clock_gettime(CLOCK_REALTIME, &fine);
    if (!failed && now) { now->tv_sec = fine.tv_sec; now->tv_usec = fine.tv_nsec / 1000; }
    return failed;
}

time_t time(time_t *kept) {
    struct timespec fine;
    if (clock_gettime(CLOCK_REALTIME, &fine)) return (time_t)-1;
    if (kept) *kept = fine.tv_sec;
    return fine.tv_sec;
}
"""


def clock_layer(store: Store) -> Layer:
    """The library, to lie over the other layers of a sandbox."""
    return store.add_files({_NAME: _compiled()}, at=_FOLDER, shows=())


def clock_variables(date: str) -> dict[str, str]:
    """What makes it this day (2031-02-28), at the present time of day, for whoever has the layer."""
    try:
        wanted = datetime.strptime(date, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        raise EtudeError(f"a date is written 2031-02-28, not {date!r}") from None
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    shift = int((wanted - today).total_seconds())
    return {"LD_PRELOAD": f"{_FOLDER}/{_NAME}", "ETUDE_CLOCK_SHIFT": str(shift)}


@cache
def _compiled() -> bytes:
    compiler = shutil.which("cc")
    if compiler is None:
        raise EtudeError("another date needs a C compiler named cc on this machine, and there is none")
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "clock.c", Path(folder) / _NAME
        source.write_text(_SOURCE)
        command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
        if done.returncode:
            raise EtudeError(f"the library for another date cannot be compiled: {done.stderr.strip()[:300]}")
        return library.read_bytes()
