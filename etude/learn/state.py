"""What a learner leaves in a checkpoint directory, and how it takes it up again.

    config.json, model.safetensors   the model, as any Hugging Face reader knows it
    adapter/                         its adapters, as PEFT reads them, where adapters were trained
    optimiser*.safetensors           moments, momentum and averaged weights, in one file or in one for each rank
    learner.json                     counters

Making the directory appear whole or not at all is the business of whoever owns it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from etude.core.errors import EtudeError
from etude.learn import lora
from etude.learn.tensor_parts import Part, StoredParts, write_parts
from etude.model.checkpoint.directory import load_model, named_weights, save_model, saved_tensors
from etude.model.lora_linear import adapted

if TYPE_CHECKING:
    from etude.learn.learner import Learner
    from etude.model.decoder import Decoder

TENSORS = "optimiser"
COUNTERS = "learner.json"


def save(learner: Learner, directory: Path) -> None:
    writing(learner, directory)()


def writing(learner: Learner, directory: Path, copy: bool = False) -> Callable[[], None]:
    """What writes the checkpoint of now; with `copy` it may be called while training goes on."""
    decoder, steps, skipped = learner.decoder, learner.steps, learner.skipped
    parts = {name: Part(copied(x) if copy else x, tuple(x.shape)) for name, x in _tensors(learner).items()}
    tensors = [(name, copied(x)) for name, x in saved_tensors(decoder)] if copy else None
    adapters = {name: copied(x) for name, x in lora.parameters(decoder).items()} if copy else None
    base = lora.fingerprint(decoder) if adapted(decoder) else None

    def write() -> None:
        save_model(directory, decoder, tensors=tensors)
        lora.save(directory, decoder, adapters)
        write_parts(directory, TENSORS, parts, 0, 1)
        write_counters(directory, steps, skipped, base)

    return write


def copied(x: Tensor) -> Tensor:
    """In the host's memory, where nobody changes it."""
    return x.detach().to("cpu", copy=True)


def write_counters(directory: Path, steps: int, skipped: int, base: str | None) -> None:
    """`base` is the fingerprint of the frozen weights that adapters belong to."""
    counters: dict[str, int | str] = {"steps": steps, "skipped": skipped} | ({} if base is None else {"base": base})
    (directory / COUNTERS).write_text(json.dumps(counters) + "\n")


def read_counters(directory: Path) -> tuple[int, int, str | None]:
    """Steps, skipped steps and the fingerprint."""
    try:
        counters = json.loads((directory / COUNTERS).read_text())
        return int(counters["steps"]), int(counters["skipped"]), counters.get("base")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise EtudeError(f"{directory} cannot be resumed: {COUNTERS} is missing or damaged") from None


@torch.no_grad()
def restore(learner: Learner, directory: Path) -> None:
    steps, skipped, base = read_counters(directory)
    # Read before anything is written: a checkpoint whose model is damaged leaves the learner as it was.
    weights = _weights(learner.decoder, directory, base)
    tensors = _tensors(learner)
    with StoredParts(directory, TENSORS) as stored:
        unsaved = check_optimiser(stored, {name: tuple(x.shape) for name, x in tensors.items()}, learner.decoder)
        for name, tensor in tensors.items():
            if name.removeprefix("ema.") not in unsaved:
                tensor.copy_(stored.read(name))
    live = named_weights(learner.decoder) | lora.parameters(learner.decoder)
    for name, weight in weights.items():
        live[name].copy_(weight)
    for name in unsaved:
        learner.weights["ema"].get_buffer(name).copy_(learner.decoder.get_buffer(name))
    learner.steps, learner.skipped = steps, skipped


def check_optimiser(stored: StoredParts, wanted: Mapping[str, tuple[int, ...]], decoder: Decoder) -> set[str]:
    """Refuses tensors of other names or shapes than those wanted; the names of averaged buffers that are not there."""
    # Checkpoints from before buffers were averaged have none: those begin with the live ones.
    unsaved = {name for name in _buffers(decoder) if f"ema.{name}" in wanted.keys() - stored.shapes.keys()}
    if stored.shapes != {name: shape for name, shape in wanted.items() if name.removeprefix("ema.") not in unsaved}:
        raise EtudeError(f"{stored.where} was written with other optimiser settings; resume it with its own recipe")
    return unsaved


def _weights(decoder: Decoder, directory: Path, base: str | None) -> Mapping[str, Tensor]:
    """What a checkpoint holds of what was trained, by name: the adapters, if there are any, or the whole model."""
    if adapted(decoder):
        if base != lora.fingerprint(decoder):
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
