"""Is anything lost, done twice or left behind when the processes of a reinforcement-learning run are killed?

    python benchmarks/rl_kill.py --kills 20 [--steps N] [--seed 0] [--json]

A toy run with real sandboxes, engine and learner is started again and again; each time SIGKILL hits the orchestrator,
the learner, the engine or all of them at a random moment. An orchestrator that survives must end with one clear
sentence. At the end the journal must show that no task was skipped and none was trained twice in the surviving
lineage, and neither a process nor a socket, board, sandbox or temporary folder may be left.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

DEADLINE = 120.0  # seconds for any one process to do what it is waited for
GONE = 20.0  # seconds for what was left alone to be gone
VICTIMS = ("orchestrator", "learner", "engine", "all")
MODULES = {"learner": "etude.rl.learner.process", "engine": "etude.serve.server"}
GROUPS, GROUP, SAVE_EVERY = 2, 3, 2

REWARD = """
from etude.reward.base import Part


class Luck(Part):
    def score(self, attempt):
        return sum(id for segment in attempt.trajectory.segments for id in segment.ids) % 7 / 7
"""


# The run


def make_model(path: Path) -> None:
    from etude.forge.katas.task_source import katas
    from etude.model.checkpoint.directory import save_model
    from etude.model.config import ModelConfig
    from etude.model.decoder import Decoder
    from etude.tokens.tokenizer import Tokenizer

    tokenizer = Tokenizer.train([task.instruction for task in katas("train", 40, seed=3)], 400)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = ModelConfig(vocab_size=tokenizer.vocab_size, num_key_value_heads=1, head_dim=16, **shape)
    save_model(path, Decoder(config, seed=1))
    tokenizer.save(path)
    (path / "luck.py").write_text(REWARD)


def settings(model: Path, steps: int) -> list[str]:
    return [
        "run.threads=2",
        "cluster.restarts=0",  # benchmarks/reliability/kill_loop.py kills where processes are started again
        "engine.max_length=1024",
        "engine.max_running=16",
        "harness.spec=none",
        "harness.limits.turns=2",
        "harness.limits.sampled_tokens=24",
        "harness.limits.context_tokens=1000",
        f"reward.parts=[{{use='{model / 'luck.py'}:Luck'}}]",
        f"rl.steps={steps}",
        f"rl.groups={GROUPS}",
        f"rl.group={GROUP}",
        "rl.concurrency=6",
        "rl.staleness=1",
        "rl.eval_every=3",
        "rl.eval_tasks=2",
        f"rl.save_every={SAVE_EVERY}",
        "rl.probe_tokens=64",
        "rl.keep_trajectories=4",
        "rl.tasks={use='katas', split='train', levels=[1]}",
        "bench.tasks={use='katas', split='held_out', levels=[1]}",
    ]


def work(run_path: Path, model: Path, steps: int) -> int:
    """The orchestrator: what this script is when it is the victim."""
    return orchestrate(run_path, model, None, settings(model, steps))


def orchestrate(run_path: Path, model: Path, recipe_name: str | None, options: list[str]) -> int:
    """Trains as `etude rl` does; its exit status."""
    from etude.core import recipe as recipes
    from etude.core.errors import EtudeError
    from etude.core.run import Run
    from etude.rl.orchestrator import train

    recipe = recipes.load(recipe_name, options)
    try:
        with Run.open(run_path, recipes.to_dict(recipe)) as run:
            print(json.dumps(asyncio.run(train(run, recipe, model))))
    except EtudeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


# Its processes


class Victim:
    """A started run and the processes that belong to it."""

    def __init__(self, run: Path, model: Path, steps: int, temporary: Path) -> None:
        command = [sys.executable, __file__, "--work", str(run), str(model), str(steps)]
        environment = {**os.environ, "TMPDIR": str(temporary), "ETUDE_KILL": str(temporary)}
        self.mark = f"ETUDE_KILL={temporary}".encode()
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, start_new_session=True
        )

    def pid(self, name: str) -> int | None:
        """Of one of the processes, once it is there."""
        if name == "orchestrator":
            return self.process.pid
        with contextlib.suppress(OSError):
            children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
            for child in map(int, children):
                if MODULES[name].encode() in Path(f"/proc/{child}/cmdline").read_bytes():
                    return child
        return None

    def living(self) -> list[str]:
        """Every process of this run, sandboxes included: by their environment, or by the launcher's command."""
        launcher = "launcher import main; main("
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes()
                ours = self.mark in (entry / "environ").read_bytes().split(b"\0")
                sandbox = launcher.encode() in command and f", {self.process.pid}, ".encode() in command
                if (ours or sandbox) and b"State:\tZ" not in (entry / "status").read_bytes():
                    found.append(f"{entry.name}: {command.replace(bytes(1), b' ')[:120].decode(errors='replace')}")
        return found

    def gone(self) -> list[str]:
        """What is still there after it had time to go."""
        deadline = time.monotonic() + GONE
        while (left := self.living()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return left


def rows(run: Path) -> int:
    """Steps logged so far."""
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b'"stage": "rl"') if path.exists() else 0


def attack(victim: Victim, run: Path, name: str, chance: random.Random) -> dict[str, Any] | None:
    """Kills at a random moment. Returns what was seen, or None when the run was faster."""
    before, began = rows(run), time.monotonic()
    names = list(VICTIMS[:3]) if name == "all" else [name]
    starting = chance.random() < 0.25
    wanted, extra = (0, chance.random() * 3.0) if starting else (chance.randint(0, 3), chance.random() * 0.6)
    while victim.process.poll() is None and (
        rows(run) < before + wanted or any(victim.pid(each) is None for each in (*names, "engine"))
    ):
        if time.monotonic() - began > DEADLINE:
            raise SystemExit(f"the run did not come to step {before + wanted} within {DEADLINE:.0f} s")
        time.sleep(0.005)
    pause = time.monotonic() + extra
    # A start is over with its first step: a fast machine makes many in three seconds.
    while time.monotonic() < pause and victim.process.poll() is None and not (starting and rows(run) > before):
        time.sleep(0.005)
    pids = [pid for each in names if (pid := victim.pid(each)) is not None]
    if victim.process.poll() is not None or len(pids) < len(names):
        return None
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    _, errors = victim.process.communicate(timeout=DEADLINE)
    said = errors.decode(errors="replace")
    seen: dict[str, Any] = {"victim": name, "steps": rows(run), "left": victim.gone()}
    if name in MODULES:
        clear = victim.process.returncode == 2 and f"error: the {name} process ended with code -9" in said
        seen["clear"] = clear and "\nTraceback" not in f"\n{said}"  # that of a log is indented
        if not seen["clear"]:
            seen["said"] = said[-2000:]
    return seen


# What must hold at the end


def audit(run: Path, steps: int) -> dict[str, Any]:
    """Reads the journal by a rule of its own: a row counts unless a later lineage went on from before it."""
    base = sqlite3.connect(run / "rl" / "journal.db")
    starts = base.execute("SELECT lineage, row FROM lineages").fetchall()
    surviving: Counter[tuple[int, int]] = Counter()
    by_step: dict[int, set[int]] = {}
    void = set()
    for row, lineage, number, slot, state, step in base.execute(
        "SELECT row, lineage, number, slot, state, step FROM changes ORDER BY row"
    ):
        if state == "void" and slot < 0:
            void.add(number)
        if state == "trained" and all(row <= at for later, at in starts if later > lineage):
            surviving[number, slot] += 1
            by_step.setdefault(step, set()).add(number)
    base.close()
    trained = {number for number, _ in surviving}
    twice = sorted({number for (number, _), times in surviving.items() if times > 1})
    expected = set(range(steps * GROUPS + len(void)))
    return {
        "lineages": len(starts),
        "groups": len(trained),
        "void_groups": len(void),
        "skipped": sorted(expected - trained - void),
        "unexpected": sorted(trained - expected),
        "twice": twice,
        "odd_steps": [step for step in range(1, steps + 1) if len(by_step.get(step, ())) != GROUPS],
    }


def leftovers(run: Path, temporary: Path) -> list[str]:
    from etude.rl.orchestrator import board_path

    places = [board_path(run.resolve()), run / "rl" / "store", run / "rl" / "candidate"]
    found = [str(path) for path in places if path.exists()]
    # torch makes itself an empty folder for a compiler that we do not use
    found += [str(path) for path in temporary.iterdir() if not path.name.startswith("torchinductor")]
    return found + [str(path) for path in (run / "checkpoints").glob(".*")]


def surviving_steps(run: Path) -> list[int]:
    from etude.core.run_files import read_metrics

    return [row["step"] for row in read_metrics(run) if row["stage"] == "rl"]


def trial(kills: int, steps: int, seed: int, folder: Path) -> dict[str, Any]:
    run, model, temporary = folder / "run", folder / "model", folder / "tmp"
    temporary.mkdir()
    model.mkdir()
    make_model(model)
    chance, seen, began = random.Random(seed), [], time.monotonic()
    order: list[str] = []
    finished = False
    while len(seen) < kills and not finished:
        order = order or chance.sample(VICTIMS, len(VICTIMS))
        victim = Victim(run, model, steps, temporary)
        found = attack(victim, run, order.pop(), chance)
        finished = found is None
        if found is not None:
            seen.append(found)
            print(f"kill {len(seen)}: {found}", file=sys.stderr)
        elif victim.process.wait(DEADLINE) != 0:
            assert victim.process.stderr is not None
            raise SystemExit(f"the run failed:\n{victim.process.stderr.read().decode()}")
    left: list[str] = []
    if not finished:
        victim = Victim(run, model, steps, temporary)
        _, errors = victim.process.communicate(timeout=DEADLINE + 5 * steps)
        if victim.process.returncode != 0:
            raise SystemExit(f"the last resume failed:\n{errors.decode()}")
        left = victim.gone()
    result = audit(run, steps)
    result["left"] = left + leftovers(run, temporary) + [each for one in seen for each in one["left"]]
    result["unclear"] = [one for one in seen if not one.get("clear", True)]
    result["metrics_gaps"] = surviving_steps(run) != list(range(1, steps + 1))
    bad = ("skipped", "unexpected", "twice", "odd_steps", "left", "unclear", "metrics_gaps")
    return {
        "ok": len(seen) == kills and not any(result[name] for name in bad),
        "kills": len(seen),
        "victims": dict(Counter(one["victim"] for one in seen)),
        "steps": steps,
        **result,
        "seconds": round(time.monotonic() - began, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=0, help="optimiser steps; 0 takes 3 for each kill and 6 more")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--work", nargs=3, metavar=("RUN", "MODEL", "STEPS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        run, model, steps = arguments.work
        sys.exit(work(Path(run), Path(model), int(steps)))
    with tempfile.TemporaryDirectory(prefix="kill-") as folder:
        steps = arguments.steps or 6 + 3 * arguments.kills
        result = trial(arguments.kills, steps, arguments.seed, Path(folder))
    if arguments.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:>14}  {value}")
    sys.exit(0 if result["ok"] else 1)


if __name__ == "__main__":
    main()
