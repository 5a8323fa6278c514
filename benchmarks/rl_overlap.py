"""Sampling and learning at once against taking turns: the same work, from the same model, in one run.

    python benchmarks/rl_overlap.py RUN [rl.concurrency=96 ...] [--steps 12] [--rounds 2] [--picture FILE.svg] [--json]

RUN is a finished `etude run nano` (its fine-tuned model is where both sides begin). "At once" has one thread for the
engine and one for the learner; "in turns" has two threads for each phase. Rounds alternate. The figure is the ratio of
rollouts trained each second, start-up not counted. The picture shows where the processors' time went.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from etude.core.run_files import checkpoints_in, read_metrics
from etude.pipeline.execute import execute
from etude.pipeline.find_model import recipe_of

BAR = 1.15
SIDES = {"at once": "true", "in turns": "false"}
PARTS = {"cpu_engine": "engine", "cpu_learner": "learner", "cpu_sandboxes": "sandboxes", "cpu_loop": "loop"}
COLOURS = ("#3b6fb6", "#c8702a", "#4c8c5a", "#8a6bb1")


def play(run: Path, overrides: list[str], concurrent: str, steps: int, folder: Path) -> list[dict[str, float]]:
    model = [path for stage, _, path in checkpoints_in(run) if stage == "sft"][-1]
    changes = [f"rl.model={model}", f"rl.concurrent={concurrent}", f"rl.steps={steps}", "rl.seconds=0"]
    changes += ["rl.eval_every=0", "rl.save_every=100000"]
    execute("rl", recipe_of(run, [*changes, *overrides]), folder)
    rows = [row for row in read_metrics(folder) if row["stage"] == "rl"]
    return rows[2:]  # the first steps wait for processes to warm up and for the first rollouts


def draw(shares: dict[str, dict[str, float]], path: Path) -> None:
    """Two bars, cores busy on average and with what."""
    lines = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 560 150" font-family="sans-serif" font-size="13">']
    lines.append('<rect width="560" height="150" fill="white"/>')
    for number, (side, parts) in enumerate(shares.items()):
        x, y = 90.0, 20 + 45 * number
        lines.append(f'<text x="8" y="{y + 19}">{side}</text>')
        for colour, (key, _) in zip(COLOURS, PARTS.items(), strict=True):
            width = 220 * parts[key]
            lines.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="28" fill="{colour}"/>')
            x += width
        lines.append(f'<text x="{x + 6:.1f}" y="{y + 19}">{sum(parts.values()):.2f} cores</text>')
    for number, (colour, name) in enumerate(zip(COLOURS, PARTS.values(), strict=True)):
        lines.append(f'<rect x="{90 + 110 * number}" y="120" width="12" height="12" fill="{colour}"/>')
        lines.append(f'<text x="{107 + 110 * number}" y="131">{name}</text>')
    path.write_text("\n".join([*lines, "</svg>\n"]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("overrides", nargs="*", help="changes to the recipe of both sides")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    speeds: dict[str, list[float]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            for side, concurrent in SIDES.items():
                at = Path(folder) / f"{number}-{concurrent}"
                found = play(options.run, options.overrides, concurrent, options.steps, at)
                rows[side] += found
                speeds[side].append(sum(row["rollouts"] for row in found) / sum(row["seconds"] for row in found))
    seconds = {side: sum(row["seconds"] for row in found) for side, found in rows.items()}
    shares = {
        side: {key: sum(row[key] * row["seconds"] for row in found) / seconds[side] for key in PARTS}
        for side, found in rows.items()
    }
    speed = {side: statistics.median(values) for side, values in speeds.items()}
    ratio = speed["at once"] / speed["in turns"]
    if options.picture:
        draw(shares, options.picture)
    for side in SIDES:
        print(
            f"{side}: {speed[side]:.1f} rollouts/s; cores: "
            + ", ".join(f"{PARTS[k]} {v:.2f}" for k, v in shares[side].items())
        )
    print(f"{ratio:.2f}x (bar {BAR}x)")
    if options.json:
        print(
            json.dumps(
                {"ok": ratio >= BAR, "ratio": ratio, "bar": BAR, "speed": speed, "speeds": speeds, "cores": shares}
            )
        )
    return 0 if ratio >= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
