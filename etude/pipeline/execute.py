"""Runs stages in order: a finished one is skipped, an unfinished one continues, and each brings what it needs.

What a stage does is in `stages/`.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.bench.run_results import stage_seconds
from etude.cluster.start import check_programs
from etude.core import recipe as recipes
from etude.core.errors import EtudeError
from etude.core.progress import clock_time
from etude.core.recipe import Recipe
from etude.core.run import TYPED, Run, typed_command
from etude.core.run_files import check_recipe, checkpoints_in, read_facts
from etude.core.sinks.feed import open_sinks
from etude.pipeline.estimate import cost, seconds_left
from etude.pipeline.find_model import check_device
from etude.pipeline.stages.base import Stage
from etude.pipeline.stages.table import STAGES, checked_stages

SHORTEST = 10.0  # seconds that are worth announcing: the start of a process takes one or two of them
INTERRUPTED = 130  # how a command ends that Ctrl-C stopped


MAY_CHANGE = {stage.name: stage.may_change for stage in STAGES.values()}


@dataclass(frozen=True)
class Executed:
    """What a command did to a run."""

    path: Path
    done: tuple[str, ...]  # stages completed by this command
    before: tuple[str, ...]  # stages that were finished already
    stopped: str  # the stage that was interrupted, or nothing
    facts: dict[str, dict[str, Any]]  # of each finished stage
    model: Path | None  # the newest checkpoint


def open_run(path: Path, recipe: Recipe, *, fresh: bool = False) -> Run:
    """The run at `path`, new or continued, with this recipe."""
    return Run.open(
        path,
        recipes.to_dict(recipe),
        fresh=fresh,
        defaults=recipes.to_dict(Recipe()),
        may_change=MAY_CHANGE,
        listen=open_sinks,
    )


def execute(target: str, recipe: Recipe, path: Path, *, fresh: bool = False) -> Executed:
    """Brings the run at `path` to the end of `target`."""
    stages = checked_stages(target, recipe)
    if TYPED not in os.environ:  # whoever started this process for a stage has tried it
        check_machine(recipe, stages)
    with open_run(path, recipe, fresh=fresh) as run:
        before = tuple(stage.name for stage in stages if run.finished(stage.name))
        done: list[str] = []
        stopped = ""
        for stage in stages:
            # Asked before the first stage runs: what this command finishes itself is no part of `before`.
            if stage.name in before:
                continue
            if not run.stopping:
                run.begin(stage.name, stage.reads)
                stage.work(run, recipe)
            if not run.finished(stage.name):
                stopped = stage.name
                break
            done.append(stage.name)
        facts = {stage.name: run.facts(stage.name) for stage in stages if run.finished(stage.name)}
        saved = [folder for stage in stages for folder in run.checkpoints(stage.name)]
        return Executed(run.path, tuple(done), before, stopped, facts, saved[-1] if saved else None)


def check_machine(recipe: Recipe, stages: list[Stage]) -> None:
    """Refuses a device or programs of a cluster that this machine lacks. A plan (`outline`) needs neither."""
    check_device(recipe.run.device)
    if any(stage.name == "rl" for stage in stages):
        check_programs(recipe.cluster)


def outline(target: str, recipe: Recipe, path: Path, *, fresh: bool = False) -> list[dict[str, Any]]:
    """What `execute` would do, stage by stage, without doing it; refuses what `execute` would refuse."""
    stages = checked_stages(target, recipe)
    begun = {} if fresh else _begun(path, recipe)
    rows = []
    for stage in stages:
        steps = [step for name, step, _ in checkpoints_in(path) if name == stage.name] if begun else []
        if "finished" in begun.get(stage.name, {}):
            state = "finished, nothing to do"
        else:
            state = f"continues after step {steps[-1]}" if steps else "starts"
        rows.append({"stage": stage.name, "state": state, **stage.outline(recipe)})
    return rows


def _begun(path: Path, recipe: Recipe) -> dict[str, Any]:
    """What run.json says of each stage that has begun; refuses a recipe that the run was not made with."""
    if not (path / "run.json").exists():
        return {}
    facts = read_facts(path)
    check_recipe(path, facts, recipes.to_dict(recipe), recipes.to_dict(Recipe()), MAY_CHANGE)
    stages: dict[str, Any] = facts["stages"]
    return stages


def execute_apart(
    target: str, source: str, overrides: list[str], path: Path, *, fresh: bool = False, quiet: bool = False
) -> str:
    """Like `execute`, with a process for each stage; returns the stage that stopped before its end, or nothing.

    So no stage inherits the memory of another, and the loop of reinforcement learning never loads torch.
    """
    recipe = recipes.load(source, overrides)
    every = checked_stages(target, recipe)
    check_machine(recipe, every)
    # A finished stage needs no process to find that out: twelve starts of a second or two each.
    begun = {} if fresh else _begun(path, recipe)
    stages = [stage for stage in every if "finished" not in begun.get(stage.name, {})]
    for number, stage in enumerate(stages):
        command = [sys.executable, "-m", "etude", "run", source, *overrides, "--run", str(path)]
        command += ["--stage", stage.name, *(["--fresh"] if fresh and not number else []), "--json"]
        if not quiet:
            left = [later.name for later in stages[number:]]
            print(_heading(recipe, path, stage.name, every.index(stage) + 1, len(every), left), file=sys.stderr)
        with _child_that_hears_signals(command, quiet) as child:
            output = child.communicate()[0]
        # The last line is the answer; a stage may have printed others before it.
        answer = json.loads(output.splitlines()[-1]) if output.strip() else {"error": f"code {child.returncode}"}
        if child.returncode:
            if child.returncode == INTERRUPTED:
                return stage.name
            # Nobody else sends it unasked; a bare code would leave people guessing.
            if child.returncode == -signal.SIGKILL:
                answer["error"] = "the system killed it, most likely for lack of memory; run the same command again"
            raise EtudeError(f"{stage.name}: {answer['error']}")
    return ""


def _heading(recipe: Recipe, path: Path, stage: str, number: int, total: int, left: list[str]) -> str:
    """Where the whole is: which stage of how many, and roughly how long it and the rest will take."""
    took = stage_seconds(read_facts(path)) if (path / "run.json").exists() else {}
    this, rest = (seconds_left(recipe, names, took) for names in (left[:1], left))
    parts = [f"about {clock_time(this)}"] if this is not None and this >= SHORTEST else []
    parts += [f"about {clock_time(rest)} to the end"] if rest is not None and rest >= SHORTEST and len(left) > 1 else []
    parts += [f"about {price}"] if (price := cost(recipe, rest)) else []
    return f"stage {number} of {total}: {stage}" + (f" ({', '.join(parts)})" if parts else "")


@contextmanager
def _child_that_hears_signals(command: list[str], quiet: bool) -> Iterator[subprocess.Popen[str]]:
    """A child that hears of Ctrl-C and SIGTERM, and that is waited for when they come."""
    # What the person typed goes along: the child's own command is internal, and nobody should be told to repeat it.
    environment = os.environ | {TYPED: shlex.join(typed_command())}
    errors = subprocess.DEVNULL if quiet else None
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)

    def pass_on(number: int, _: object) -> None:
        if number == signal.SIGTERM:  # Ctrl-C reaches the child by itself
            child.terminate()

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield child
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if child.poll() is None:
            child.kill()
            child.wait()


def unfinished(path: Path) -> str:
    """What the last command on the run at `path` was to bring it to, if that is not finished; otherwise nothing.

    `etude run` goes to the report; any other command to the last stage that has begun.
    """
    facts = read_facts(path)
    begun, commands = facts["stages"], [lineage["machine"]["command"] for lineage in facts["lineages"]]
    # `etude resume` goes on with what was asked for before it.
    command: list[str] = next((each for each in reversed(commands) if each[1:2] != ["resume"]), [])
    names = ["report"] if command[1:2] == ["run"] else [name for name in STAGES if name in begun]
    return names[-1] if names and "finished" not in begun.get(names[-1], {}) else ""
