"""All stages in their order.

    corpus -> pretrain [-> mtp] [-> extend] -> demos -> sft
           -> bench-sft -> rl -> bench-rl [-> sft-more -> bench-sft-more] -> report

Stages join the rooms, which do not know each other. A room is imported only when its stage runs, so a stage that needs
no torch never loads it.
"""

from __future__ import annotations

from etude.core.errors import EtudeError
from etude.core.recipe import Recipe, missing
from etude.core.sinks.table import build_sinks
from etude.pipeline.stages.base import Stage
from etude.pipeline.stages.evaluation import BENCH_RL, BENCH_SFT, BENCH_SFT_MORE, REPORT
from etude.pipeline.stages.fine_tuning import DEMONSTRATIONS, SFT, SFT_MORE
from etude.pipeline.stages.pretraining import CORPUS, EXTEND, MTP, PRETRAIN
from etude.pipeline.stages.reinforcement import RL

_ORDER = (CORPUS, PRETRAIN, MTP, EXTEND, DEMONSTRATIONS, SFT, BENCH_SFT, RL, BENCH_RL, SFT_MORE, BENCH_SFT_MORE, REPORT)
WHAT = {  # keys that recipes ask for, in words
    "pretrain.model": "a run, a checkpoint or a Hugging Face directory to continue",
    "sft.data": "a JSONL file of conversations",
    "rl.model": "a run, a checkpoint, a Hugging Face directory, or a name on its hub",
    "rl.tasks.path": "a folder of tasks, as `etude tasks make` writes it",
    "bench.tasks.path": "a folder of tasks to measure with",
}
STAGES = {stage.name: stage for stage in _ORDER}


def stages_for(target: str, recipe: Recipe) -> list[Stage]:
    """The target and everything it needs, in order."""
    if target not in STAGES:
        raise EtudeError(f"no stage is called {target!r}; known: {', '.join(STAGES)}")
    stage = STAGES[target]
    ordered = [found for need in stage.needs(recipe) for found in stages_for(need, recipe)]
    return list({found.name: found for found in [*ordered, stage]}.values())


def checked_stages(target: str, recipe: Recipe) -> list[Stage]:
    """The same, each one's inputs looked at before the first begins."""
    stages = stages_for(target, recipe)
    # A key of a stage's own section is asked for when that stage is on the way; rl's also by the benchmark before it.
    sections = {"bench" if stage.name.startswith("bench-") else stage.name for stage in stages}
    sections |= {"rl"} if "bench" in sections else set()
    if lacking := [key for key in missing(recipe) if key.partition(".")[0] in sections]:
        wants = " and ".join(f"{key} ({WHAT[key]})" if key in WHAT else key for key in lacking)
        raise EtudeError(f"this recipe needs {wants}: add " + " ".join(f"{key}=..." for key in lacking))
    # All of them first: a typo in the last stage's settings is found before hours of training.
    for stage in stages:
        stage.check(recipe)
    build_sinks(recipe.run.sinks)
    return stages
