"""What a child process writes to a pipe, read until it ends, its time is over or it writes too much."""

from __future__ import annotations

import os
import select
import time
from typing import Final

_EXIT_SECONDS: Final = 5.0  # between the last word of a process and its end


def listen(pipe: int, handle: int, deadline: float, most: int) -> tuple[bytes, str]:
    """What a child writes until it ends; and whether it was cut short, because its "time" was over or by a "flood"."""
    written = bytearray()
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    poll.register(handle, select.POLLIN)
    while True:
        left = min(deadline - time.monotonic(), 3600.0)
        ready = {descriptor for descriptor, _ in poll.poll(max(0, int(left * 1000) + 1))} if left > 0 else set()
        if not ready and time.monotonic() >= deadline:
            return bytes(written), "time"
        if pipe in ready:
            data = os.read(pipe, 1 << 16)
            written += data
            if len(written) > most:
                return bytes(written[:most]), "flood"
            if not data:  # every holder of the other end is gone
                poll.unregister(pipe)
                deadline = min(deadline, time.monotonic() + _EXIT_SECONDS)
        elif handle in ready:
            return bytes(written), ""
