"""How a process uses memory and cores: what the allocator keeps, what waiting threads do, how many cores there are.

Call `stay_small` in a process that only waits and talks. A process that computes calls `prepare` of
`etude.model.torch_process`, which uses the others. Knows neither torch nor models.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Mapping
from pathlib import Path

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's names and numbers, malloc.h
KEEP = 1 << 30  # bytes of freed heap kept for the next step
ON_HEAP = 32 << 20  # largest block taken from the heap; glibc accepts no more
LARGE = 64 << 10  # bytes; reads ask for that much or more, and get little


def keep_freed_memory() -> None:
    """Let glibc reuse the large blocks that each training step frees, where it would return them to the system.

    Fresh pages cost a fault each: a 1M-parameter step on 2 cores is 14% faster with this (10.2k -> 11.7k tokens/s).
    The same as MALLOC_MMAP_THRESHOLD_ and MALLOC_TRIM_THRESHOLD_, without asking the user to set an environment.
    """
    _tune({M_MMAP_THRESHOLD: ON_HEAP, M_TRIM_THRESHOLD: KEEP})


def return_large_blocks() -> None:
    """Let a rank of a divided model give large blocks back at once.

    It gathers whole blocks of weights between small parts that stay. Taken from the heap, those leave holes: 8 ranks of
    80M parameters had 450 MB of them, more than what they held.
    """
    _tune({M_MMAP_THRESHOLD: 1 << 20, M_TRIM_THRESHOLD: 1 << 20})


def stay_small() -> None:
    """Let a process that talks for hours, about small things, stay as large as it is.

    Every read from a socket, a pipe or a file takes a large block and shrinks it to the few bytes that came. Taken from
    the heap, as glibc does once it has seen a large block freed, those leave holes that hardly anything fits into: with
    each step of reinforcement learning, 1,200 such reads and 26 KB of holes. Blocks with pages of their own, on the
    other hand, are returned whole.
    """
    _tune({M_MMAP_THRESHOLD: LARGE, M_TRIM_THRESHOLD: 2 * LARGE})


def _tune(parameters: Mapping[int, int]) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # glibc only; other allocators keep their own habits
        for name, value in parameters.items():
            mallopt(name, value)


def let_waiting_threads_sleep() -> None:
    """On a machine that is busy already, let worker threads sleep while they wait; must come before torch is loaded.

    They spin by default, which suits a machine of one's own, and on any other holds the very core that the thread
    they wait for needs: at a load of 7 on 2 cores, a 1M-parameter model trains at 1k tokens/s spinning, 3k sleeping.
    """
    with contextlib.suppress(OSError):  # some containers hide the load
        if os.getloadavg()[0] > available_cores() / 2:
            os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def available_cores() -> int:
    """Cores this process may use: affinity and container limits counted, at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    # A container may show all cores of the machine and be allowed a part of their time.
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            cores = min(cores, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass
    return max(1, cores)


def shared_by_session() -> bool:
    """Whether the system shares cores evenly between sessions of processes, and not between threads.

    Linux does so (`sched_autogroup_enabled`) with processes that are in no control group for processors.
    """
    try:
        on = Path("/proc/sys/kernel/sched_autogroup_enabled").read_text().strip() == "1"
        groups = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
    except (OSError, ValueError):
        return False
    first = [path for names, path in groups.items() if "cpu" in names.split(",")]
    # Only the root of all groups has no type; that of a container looks like it otherwise.
    root = groups.get("", "/") == "/" and not Path("/sys/fs/cgroup/cgroup.type").exists()
    return on and (first == ["/"] if first else root)
