"""How much of the rollouts under way is kept when a process of a training run is killed at a random moment?

    python benchmarks/reliability/kill_loop.py [--kills 20] [--model DIR] [--workers 2] [--engines 2] [--seed 0]

A run with real sandboxes, engines, workers and a learner is hit by SIGKILL again and again: the orchestrator, a worker,
an engine or the learner. A killed orchestrator is started again by the same command; the others must come back by
themselves. Before each kill the tokens that the records of turns hold are counted, of the rollouts that the victim
runs; afterwards the run says how many tokens its rollouts did not sample again. Tokens that were sampled and not yet
recorded are counted as lost: on average half of `cluster.save_tokens` for each rollout. At the end the journal must
show that no group was skipped and none trained twice. Without --model the policy is a toy with random weights.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
DEADLINE = 240.0  # seconds for a run to come to the next step
KINDS = ("orchestrator", "worker", "engine", "learner")
MODULES = {"learner": "etude.rl.learner.process", "engine": "etude.serve.server", "worker": "etude.rl.workers.process"}
SAVE_TOKENS = 8
BETWEEN = 3  # steps at least between two kills: rollouts under way at the first are finished then


def older() -> Any:
    """benchmarks/rl_kill.py: its toy model and its reader of the journal."""
    spec = importlib.util.spec_from_file_location("rl_kill", HERE.parents[1] / "rl_kill.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def settings(model: Path, steps: int, workers: int, engines: int, toy: bool) -> list[str]:
    found = [each for each in older().settings(model, steps) if not each.startswith("cluster.")]
    if not toy:  # the shape of its own recipe, with groups as small as the toy's
        found = [each for each in found if each.startswith("rl.")]
    else:
        found += ["harness.limits.sampled_tokens=160"]
    found += [f"cluster.rollout_workers={workers}", f"cluster.engines={engines}", "cluster.restarts=8"]
    found += [f"cluster.save_tokens={SAVE_TOKENS}", "run.threads=1", "rl.eval_every=0", "rl.concurrency=12"]
    return found


def work(run_path: Path, model: Path, options: list[str], recipe_name: str) -> int:
    """The orchestrator: what this script is when it is the victim."""
    from etude.core import recipe as recipes
    from etude.core.errors import EtudeError
    from etude.core.run import Run
    from etude.rl.orchestrator import train

    recipe = recipes.load(recipe_name or None, options)
    try:
        with Run.open(run_path, recipes.to_dict(recipe)) as run:
            print(json.dumps(asyncio.run(train(run, recipe, model))))
    except EtudeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


class Running:
    """The command under way, and its processes."""

    def __init__(self, run: Path, model: Path, options: list[str], recipe: str, temporary: Path) -> None:
        self.run = run
        command = [sys.executable, str(HERE), "--work", str(run), str(model), recipe, *options]
        # To a file: a pipe that nobody reads would stop it.
        self.log = temporary / "output"
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=output, env={**os.environ, "TMPDIR": str(temporary)}
            )

    def pids(self, kind: str) -> list[int]:
        if kind == "orchestrator":
            return [self.process.pid]
        return [pid for pid in map(int, self._candidates()) if MODULES[kind] in command_of(pid)]

    def _candidates(self) -> list[str]:
        """The command's own children; on Ray programs have other parents, and name the run (ray_cluster.py)."""
        with contextlib.suppress(OSError):
            return Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return []

    def records(self, pid: int | None) -> list[Path]:
        """The records of rollouts under way: of one process, or of all."""
        folder = self.run / "rl" / "turns"
        if pid is None:
            return list(folder.glob("*.turns"))
        found = []
        for handle in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                place = handle.readlink()
                if place.suffix == ".turns":
                    found.append(place)
        return found

    def rows(self) -> list[dict[str, Any]]:
        path = self.run / "metrics.jsonl"
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        return [row for row in map(json.loads, lines) if row["stage"] == "rl"]

    def wait_rows(self, count: int) -> bool:
        """Whether the run came so far; False when it was finished before."""
        deadline = time.monotonic() + DEADLINE
        while len(self.rows()) < count:
            if self.process.poll() is not None:
                return False
            if time.monotonic() > deadline:
                raise SystemExit(f"no step within {DEADLINE:.0f} s:\n{self.log.read_text()[-3000:]}")
            time.sleep(0.02)
        return True


def command_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    return ""


def alive(pid: int) -> bool:
    try:
        return b"State:\tZ" not in Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return False


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
    model, temporary, run = options.model or folder / "model", folder / "tmp", folder / "run"
    temporary.mkdir()
    if toy:
        model.mkdir()
        older().make_model(model)
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
    found = older().audit(run, steps)
    kept, recorded = (sum(facts[name] for facts in seen) for name in ("kept", "recorded"))
    lost = sum(facts["rollouts"] for facts in seen) * SAVE_TOKENS / 2
    bad = ("skipped", "unexpected", "twice", "odd_steps")
    return {
        "ok": len(seen) == options.kills and not any(found[name] for name in bad),
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
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--model", type=Path, help="a fine-tuned checkpoint of the recipe nano")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--work", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        run, model, recipe, *overrides = options.work
        sys.exit(work(Path(run), Path(model), overrides, recipe))
    with tempfile.TemporaryDirectory(prefix="kill-") as folder:
        result = trial(options, Path(folder))
    if options.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:>18}  {value}")
    sys.exit(0 if result["ok"] else 1)


if __name__ == "__main__":
    main()
