"""How much slower than alone a program runs on this machine now: so much more time a tool may take.

Time is the machine's, not the agent's: while many rollouts share a few cores, each tool takes longer through no doing
of the agent. Limits on tools' time are therefore those of an idle machine, stretched by what is measured here.
"""

from __future__ import annotations

import os

MOST = 8.0  # a limit stretched further would be none


def slowdown() -> float:
    """Programs that want to run for each core, averaged over a minute; 1 at least.

    Of this machine: sandboxes elsewhere have their own load, and 1 is never wrong by more than what it was before.
    """
    try:
        waiting = os.getloadavg()[0]
    except OSError:
        return 1.0
    return min(MOST, max(1.0, waiting / (os.cpu_count() or 1)))
