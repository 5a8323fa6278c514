"""What a learner leaves in a checkpoint directory, and how it takes it up again.

    config.json, model.safetensors   the model, as any Hugging Face reader knows it
    adapter/                         its adapters, as PEFT reads them, where adapters were trained
    optimiser.safetensors            moments, momentum and averaged weights
    learner.json                     counters

Making the directory appear whole or not at all is the business of whoever owns it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from etude.core.errors import EtudeError
from etude.learn import lora
from etude.model.checkpoint.directory import load_model, named_weights, save_model
from etude.model.lora_linear import adapted

if TYPE_CHECKING:
    from etude.learn.learner import Learner
    from etude.model.decoder import Decoder

TENSORS = "optimiser.safetensors"
COUNTERS = "learner.json"


def save(learner: Learner, directory: Path) -> None:
    save_model(directory, learner.decoder)
    lora.save(directory, learner.decoder)
    save_file({name: x.detach().cpu().contiguous() for name, x in _tensors(learner).items()}, directory / TENSORS)
    counters: dict[str, int | str] = {"steps": learner.steps, "skipped": learner.skipped}
    if adapted(learner.decoder):
        counters["base"] = lora.fingerprint(learner.decoder)
    (directory / COUNTERS).write_text(json.dumps(counters) + "\n")


@torch.no_grad()
def restore(learner: Learner, directory: Path) -> None:
    try:
        counters = json.loads((directory / COUNTERS).read_text())
        steps, skipped = int(counters["steps"]), int(counters["skipped"])
    except (OSError, ValueError, KeyError, TypeError):
        raise EtudeError(f"{directory} cannot be resumed: {COUNTERS} is missing or damaged") from None
    # Read before anything is written: a checkpoint whose model is damaged leaves the learner as it was.
    weights = _weights(learner.decoder, directory, counters)
    path, tensors = directory / TENSORS, _tensors(learner)
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
            # Checkpoints from before buffers were averaged have none: those begin with the live ones.
            unsaved = {name for name in _buffers(learner.decoder) if f"ema.{name}" in tensors.keys() - shapes.keys()}
            tensors = {name: x for name, x in tensors.items() if name.removeprefix("ema.") not in unsaved}
            if shapes != {name: tuple(x.shape) for name, x in tensors.items()}:
                raise EtudeError(f"{path} was written with other optimiser settings; resume it with its own recipe")
            for name, tensor in tensors.items():
                tensor.copy_(file.get_tensor(name))
    except (SafetensorError, OSError) as broken:
        raise EtudeError(f"{path} cannot be read ({broken}); the checkpoint is damaged or cut short") from None
    live = named_weights(learner.decoder) | lora.parameters(learner.decoder)
    for name, stored in weights.items():
        live[name].copy_(stored)
    for name in unsaved:
        learner.weights["ema"].get_buffer(name).copy_(learner.decoder.get_buffer(name))
    learner.steps, learner.skipped = steps, skipped


def _weights(decoder: Decoder, directory: Path, counters: dict[str, Any]) -> Mapping[str, Tensor]:
    """What a checkpoint holds of what was trained, by name: the adapters, if there are any, or the whole model."""
    if adapted(decoder):
        if counters.get("base") != lora.fingerprint(decoder):
            raise EtudeError(
                f"{directory} holds adapters to other weights than those of the model that this stage starts from; "
                "put that model back, or start over with --fresh"
            )
        return lora.read(directory, decoder)
    saved = load_model(directory)
    if saved.config != decoder.config:
        raise EtudeError(f"{directory} holds a model of another shape than this run's; resume it with its own recipe")
    return named_weights(saved)


def average(learner: Learner) -> None:
    """Moves the averaged weights towards the live ones."""
    live = _averaged(learner, learner.decoder)
    for name, average in _averaged(learner, learner.weights["ema"]).items():
        average.detach().lerp_(live[name].detach(), 1 - learner.optim.ema)


def _averaged(learner: Learner, decoder: Decoder) -> dict[str, Tensor]:
    """What averaged weights follow of the live ones: trained parameters, and the buffers of a checkpoint.

    Buffers too: experts are chosen by a bias that is one (`e_score_correction_bias`), and averaged weights that kept
    the bias of the start would route as nobody does.
    """
    trained = {name: p for name, p in decoder.named_parameters() if name in learner.optimiser.parameters}
    return trained | _buffers(decoder)


def _buffers(decoder: Decoder) -> dict[str, Tensor]:
    parameters = {name for name, _ in decoder.named_parameters(remove_duplicate=False)}
    return {name: x for name, x in decoder.state_dict().items() if name not in parameters and x.is_floating_point()}


def _tensors(learner: Learner) -> dict[str, Tensor]:
    averages = _averaged(learner, learner.weights["ema"]) if "ema" in learner.weights else {}
    return learner.optimiser.state() | {f"ema.{name}": x for name, x in averages.items()}
