"""How much of the rollouts under way is kept when a process of a training run is killed at a random moment?

    python -m benchmarks.reliability.kill_loop [--kills 20] [--model DIR] [--workers 2] [--engines 2] [--seed 0]

A run with real sandboxes, engines, workers and a learner is hit by SIGKILL again and again: the orchestrator, a worker,
an engine or the learner. A killed orchestrator is started again by the same command; the others must come back by
themselves. Before each kill the tokens that the records of turns hold are counted, of the rollouts that the victim
runs; afterwards the run says how many tokens its rollouts did not sample again. Tokens that were sampled and not yet
recorded are counted as lost: on average half of `cluster.save_tokens` for each rollout. At the end the journal must
show that no group was skipped and none trained twice. Without --model the policy is a toy with random weights.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.reliability.killed_run import (
    BAD,
    DEADLINE,
    MODULES,
    SAVE_TOKENS,
    Running,
    alive,
    answer,
    audit,
    make_toy,
    options_of,
    settings,
)

KINDS = ("orchestrator", "worker", "engine", "learner")
BETWEEN = 3  # steps at least between two kills: rollouts under way at the first are finished then


def tokens_in(records: list[Path]) -> int:
    from etude.rollout.turn_records import TurnRecord

    total = 0
    for path in records:
        with tempfile.NamedTemporaryFile(suffix=".turns") as copy:  # reading cuts a torn end off
            with contextlib.suppress(OSError):
                Path(copy.name).write_bytes(path.read_bytes())
            total += TurnRecord(Path(copy.name)).tokens
    return total


def trial(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    toy = options.model is None
    model, temporary, run = make_toy(folder, options.model), folder / "tmp", folder / "run"
    temporary.mkdir()
    steps = options.kills * (BETWEEN + 2) + 6
    overrides = settings(model, steps, options.workers, options.engines, toy)
    recipe = "" if toy else "nano"
    chance, began = random.Random(options.seed), time.monotonic()
    kinds = [kind for kind in KINDS if options.workers or kind != "worker"]
    order: list[str] = []
    seen: list[dict[str, Any]] = []
    running = Running(run, model, overrides, recipe, temporary)
    while len(seen) < options.kills:
        before = running.rows()
        if not running.wait_rows(len(before) + BETWEEN + chance.randint(0, 1)):
            break
        time.sleep(chance.random() * 0.5)
        order = order or chance.sample(kinds, len(kinds))
        kind = order.pop()
        pids = running.pids(kind)
        if not pids:
            continue
        pid = chance.choice(pids)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)  # so that what is counted is what it leaves
        hit = running.records(pid if kind == "worker" else None)
        facts = {"victim": kind, "row": len(running.rows()), "rollouts": len(hit), "recorded": tokens_in(hit)}
        facts["before"] = running.rows()[-1]["resumed_tokens"] if kind == "worker" else 0
        others = [each for other in MODULES for each in running.pids(other)]
        os.kill(pid, signal.SIGKILL)
        if kind == "orchestrator":
            running.process.wait(DEADLINE)
            while any(map(alive, others)):  # they end with it, and write until then
                time.sleep(0.02)
            hit = running.records(None)
            facts |= {"rollouts": len(hit), "recorded": tokens_in(hit)}
            running = Running(run, model, overrides, recipe, temporary)
        seen.append(facts)
        print(f"kill {len(seen)}: {facts}", file=sys.stderr, flush=True)
    code = running.process.wait(DEADLINE + 10 * steps)
    if code != 0:
        raise SystemExit(f"the run failed:\n{running.log.read_text()[-3000:]}")
    rows = running.rows()
    for number, facts in enumerate(seen):
        until = seen[number + 1]["row"] if number + 1 < len(seen) else len(rows)
        if facts["victim"] == "engine":  # its rollouts live on in their process, with all that was recorded
            facts["kept"] = facts["recorded"]
        else:
            # A learner's rollouts sample on until its end is noticed, so they may keep more than was counted.
            facts["kept"] = min(facts["recorded"], rows[until - 1]["resumed_tokens"] - facts["before"])
        facts["share"] = facts["kept"] / max(1, facts["recorded"] + facts["rollouts"] * SAVE_TOKENS / 2)
    found = audit(run, steps)
    kept, recorded = (sum(facts[name] for facts in seen) for name in ("kept", "recorded"))
    lost = sum(facts["rollouts"] for facts in seen) * SAVE_TOKENS / 2
    return {
        "ok": len(seen) == options.kills and not any(found[name] for name in BAD),
        "kills": seen,
        "recorded_tokens": recorded,
        "kept_tokens": kept,
        "kept_of_recorded": round(kept / max(1, recorded), 4),
        "kept_of_sampled": round(kept / max(1, recorded + lost), 4),
        **found,
        "seconds": round(time.monotonic() - began, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options_of(parser, 20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kill-") as folder:
        result = trial(options, Path(folder))
    answer(result, options.json)


if __name__ == "__main__":
    main()
