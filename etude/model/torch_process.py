"""How a process computes with torch: what it does first, once (allocator, denormals, threads), and lanes.

Call `prepare` before the first tensor operation. Loading this file does not load torch, so that a program can prepare
its process first. Knows nothing about models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

from etude.core.errors import EtudeError
from etude.core.process import available_cores, keep_freed_memory, let_waiting_threads_sleep

Share = TypeVar("Share")
Result = TypeVar("Result")

MOST_THREADS = 1024  # a wrong number must not fill the machine with threads


def prepare(threads: int = 0) -> int:
    """Set this process up for torch and return the number of threads it uses; 0 takes all cores we may use."""
    keep_freed_memory()
    let_waiting_threads_sleep()
    import torch

    # Denormals run at a hundredth of the speed; the flag is copied into worker threads when they start, so it
    # must come before the first threaded operation.
    torch.set_flush_denormal(True)
    if not 0 <= threads <= MOST_THREADS:
        raise EtudeError(f"threads is {threads}; it must be between 0 (all cores) and {MOST_THREADS}")
    count = threads or available_cores()
    torch.set_num_threads(count)
    return count


class Lanes:
    """Whole pieces of work side by side, one core each, where torch would split every single operation.

    A small model's operations are too short to be worth splitting: threads wait for each other at the end of each.
    With a lane for each core they meet once (1M parameters on 2 cores: training 9.6k -> 13.8k tokens/s).
    """

    def __init__(self, device: str) -> None:
        import torch

        self.count = torch.get_num_threads() if device == "cpu" else 1
        self._pool = ThreadPoolExecutor(self.count - 1) if self.count > 1 else None

    def run(self, work: Callable[[Share], Result], shares: Sequence[Share]) -> list[Result]:
        """`work` on each of at most `count` shares; a single share gets all threads for its operations."""
        import torch

        if self._pool is None or len(shares) < 2:
            return [work(share) for share in shares]
        # One thread inside each lane, or the lanes would compete for the same cores.
        torch.set_num_threads(1)
        others = [self._pool.submit(work, share) for share in shares[1:]]
        try:
            return [work(shares[0]), *(other.result() for other in others)]
        finally:
            # After an error as well: nobody may write gradients any more when the caller goes on.
            wait(others)
            torch.set_num_threads(self.count)
