"""Which model directory and which recipe a path on the command line means, and this process made ready for torch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from etude.core import recipe as recipes
from etude.core.errors import EtudeError
from etude.core.recipe import Recipe
from etude.core.run_files import checkpoints_in, run_of
from etude.pipeline import hub

AGENTS = ("rl", "sft", "extend", "mtp", "pretrain")  # stages whose model acts best first
BASES = ("extend", "mtp", "pretrain", "sft", "rl")  # stages whose model continues plain text best first
DEADLINE = 300.0  # seconds to load torch and open a device, on a machine that is busy
NAMED = 6  # checkpoints that an error names
BEST = "best"  # in a run's folder: the model that did best on the evaluations of reinforcement learning


def find_model(path: Path, stages: Sequence[str] = AGENTS) -> Path:
    """The model directory meant by `path`: itself, the best or newest checkpoint of a run, or a model of the hub."""
    if (path / "run.json").exists():
        saved = checkpoints_in(path)
        for name in stages:
            of_stage = [folder for stage, _, folder in saved if stage == name]
            if of_stage:
                # The newest is not the best: reinforcement learning keeps the one that did best on held-out tasks.
                best = path / BEST
                return best if name == "rl" and best.is_dir() else of_stage[-1]
        raise EtudeError(f"the run {path} has no checkpoint yet; train it first (etude pretrain)")
    if path.is_dir():
        return path
    # `runs/NAME` reads like a name on the hub, and is where the run of a built-in recipe would lie.
    if path.parent == Path("runs") and path.name in recipes.builtin():
        raise EtudeError(f"there is no run at {path} yet; train it first (etude pretrain {path.name})")
    if hub.is_hub_name(str(path)):
        return hub.download(str(path))
    beside = sorted(each.name for each in path.parent.iterdir() if each.is_dir()) if path.parent.is_dir() else []
    known = f"; {path.parent} has {', '.join(beside[-NAMED:])}" if beside and path.parent.name == "checkpoints" else ""
    raise EtudeError(f"there is no model or run at {path}{known}")


def recipe_of(path: Path, overrides: Sequence[str]) -> Recipe:
    """The recipe of a run, of the run that a checkpoint lies in, or the defaults for a bare model; with overrides."""
    run = run_of(path)
    return recipes.load(str(run / "recipe.toml") if run is not None else None, overrides)


TRY_DEVICE = "import sys, torch; torch.empty(0, device=sys.argv[1])"


def check_device(device: str) -> None:
    """Refuses a device that does not work here, before any stage begins. Tried in a child: we have no torch."""
    if device == "cpu":
        return
    command = [sys.executable, "-c", TRY_DEVICE, device]
    try:
        tried = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
    except subprocess.TimeoutExpired:
        raise EtudeError(f"run.device is {device!r}, which did not answer within {DEADLINE:.0f} s") from None
    if tried.returncode:
        reason = (tried.stderr.strip().splitlines() or ["it could not be tried"])[-1].partition(": ")[2]
        raise EtudeError(
            f"run.device is {device!r}, which does not work here: {reason}; `etude doctor` says more, and "
            "run.device=cpu always works"
        )


def prepare_device(recipe: Recipe) -> str:
    """Sets this process up for torch and returns the recipe's device, which is tried."""
    from etude.model.torch_process import prepare

    prepare(recipe.run.threads)
    import torch

    try:
        torch.empty(0, device=recipe.run.device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise EtudeError(f"run.device is {recipe.run.device!r}, which does not work here: {reason}") from None
    return recipe.run.device
