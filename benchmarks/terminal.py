"""What a person sees of `etude rl`, captured in tmux while it moves: dashboard and bar at 80 and 200 columns, piped.

    python benchmarks/terminal.py --out captures          (about two minutes on 2 cores; needs tmux)

A toy model learns for a few steps in a real terminal of each size. The screen is captured every second, and each
capture is held to what a terminal shows: no line is wider than the screen, the figures move from capture to capture,
and the piped command writes whole lines without a control character. The captures are written to --out.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

from etude.forge.katas.task_source import katas
from etude.model.checkpoint.directory import save_model
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder
from etude.tokens.tokenizer import Tokenizer

LONGEST = 180.0  # seconds for one command
SETTINGS = [
    *("engine.max_length=1024", "harness.limits.turns=2", "harness.limits.sampled_tokens=48", "rl.groups=2"),
    *("harness.limits.context_tokens=1000", "harness.spec=none", "rl.group=4", "rl.concurrency=8", "rl.staleness=2"),
    *("rl.eval_every=5", "rl.eval_tasks=2", "rl.save_every=100", "rl.probe_tokens=64", "run.threads=2"),
]
REWARD = """
from etude.reward.base import Part


class Luck(Part):
    def score(self, rollout):
        return sum(id for segment in rollout.trajectory.segments for id in segment.ids) % 7 / 7
"""
SECTIONS = ("reward", "passed", "length", "entropy", "staleness", "mismatch", "rollouts", "sampler", "learner")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    model = toy(out / "model")
    (out / "luck.py").write_text(REWARD)  # what it happened to write: groups differ, and there is something to learn
    found = {}
    for name, columns, lines, dashboard in (
        ("dashboard-80", 80, 24, True),
        ("dashboard-200", 200, 50, True),
        ("bar-80", 80, 24, False),
        ("bar-200", 200, 50, False),
    ):
        captures = capture(command(model, out, name, options.steps, dashboard), columns, lines)
        (out / f"{name}.txt").write_text("\n\f\n".join(captures) + "\n")
        found[name] = facts(captures, columns, dashboard)
    found["piped"] = piped(command(model, out, "piped", options.steps, True), out / "piped.txt")
    shutil.rmtree(model)
    print(json.dumps(found, indent=1))
    sys.exit(0 if all(each["ok"] for each in found.values()) else 1)


def toy(path: Path) -> Path:
    """Two layers of width 32, random weights: it solves nothing, and samples something else each time."""
    tokenizer = Tokenizer.train([task.instruction for task in katas("train", 40, seed=3)], 400)
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
    )
    save_model(path, Decoder(config, seed=1))
    tokenizer.save(path)
    return path


def command(model: Path, out: Path, name: str, steps: int, dashboard: bool) -> list[str]:
    reward = f"reward.parts=[{{use='tests'}}, {{use='{out / 'luck.py'}:Luck'}}]"
    settings = [*SETTINGS, reward, f"rl.model={model}", f"rl.steps={steps}", f"run.dashboard={str(dashboard).lower()}"]
    return [sys.executable, "-m", "etude", "rl", "nano", *settings, "--run", str(out / "runs" / name), "--fresh"]


def tmux(server: str, *arguments: str) -> str:
    done = subprocess.run(["tmux", "-L", server, *arguments], capture_output=True, text=True, timeout=30, check=True)
    return done.stdout


def capture(argv: list[str], columns: int, lines: int) -> list[str]:
    """The screen, once a second until the command has ended, and once more."""
    line = f"{shlex.join(argv)}; echo exit $?; sleep 600"
    # A server of its own for each: the one before may still be on its way out.
    server = f"etude-terminal-{os.getpid()}-{columns}-{time.monotonic_ns()}"
    tmux(server, "-u", "new-session", "-d", "-x", str(columns), "-y", str(lines), "-s", "one", line)
    captures: list[str] = []
    try:
        until = time.monotonic() + LONGEST
        while time.monotonic() < until and not (captures and re.search(r"^exit \d+", captures[-1], re.M)):
            time.sleep(1.0)
            captures.append(tmux(server, "capture-pane", "-p", "-t", "one").rstrip("\n"))
    finally:
        tmux(server, "kill-server")
    return captures


def facts(captures: list[str], columns: int, dashboard: bool) -> dict[str, object]:
    widest = max(len(line) for each in captures for line in each.splitlines())
    # The two that a person reads the clock by: they have to move.
    mark = r"step (\d+) of" if dashboard else r"(\d+)/\d+ steps|(\d+)%"
    seen = [found.group(0) for each in captures if (found := re.search(mark, each))]
    last = next((each for each in reversed(captures) if not dashboard or "sampler" in each), "")
    lacking = [name for name in SECTIONS if not re.search(rf"^.*\b{name} ", last, re.M)] if dashboard else []
    ended = bool(re.search(r"^exit 0", captures[-1], re.M))
    return {
        "ok": widest <= columns and len(set(seen)) > 1 and not lacking and ended,
        "captures": len(captures),
        "widest_line": widest,
        "different_marks": len(set(seen)),
        "lacking": lacking,
        "ended_well": ended,
    }


def piped(argv: list[str], file: Path) -> dict[str, object]:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=LONGEST)
    file.write_text(done.stderr)
    control = re.findall(r"[\x00-\x08\x0b-\x1f\x7f]", done.stderr)
    return {"ok": not control and done.returncode == 0, "lines": len(done.stderr.splitlines()), "control": len(control)}


if __name__ == "__main__":
    main()
