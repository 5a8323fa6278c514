"""Decoders to and from Hugging Face directories: `config.json` and safetensors, one file or sharded.

Nothing here is executed or unpickled: a checkpoint from outside is data. Whatever is wrong with one is said
in a sentence that names the file.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from etude.errors import EtudeError
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


def save_model(directory: Path, decoder: Decoder) -> None:
    """Writes `config.json` and `model.safetensors`; a tied head is stored once, as transformers does."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(decoder.config.to_hf(), indent=2) + "\n")
    tensors = {name: tensor.detach().contiguous().cpu() for name, tensor in named_weights(decoder).items()}
    save_file(tensors, str(directory / WEIGHTS), metadata={"format": "pt"})


def named_weights(decoder: Decoder) -> dict[str, Tensor]:
    """Every stored parameter by its Hugging Face name; this is what is saved, published and compared."""
    return dict(decoder.named_parameters())  # named_parameters lists a tied weight once, under its first name


def read_config(directory: Path) -> ModelConfig:
    path = directory / "config.json"
    try:
        hf = json.loads(path.read_text())
    except FileNotFoundError:
        raise EtudeError(f"{directory} is not a model: it has no config.json") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as broken:
        raise EtudeError(f"{path} is not valid JSON ({broken}); the checkpoint is damaged") from None
    if not isinstance(hf, dict):
        raise EtudeError(f"{path} does not hold a JSON object; the checkpoint is damaged")
    return ModelConfig.from_hf(hf, str(path))


def load_model(directory: Path, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32) -> Decoder:
    decoder = Decoder(read_config(directory)).to(device=device, dtype=dtype)
    wanted = named_weights(decoder)
    if decoder.config.tie_word_embeddings:
        wanted = {**wanted, "lm_head.weight": decoder.lm_head.weight}  # some writers store the tied head twice
    missing = set(wanted) - {"lm_head.weight"} if decoder.config.tie_word_embeddings else set(wanted)
    for path in _weight_files(directory):
        try:
            with safe_open(str(path), framework="pt", device=str(device)) as file:
                for name in file.keys():  # noqa: SIM118 (a safetensors file is no mapping)
                    if name not in wanted:
                        raise EtudeError(f"{path} holds {name!r}, which its config.json does not describe")
                    shape = tuple(file.get_slice(name).get_shape())
                    if shape != tuple(wanted[name].shape):
                        raise EtudeError(
                            f"{path} holds {name!r} with shape {shape}, but its config.json asks for "
                            f"{tuple(wanted[name].shape)}; weights and configuration are of different models"
                        )
                    with torch.no_grad():
                        wanted[name].copy_(file.get_tensor(name))
                    missing.discard(name)
        except (SafetensorError, OSError) as broken:
            raise EtudeError(f"{path} cannot be read ({broken}); the checkpoint is damaged or cut short") from None
    if missing:
        raise EtudeError(f"{directory} lacks {len(missing)} of the model's weights, {min(missing)!r} among them")
    return decoder


def _weight_files(directory: Path) -> list[Path]:
    index = directory / INDEX
    if not index.exists():
        if not (directory / WEIGHTS).exists():
            raise EtudeError(f"{directory} has no {WEIGHTS}; is it a model checkpoint?")
        return [directory / WEIGHTS]
    try:
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    except (json.JSONDecodeError, KeyError, AttributeError, TypeError):
        raise EtudeError(f"{index} is damaged: it has no readable weight_map") from None
    outside = [name for name in names if not isinstance(name, str) or Path(name).name != name]
    if outside:
        raise EtudeError(f"{index} names {outside[0]!r}, which is not a file of that directory")
    return [directory / name for name in names]
