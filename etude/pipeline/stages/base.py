"""What a stage is, and what stages share: where a stage starts from, and what it says of itself beforehand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.core.errors import EtudeError
from etude.core.recipe import Recipe
from etude.core.run import Run
from etude.core.settings import LoraSettings
from etude.pipeline import hub
from etude.pipeline.find_model import find_model


@dataclass(frozen=True)
class Stage:
    name: str
    reads: tuple[str, ...]  # recipe keys its result depends on: fixed once it has begun
    needs: Callable[[Recipe], tuple[str, ...]]  # stages whose output it takes
    work: Callable[[Run, Recipe], None]  # continues from whatever the run holds, and calls run.finish when complete
    outline: Callable[[Recipe], dict[str, Any]]  # what it would do, for --dry-run
    check: Callable[[Recipe], None] = lambda recipe: None  # refuses what would only be found wrong after hours
    may_change: tuple[str, ...] = ()  # of `reads`: taken up anew where an unfinished stage is continued


def base_stage(recipe: Recipe) -> str:
    """The stage whose model is fine-tuned."""
    return "extend" if recipe.extend.steps else "mtp" if recipe.mtp.steps else "pretrain"


def starting_model(run: Run, given: str, stage: str, section: str) -> Path:
    """The model that a stage begins with: the one its settings name, or the newest of an earlier stage of the run."""
    start = find_model(Path(given)) if given else run.latest(stage)
    if start is None:
        raise EtudeError(f"the run {run.path} has no checkpoint of {stage} to start from; set {section}.model")
    return start


def check_model(given: str) -> None:
    """Refuses a model that is not there; of one on the hub only the configuration is fetched."""
    if given:
        planned_model(given)


def planned_model(given: str) -> Path:
    """A folder with at least the config.json of the model that a recipe names."""
    return hub.download_config(given) if hub.is_hub_name(given) else find_model(Path(given))


def check_agent(recipe: Recipe) -> None:
    """The agent and the reward that a recipe names can be made."""
    from etude.harness.summary import check_summaries
    from etude.rollout.rollout import build_setup

    setup = build_setup(recipe.harness, recipe.reward, recipe.grader, recipe.audit)
    for where, limits in setup.every_limits.items():
        check_summaries(limits, recipe.harness.summary, where)


def check_tasks(spec: dict[str, Any], where: str, first: int = 0) -> None:
    """The source can be opened, and has a task with the number `first`."""
    from etude.forge.curriculum.mixture import check_first
    from etude.forge.curriculum.sources import open_source

    check_first(open_source(spec, where), first, where)


def trained_weights(lora: LoraSettings) -> str:
    return f"adapters of rank {lora.rank} ({', '.join(lora.targets)})" if lora.rank else "all weights"
