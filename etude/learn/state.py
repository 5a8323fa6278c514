"""What a learner leaves in a checkpoint directory, and how it takes it up again.

    config.json, model.safetensors   the model, as any Hugging Face reader knows it
    optimiser.safetensors            moments, momentum and averaged weights
    learner.json                     counters

Making the directory appear whole or not at all is the business of whoever owns it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from etude.errors import EtudeError
from etude.model.checkpoint import load_model, save_model

if TYPE_CHECKING:
    from etude.learn.learner import Learner

TENSORS = "optimiser.safetensors"
COUNTERS = "learner.json"


def save(learner: Learner, directory: Path) -> None:
    save_model(directory, learner.decoder)
    save_file({name: x.detach().cpu().contiguous() for name, x in _tensors(learner).items()}, directory / TENSORS)
    counters = {"steps": learner.steps, "skipped": learner.skipped}
    (directory / COUNTERS).write_text(json.dumps(counters) + "\n")


@torch.no_grad()
def restore(learner: Learner, directory: Path) -> None:
    try:
        counters = json.loads((directory / COUNTERS).read_text())
        steps, skipped = int(counters["steps"]), int(counters["skipped"])
    except (OSError, ValueError, KeyError, TypeError):
        raise EtudeError(f"{directory} cannot be resumed: {COUNTERS} is missing or damaged") from None
    saved = load_model(directory)
    if saved.config != learner.decoder.config:
        raise EtudeError(f"{directory} holds a model of another shape than this run's; resume it with its own recipe")
    path, tensors = directory / TENSORS, _tensors(learner)
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
            if shapes != {name: tuple(x.shape) for name, x in tensors.items()}:
                raise EtudeError(f"{path} was written with other optimiser settings; resume it with its own recipe")
            for name, tensor in tensors.items():
                tensor.copy_(file.get_tensor(name))
    except (SafetensorError, OSError) as broken:
        raise EtudeError(f"{path} cannot be read ({broken}); the checkpoint is damaged or cut short") from None
    for live, stored in zip(learner.decoder.parameters(), saved.parameters(), strict=True):
        live.copy_(stored)
    learner.steps, learner.skipped = steps, skipped


def _tensors(learner: Learner) -> dict[str, Tensor]:
    averages = dict(learner.weights["ema"].named_parameters()) if "ema" in learner.weights else {}
    return learner.optimiser.state() | {f"ema.{name}": p for name, p in averages.items()}
