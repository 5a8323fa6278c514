"""Half of the loop, for debugging: rollouts go to the journal and nobody trains on them.

Policy, harness, sandboxes and grader are looked at alone, at the version that the run has. The groups stay ready in
the journal: `train_only` trains on them, and so does the whole loop when the run is continued. Tokens are then older
than `rl.staleness` allows, which the metrics say.
"""

from __future__ import annotations

import asyncio
from typing import Any

from etude.core.progress import track
from etude.rl.admission import Admission
from etude.rl.checkpoint import keep_readable
from etude.rl.groups import Rollout
from etude.rl.loop import Training
from etude.rl.metrics import by_source, describe

STAGE = "rl.rollouts"  # of its rows in metrics.jsonl, which belong to `rl`


async def collect(training: Training) -> dict[str, Any]:
    """Samples the groups of all steps that are left, until Ctrl-C or the time limit; no weights change."""
    rl, dispatcher = training.rl, training.dispatcher
    # Nobody trains meanwhile, so none of them may wait for a newer version.
    dispatcher.admission = Admission(rl.steps, rl.groups, rl.steps)
    for group in dispatcher.groups.values():
        group.began = min(group.began, training.step)
    steps = rl.steps - training.step
    every: list[Rollout] = []
    try:
        with track("rollouts", total=steps * rl.groups, unit="groups") as bar:
            dispatcher.fill()
            for number in range(1, steps + 1):
                groups = await training._next_groups()
                if groups is None:
                    break
                rollouts = [rollout for group in groups for rollout in group.rollouts]
                every += rollouts
                row = describe(rollouts) | by_source(rollouts) | {"groups": len(groups), "rollouts": len(rollouts)}
                training.run.log(STAGE, training.step + number, **row)
                bar.advance(len(groups))
                bar.note(reward=row["reward"], passed=row["pass_rate"])
        await dispatcher.stop()
        await training.probing
        root = training.run.path / "rl" / "trajectories"
        await training.environment.write_readable(root)
        await asyncio.to_thread(keep_readable, list(dispatcher.newest), root, rl.keep_trajectories)
        found = describe(every)
        return {
            "rollouts": len(every),
            "void": sum(count for cause, count in dispatcher.voids.items() if cause != "group"),
            **{name: found[name] for name in ("reward", "pass_rate", "turns") if name in found},
            "stopped": training.run.stopping,
        }
    finally:
        training.close()
