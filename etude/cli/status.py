"""`etude status`: where a run is, what it gave so far, how long it will take, and which command comes next."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from etude.cli.console import Json, RunFolder, answer, points, print_next, share, table, values
from etude.core.progress import clock_time

SHOWN = {  # stage -> metrics or facts worth a glance, by the name that people read
    "corpus": {"train_tokens": "tokens"},
    "pretrain": {"loss": "loss", "bits_per_byte": "bits per byte"},
    "mtp": {"loss": "loss"},
    "extend": {"loss": "loss"},
    "demos": {"kept": "kept", "failed": "failed"},
    "sft": {"loss": "loss"},
    "sft-more": {"loss": "loss"},
    "rl": {"reward": "reward", "void": "void"},
}
RECENT = 20  # newest steps that the pace is taken from
COLOURS = {"finished": "green", "running": "cyan", "stopped": "yellow"}


def status(
    run: RunFolder,
    every: Annotated[bool, typer.Option("--all", help="Every newest metric of each stage.")] = False,
    json: Json = False,
) -> None:
    """Say how far a run is, what it gave, and what to do next."""

    def work() -> dict[str, Any]:
        from etude.bench.run_data import read_run
        from etude.core.run_files import summary

        found, data = summary(run), read_run(run)
        for name, stage in found["stages"].items():
            if stage["state"] == "unfinished":
                stage["state"] = "running" if found["in_use"] and name == list(found["stages"])[-1] else "stopped"
            stage |= {"seconds": data.results["seconds"].get(name), "total": _total(data.recipe, name)}
            stage["seconds_left"] = _seconds_left(data, name, stage) if stage["state"] == "running" else None
        rates = data.series("rl.eval", "pass_rate")
        found["evaluations"] = [list(each) for each in rates]
        for name in ("sft", "rl"):
            found[f"bench_{name}"] = (data.results[name] or {}).get("pass@1")
        found["gain"] = data.results["paired_gain"]
        found["next"] = _next(run, found, data.recipe)
        return found

    def show(found: dict[str, Any]) -> None:
        table(("stage", "", "step", "time", ""), [_row(name, stage, every) for name, stage in found["stages"].items()])
        for line in _figures(found):
            print(line)
        print(f"{run}: {'in use by a command' if found['in_use'] else 'no command is running'}{_resumed(found)}")
        if found["in_use"]:
            print("next: wait for it, or Ctrl-C there: the same command continues")
        print_next(*found["next"])

    answer(work, show, json)


def _row(name: str, stage: dict[str, Any], every: bool) -> tuple[Any, ...]:
    of = f" of {stage['total']}" if stage["total"] else ""
    step = f"{stage['step']}{of}" if "step" in stage else ""
    seconds, left = stage["seconds"], stage["seconds_left"]
    spent = clock_time(seconds) if seconds is not None else f"{clock_time(left)} left" if left is not None else ""
    state = Text(stage["state"], COLOURS.get(stage["state"], ""))
    if every:
        return name, state, step, spent, values(stage["metrics"] or stage["facts"])
    known = stage["facts"] | stage["metrics"]
    shown = {label: known[key] for key, label in SHOWN.get(name, {}).items() if key in known}
    return name, state, step, spent, values(shown)


def _figures(found: dict[str, Any]) -> list[str]:
    lines = []
    if rates := found["evaluations"]:
        first, last = rates[0], rates[-1]
        lines.append(
            f"evaluations during training: {first[1]:.1%} at step {first[0]:.0f}"
            + (f", {last[1]:.1%} at step {last[0]:.0f}" if len(rates) > 1 else "")
        )
    trained = found["stages"].get("rl", {}).get("metrics", {})
    if "pass_rate" in trained:
        lines.append(f"newest training step: {trained['pass_rate']:.1%} of rollouts passed")
    before, after = found["bench_sft"], found["bench_rl"]
    if before:
        lines.append(f"benchmark before: {share(before)}" + (f", after: {share(after)}" if after else ""))
    if found["gain"]:
        lines.append(f"gain by reinforcement learning: {points(found['gain'])}, in pairs")
    return lines


def _resumed(found: dict[str, Any]) -> str:
    times = found["resumes"]
    return "" if not times else ", resumed once" if times == 1 else f", resumed {times} times"


def _total(recipe: dict[str, Any], stage: str) -> int | None:
    """Steps that the stage was asked for, where the recipe says so."""
    steps = recipe.get(stage, {}).get("steps")
    return int(steps) if isinstance(steps, int) and steps else None


def _seconds_left(data: Any, stage: str, facts: dict[str, Any]) -> float | None:
    """To the last step at the pace of the newest ones, or to the end of its time, whichever comes first."""
    rows = [row for row in data.rows(stage) if isinstance(row.get("time"), float)][-RECENT:]
    ends = []
    if len(rows) > 1 and facts["total"] and rows[-1]["step"] > rows[0]["step"]:
        pace = (rows[-1]["time"] - rows[0]["time"]) / (rows[-1]["step"] - rows[0]["step"])
        ends.append(max(0.0, (facts["total"] - rows[-1]["step"]) * pace - (time.time() - rows[-1]["time"])))
    limit = data.setting(stage, "seconds")
    if isinstance(limit, float) and limit and (all_rows := data.rows(stage)):
        spent = sum(row["seconds"] for row in all_rows if isinstance(row.get("seconds"), float))
        ends.append(max(0.0, limit - spent))
    return min(ends) if ends else None


def _next(run: Path, found: dict[str, Any], recipe: dict[str, Any]) -> list[str]:
    """The commands that most people want now; none while another is at work."""
    name, stages = shlex.quote(str(run)), found["stages"]
    if found["in_use"]:
        return []
    if any(stage["state"] != "finished" for stage in stages.values()) or not stages:
        return [f"etude resume {name}"]
    if "report" in stages or (found["bench_rl"] and (run / "report.html").exists()):
        return [f"open {name}/report.html", f"etude chat {name}"]
    if "rl" in stages:
        report = f"etude report {name}"
        return [report] if found["bench_rl"] else [bench_command(run, recipe), report]
    if "sft" in stages:
        return [f"etude rl {shlex.quote(str(run / 'recipe.toml'))} --run {name}"]
    return [f"etude sample {name} 'def main('" if "pretrain" in stages else f"etude resume {name}"]


def bench_command(run: Path, recipe: dict[str, Any]) -> str:
    """What measures a trained run: on the held-out part of its own folder of tasks, else on those of its recipe."""
    name, tasks = shlex.quote(str(run)), recipe.get("rl", {}).get("tasks", {})
    path = tasks.get("path") if isinstance(tasks, dict) else None
    if not path or tasks.get("use") == "questions":  # a file, of which no part is held out
        return f"etude bench {name}"
    return f"etude bench {name} --tasks {shlex.quote(str(path))} --split held_out --save {name}/bench/rl.json"
