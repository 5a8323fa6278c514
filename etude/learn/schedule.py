"""The learning rate over a stage, as a share of its peak."""

from __future__ import annotations

import math

from etude.core.settings import OptimSettings


def rate(step: int, total: int, settings: OptimSettings) -> float:
    """Factor of the peak for optimiser step `step` (0 is the first) of `total`; `final_lr` from then on."""
    warmup = round(settings.warmup * total)
    if step < warmup:
        return (step + 1) / (warmup + 1)
    begin = max(warmup, total - round(settings.decay * total)) if settings.schedule == "wsd" else warmup
    if settings.schedule == "constant" or step < begin:
        return 1.0
    done = min(1.0, (step - begin + 1) / max(1, total - begin))
    shape = (1 + math.cos(math.pi * done)) / 2 if settings.schedule == "cosine" else 1 - done
    return settings.final_lr + (1 - settings.final_lr) * shape
