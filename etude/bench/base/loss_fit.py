"""The loss of a held-out text over training, as a line over the logarithm of the steps.

Continued pretraining that goes well lowers the loss of code that is like the domain, and was never trained on, by about
the same amount with every doubling of the steps. The fit says by how much, how well a line describes it, and what twice
the training would give.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from etude.core.errors import EtudeError
from etude.core.run_files import read_metrics

FEWEST = 3  # measurements


@dataclass(frozen=True)
class LossFit:
    """loss = at_one + per_doubling * log2(step)"""

    name: str
    stage: str
    at_one: float  # nats, at step 1
    per_doubling: float  # nats; negative where the loss falls
    r_squared: float
    first: float  # loss that was measured first, and last
    last: float
    doubled: float  # what the line gives for twice the steps
    steps: list[int]
    losses: list[float]


def fit_loss(steps: Sequence[int], losses: Sequence[float], name: str = "", stage: str = "") -> LossFit:
    """Least squares; step 0 has no logarithm and is left out."""
    pairs = [(step, loss) for step, loss in zip(steps, losses, strict=True) if step > 0 and math.isfinite(loss)]
    if len({step for step, _ in pairs}) < FEWEST:
        raise EtudeError(
            f"{len(pairs)} measurements of the loss are too few for a line; lower {stage or 'pretrain'}.eval_every"
        )
    x, y = np.log2([step for step, _ in pairs]), np.array([loss for _, loss in pairs])
    slope, start = np.polyfit(x, y, 1)
    spread, left = float(((y - y.mean()) ** 2).sum()), float(((y - (start + slope * x)) ** 2).sum())
    last = pairs[-1][0]
    return LossFit(
        name=name,
        stage=stage,
        at_one=float(start),
        per_doubling=float(slope),
        r_squared=1.0 if spread == 0 else 1 - left / spread,
        first=pairs[0][1],
        last=pairs[-1][1],
        doubled=float(start + slope * math.log2(2 * last)),
        steps=[step for step, _ in pairs],
        losses=[loss for _, loss in pairs],
    )


def fit_run(run: Path, name: str = "private", stage: str = "pretrain") -> LossFit:
    """Of what a run logged; `name` is a source of its corpus, `private`, or nothing for the whole held-out text."""
    key = f"held_out_loss_{name}" if name else "held_out_loss"
    rows = [row for row in read_metrics(run) if row.get("stage") == stage]
    points = {int(row["step"]): float(row[key]) for row in rows if isinstance(row.get(key), int | float)}
    if not points:
        logged = sorted(
            {k.removeprefix("held_out_loss_") for row in rows for k in row if k.startswith("held_out_loss_")}
        )
        known = f"it has {', '.join(logged)}" if logged else "it has none by name"
        raise EtudeError(
            f"{run} logged no held-out loss called {name!r} in {stage}; {known} (pretrain.private sets one)"
        )
    steps = sorted(points)
    return fit_loss(steps, [points[step] for step in steps], name, stage)
