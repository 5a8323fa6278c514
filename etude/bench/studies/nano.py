"""What studies of the size of recipe `nano` share: the pretrained and the fine-tuned model, and commands from them on.

One model is pretrained for all seeds; a seed has demonstrations, fine-tuning, tasks and rollouts of its own.
"""

from __future__ import annotations

from etude.bench.studies.study import Base, Words

PRETRAINED = Base("pretrained", (("pretrain", "nano", "--run", "{run}"),), "pretrain", seeded=False, minutes=4)
# Families that fine-tuning teaches well, for tasks that are made of several.
LEARNT = "['rotate', 'percent', 'ring', 'keep', 'initials', 'slug', 'lookup', 'pad']"


def tuned(name: str, *keys: str, recipe: str = "nano", minutes: float = 2.5) -> Base:
    """The pretrained model, fine-tuned on the demonstrations of a recipe."""
    words = ("sft", recipe, "sft.model={pretrained}/model", "run.seed={seed}", *keys, "--run", "{run}")
    return Base(name, (words,), needs=(PRETRAINED,), minutes=minutes)


NANO = tuned("nano")


def reinforced(base: Base, *keys: str, recipe: str = "nano") -> Words:
    """Reinforcement learning from a base, on tasks of the seed's own."""
    start = ("rl", recipe, f"rl.model={{{base.name}}}/model", "run.seed={seed}", "rl.tasks.seed={seed}")
    return (*start, *keys, "--run", "{run}")


def benched(*keys: str, model: str = "{run}", recipe: str = "nano") -> Words:
    """A benchmark on held-out tasks, beside the arm's run."""
    return ("bench", model, *keys, "--recipe", recipe, "--save", "{arm}/bench.json")
