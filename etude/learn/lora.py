"""LoRA: which projections of a decoder get an adapter, and the adapters as files that PEFT reads.

Everything else of the decoder is frozen: no gradient, no moment, the very bits that were loaded. The rest of the
learner needs to know nothing of it, since it trains what requires a gradient; checkpoints and published versions hold
the sums of weights and adapters, so engine, benchmark and next stage see an ordinary model. A run that continues takes
the frozen weights from the model it started from and only the adapters from its checkpoint: a sum, taken apart
again, would not be the same bits.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from etude.core.errors import EtudeError
from etude.core.settings import LoraSettings
from etude.model.checkpoint.outlines import each_weight
from etude.model.decoder import Decoder
from etude.model.lora_linear import ADAPTER, AdaptedLinear, adapted

FOLDER = "adapter"  # in a checkpoint; beside its config.json, PEFT would take the whole model for an adapter
CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."  # PEFT's, before the name in the model
BLOCKS = "model.layers."
SAMPLE = 1024  # values of each weight, by which models are distinguished


@torch.no_grad()
def adapt(decoder: Decoder, settings: LoraSettings, seed: int) -> Decoder:
    """Freezes `decoder` and gives the chosen projections adapters that add nothing yet; rank 0 changes nothing.

    The blocks of the trunk only: multi-token-prediction modules stay as they are.
    """
    if not settings.rank:
        return decoder
    blocks = decoder.model.layers.named_modules()
    linears = {f"{BLOCKS}{name}": module for name, module in blocks if isinstance(module, nn.Linear)}
    known = sorted({_leaf(name) for name in linears})
    for target in settings.targets or [""]:
        if target not in (*known, "all"):
            raise EtudeError(
                f"lora.targets names {target!r}, but the projections that can have adapters are {', '.join(known)} "
                "(or all of them: 'all'); routed experts and their router stay frozen"
            )
    decoder.requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for name, linear in linears.items():
        if "all" in settings.targets or _leaf(name) in settings.targets:
            module = AdaptedLinear(linear, settings.rank, settings.alpha)
            bound = 1 / math.sqrt(linear.in_features)  # what PEFT draws from
            drawn = torch.empty(module.lora_A.weight.shape).uniform_(-bound, bound, generator=generator)
            module.lora_A.weight.copy_(drawn)  # drawn on the CPU: one seed is one adapter on every device
            setattr(decoder.get_submodule(name.rpartition(".")[0]), _leaf(name), module)
    return decoder


def fingerprint(decoder: Decoder) -> str:
    """Distinguishes the frozen weights of one model from another's, by a few values of each."""
    found = 0
    for name, weight in each_weight(decoder):
        sample = weight.detach().flatten()[:: max(1, weight.numel() // SAMPLE)].float().cpu()
        found = zlib.crc32(name.encode() + sample.numpy().tobytes(), found)
    return f"{found:08x}"


def save(directory: Path, decoder: Decoder, whole: Mapping[str, Tensor] | None = None) -> None:
    """The adapters as a folder of `directory` that PEFT loads; nothing when there are none.

    `whole` are their parameters by name, where those of `decoder` are divided over ranks.
    """
    modules = adapted(decoder)
    if not modules:
        return
    folder, some = directory / FOLDER, next(iter(modules.values()))
    folder.mkdir()
    inside = {name.removeprefix(BLOCKS).partition(".")[2] for name in modules}  # a block: self_attn.q_proj, ...
    # where there are experts, PEFT (0.21) takes the plain projections' names for theirs, unless they name parameters
    dense = {name for name in inside if decoder.config.num_experts and name.startswith("mlp.")}
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None,
        "r": some.rank,
        "lora_alpha": some.scale * some.rank,
        "lora_dropout": 0.0,
        "target_modules": sorted({_leaf(name) for name in inside - dense}),
        "target_parameters": sorted(f"{name}.weight" for name in dense) or None,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    tensors = {PREFIX + name: p.detach().contiguous().cpu() for name, p in (whole or parameters(decoder)).items()}
    save_file(tensors, folder / TENSORS, metadata={"format": "pt"})


def read(directory: Path, decoder: Decoder) -> dict[str, Tensor]:
    """The adapters that `save` left in `directory`, by their names in `decoder`, which must have the same ones."""
    path = directory / FOLDER / TENSORS
    try:
        found = {name.removeprefix(PREFIX): tensor for name, tensor in load_file(path).items()}
    except (SafetensorError, OSError) as broken:
        raise EtudeError(f"{path} cannot be read ({broken}); the checkpoint is damaged or cut short") from None
    if {n: x.shape for n, x in found.items()} != {n: p.shape for n, p in parameters(decoder).items()}:
        raise EtudeError(f"{path} holds adapters of other settings; resume it with its own recipe")
    return found


def parameters(decoder: Decoder) -> dict[str, Tensor]:
    """The adapters' parameters by name."""
    return {name: p for name, p in decoder.named_parameters() if name.endswith(ADAPTER)}


def _leaf(name: str) -> str:
    return name.rpartition(".")[2]
