"""The flagship's reinforcement learning ends by the clock, so its learning rate is lowered by the clock.

By that of the run: the clock of a command begins before the first step, and knows nothing of an earlier command.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from benchmarks.flagship_state import rl_seconds
from etude.core.durable import write_whole

FALL = ((0.92, 0.1), (0.8, 0.25), (0.65, 0.5))  # (share of the run's seconds, factor), the last one first
LOOK = 2.0  # seconds between two looks at the clock


def lower_rate(
    run: Callable[[], Path], rate: float, seconds: float, over: threading.Event, say: Callable[[str], None]
) -> None:
    """Until it is over; through the run's `live.toml`. Another way of the step is another run."""
    told = None
    while not over.wait(LOOK):
        folder = run()
        spent = rl_seconds(folder)
        factor = next((factor for share, factor in FALL if spent >= share * seconds), 1.0)
        if factor < 1 and told != (folder, factor):
            told = (folder, factor)
            # Whole: the run would take an empty file for the rate that it began with.
            write_whole(folder / "live.toml", f"[rl.optim]\nlr = {factor * rate:.3g}\n")
            say(f"rl: learning rate {factor * rate:.3g}")
