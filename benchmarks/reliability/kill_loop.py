"""How much of the rollouts under way is kept when a process of a training run is killed at a random moment?

    python -m benchmarks.reliability.kill_loop [--kills 20] [--model DIR] [--workers 2] [--engines 2] [--seed 0]

A run with real sandboxes, engines, workers and a learner is hit by SIGKILL again and again: the orchestrator, a worker,
an engine or the learner. A killed orchestrator is started again by the same command; the others must come back by
themselves. Tokens are counted, not estimated. At the random moment the engines are paused, and say of every turn that
they sample how many tokens it has and how many of those they have told its rollout of. What they told has a twentieth
of a second to arrive; then the victim is stopped, the records of its rollouts are read, and it is killed. Those
rollouts had sampled what is recorded and what nobody was told of, and the latter is lost. They are those that a worker
runs, those of which an engine samples a turn, and all of them for the other two. Afterwards the run says how many
tokens its rollouts did not sample again. At the end the journal must show that no group was skipped and none trained
twice. Answers are saved as often as the recipe says (`cluster.save_tokens`). Without --model the policy is a toy with
random weights.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.reliability.killed_run import (
    BAD,
    DEADLINE,
    MODULES,
    Running,
    alive,
    answer,
    audit,
    command_of,
    make_toy,
    options_of,
    settings,
)
from etude.core.errors import EtudeError
from etude.policies.engine_client import EngineClient

KINDS = ("orchestrator", "worker", "engine", "learner")
BETWEEN = 3  # steps at least between two kills: rollouts under way at the first are finished then
ARRIVE = 0.05  # seconds in which what engines told is written down


class Turn(NamedTuple):
    """An answer that an engine is sampling."""

    engine: int  # process
    worker: int  # process that asked
    rollout: str
    sampled: int
    told: int


def tokens_in(records: list[Path]) -> int:
    from etude.rollout.turn_records import TurnRecord

    total = 0
    for path in records:
        with tempfile.NamedTemporaryFile(suffix=".turns") as copy:  # reading cuts a torn end off
            with contextlib.suppress(OSError):
                Path(copy.name).write_bytes(path.read_bytes())
            total += TurnRecord(Path(copy.name)).tokens
    return total


async def pause(engines: list[int]) -> list[Turn]:
    """The turns that these engines sample; they go on after `resume`."""
    found = []
    for pid in engines:
        async with contextlib.aclosing(_client(pid)) as client:
            await client.pause()
            for name, (sampled, told) in (await client.running()).items():
                rollout, worker, _ = name.split(".")
                found.append(Turn(pid, int(worker), rollout, sampled, told))
    return found


async def resume(engines: list[int]) -> None:
    for pid in engines:
        with contextlib.suppress(EtudeError, ValueError):  # it ended meanwhile
            async with contextlib.aclosing(_client(pid)) as client:
                await client.resume()


class _Client(EngineClient):
    async def aclose(self) -> None:
        await self.close()


def _client(pid: int) -> _Client:
    words = command_of(pid).split("\0")
    own = Path(words[words.index("--socket") + 1])  # its name and its number; when it is ready, the name alone
    return _Client(f"unix:{own.with_suffix('')}", deadline=30.0)


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
        before = max((row["step"] for row in running.rows()), default=0)
        if not running.wait_step(before + BETWEEN + chance.randint(0, 1)):
            break
        # Anywhere in a step, however long that takes here: groups begin together, so rollouts are young after each row.
        time.sleep(chance.random() * running.rows()[-1]["seconds"])
        order = order or chance.sample(kinds, len(kinds))
        kind = order.pop()
        pids, engines = running.pids(kind), running.pids("engine")
        if not pids:
            continue
        pid = chance.choice(pids)
        try:
            turns = asyncio.run(pause(engines))
        except (EtudeError, ValueError) as busy:  # one is just being started
            print(f"not now: {busy}", file=sys.stderr, flush=True)
            asyncio.run(resume(engines))
            order.append(kind)
            continue
        time.sleep(ARRIVE)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)  # so that what is counted is what it leaves
        hit = running.records(pid if kind == "worker" else None)
        if kind in ("worker", "engine"):
            turns = [turn for turn in turns if pid in (turn.worker, turn.engine)]
        if kind == "engine":
            hit = [path for path in hit if path.stem in {turn.rollout for turn in turns}]
        facts = {"victim": kind, "row": len(running.rows()), "recorded": tokens_in(hit)}
        facts["rollouts"] = len({path.stem for path in hit} | {turn.rollout for turn in turns})
        facts["unsaved"] = sum(turn.sampled - turn.told for turn in turns)
        facts["before"] = running.rows()[-1]["resumed_tokens"] if kind == "worker" else 0
        others = [each for other in MODULES for each in running.pids(other)]
        os.kill(pid, signal.SIGKILL)
        if kind == "orchestrator":
            running.process.wait(DEADLINE)
            while any(map(alive, others)):  # they end with it, and write until then
                time.sleep(0.02)
            running = Running(run, model, overrides, recipe, temporary)
        else:
            asyncio.run(resume([each for each in engines if each != pid]))
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
        facts["share"] = round(facts["kept"] / max(1, facts["recorded"] + facts["unsaved"]), 4)
    found = audit(run, steps)
    kept, recorded, unsaved = (sum(facts[name] for facts in seen) for name in ("kept", "recorded", "unsaved"))
    return {
        "ok": len(seen) == options.kills and not any(found[name] for name in BAD),
        "kills": seen,
        "sampled_tokens": recorded + unsaved,
        "recorded_tokens": recorded,
        "kept_tokens": kept,
        "kept_of_recorded": round(kept / max(1, recorded), 4),
        "kept_of_sampled": round(kept / max(1, recorded + unsaved), 4),
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
