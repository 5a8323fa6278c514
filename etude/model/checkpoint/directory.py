"""Decoders to and from Hugging Face directories: `config.json` and safetensors, one file or sharded.

Owns the names: which parameter, or which part of a stacked one, a tensor on disk is. How values are stored and read
is tensors.py's. Whatever is wrong with a checkpoint is said in a sentence that names the tensor, the key or the file.

On disk every expert has tensors of its own, and the multi-token-prediction modules of the DeepSeek shapes are blocks
after the last (`model.layers.{L}.enorm`, `.shared_head.norm` and so on); other shapes keep our names (`mtp.0.enorm`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from etude.core.errors import EtudeError
from etude.core.progress import track
from etude.model.checkpoint.tensors import INDEX, WEIGHTS, Stored, read_quantisation
from etude.model.config import LATENT, TEXT_TOWERS, ModelConfig
from etude.model.decoder import Decoder
from etude.model.lora_linear import ADAPTER, merged

CONFIG = "config.json"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
BIAS = ".e_score_correction_bias"  # a buffer: the router's bias is moved by the load, not by a gradient
TEXT_PREFIX, OTHER_TOWERS = "language_model.", ("vision_tower.", "mm_projector.")
STALE = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors|" + re.escape(INDEX))
MAX_SHARD = 4 << 30  # bytes


def named_weights(decoder: Decoder) -> dict[str, Tensor]:
    """Every stored tensor by its name on disk; this is what is saved, published and compared.

    The tensors are the decoder's own memory, those of single experts parts of it: what is copied into them is in the
    decoder. A tied head is there once, as the embedding.
    """
    found: dict[str, Tensor] = {}
    for name, parameter in decoder.named_parameters():
        found |= on_disk(name, parameter.detach(), decoder.config)
    if decoder.config.scoring == "sigmoid":
        found |= {_disk_name(n, decoder.config): b.detach() for n, b in decoder.named_buffers() if n.endswith(BIAS)}
    return found


def on_disk(name: str, tensor: Tensor, config: ModelConfig) -> dict[str, Tensor]:
    """What one parameter, or a router's bias, is on disk: parts of its memory by name; nothing for an adapter's."""
    base = _disk_name(name, config)
    if name.endswith(".experts.gate_up_proj"):
        base, hidden = base.removesuffix("gate_up_proj"), tensor.shape[1] // 2
        gates = {f"{base}{e}.gate_proj.weight": expert[:hidden] for e, expert in enumerate(tensor.unbind())}
        ups = {f"{base}{e}.up_proj.weight": expert[hidden:] for e, expert in enumerate(tensor.unbind())}
        return {key: part for pair in zip(gates.items(), ups.items(), strict=True) for key, part in pair}
    if name.endswith(".experts.down_proj"):
        base = base.removesuffix("down_proj")
        return {f"{base}{e}.down_proj.weight": expert for e, expert in enumerate(tensor.unbind())}
    return {} if name.endswith(ADAPTER) else {base: tensor}


def _disk_name(name: str, config: ModelConfig) -> str:
    if not name.startswith("mtp.") or config.model_type not in LATENT:
        return name
    _, depth, rest = name.split(".", 2)
    rest = rest.removeprefix("block.") if rest.startswith("block.") else rest
    rest = f"shared_head.{rest}" if rest.startswith("norm.") else rest
    return f"model.layers.{config.num_hidden_layers + int(depth)}.{rest}"


def copies(config: ModelConfig) -> dict[str, str]:
    """Names under which the DeepSeek layout stores embedding and head once more, for each prediction module."""
    if config.model_type not in LATENT:
        return {}
    layers = range(config.num_hidden_layers, config.cache_layers)
    head = EMBEDDING if config.tie_word_embeddings else HEAD
    return {f"model.layers.{i}.embed_tokens.weight": EMBEDDING for i in layers} | {
        f"model.layers.{i}.shared_head.head.weight": head for i in layers
    }


# Reading


def read_config(directory: Path) -> ModelConfig:
    return ModelConfig.from_hf(read_json(directory), str(directory / CONFIG))


def open_stored(directory: Path, device: str | torch.device = "cpu") -> Stored:
    """The tensors of a directory, headers only, as its config.json says they are stored."""
    return Stored(directory, read_quantisation(read_json(directory), str(directory / CONFIG)), device)


def load_model(directory: Path, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32) -> Decoder:
    """The model of a directory, its weights as `dtype` whatever they are stored as."""
    read_config(directory)  # a shape that cannot be is refused before any file is opened
    with open_stored(directory, device) as stored:
        config, names = read_config_and_names(directory, stored)
        decoder = outline(config)
        check_weights(directory, config, names, named_weights(decoder), stored)
        _give_memory(decoder, device, dtype, str(directory))
        wanted = named_weights(decoder)
        with torch.no_grad(), track("reading weights", len(wanted), "tensors") as bar:
            # File by file: only a few shards are mapped at a time.
            for name in sorted(wanted, key=lambda name: stored.place(names[name])):
                wanted[name].copy_(stored.read(names[name], tuple(wanted[name].shape)))
                bar.advance(1)
    return decoder


def read_config_and_names(directory: Path, stored: Stored) -> tuple[ModelConfig, dict[str, str]]:
    """The shape of what is stored, and names of weights -> names in the files."""
    hf = read_json(directory)
    config = ModelConfig.from_hf(hf, str(directory / CONFIG))  # first: it refuses what is no config
    names = text_names(hf, stored)
    return _without_missing_modules(config, names), names


def outline(config: ModelConfig) -> Decoder:
    """A decoder without memory: names and shapes."""
    with torch.device("meta"), _Undrawn():
        return Decoder(config)


def _give_memory(decoder: Decoder, device: str | torch.device, dtype: torch.dtype, where: str) -> None:
    """Memory for the outline's weights, which nobody has written to yet; buffers are 0, and float32 as ever."""
    made: dict[nn.Parameter, nn.Parameter] = {}  # a tied weight stays one
    try:
        for module in decoder.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                if parameter not in made:
                    made[parameter] = nn.Parameter(torch.empty(parameter.shape, dtype=dtype, device=device))
                setattr(module, name, made[parameter])
            for name, buffer in list(module.named_buffers(recurse=False)):
                setattr(module, name, torch.zeros(buffer.shape, dtype=buffer.dtype, device=device))
    except RuntimeError as full:
        size = sum(parameter.numel() for parameter in decoder.parameters()) * dtype.itemsize
        reason = str(full).partition("\n")[0]
        raise EtudeError(f"{where} needs {size / 1e9:.1f} GB of memory on {device}: {reason}") from None


class _Undrawn(TorchFunctionMode):
    """Random numbers that would be overwritten are not drawn: without memory, torch would load its compiler."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return None if getattr(func, "__name__", "") == "normal_" else func(*args, **(kwargs or {}))


def text_names(hf: Mapping[str, Any], stored: Stored) -> dict[str, str]:
    """Names of the text model's weights -> names in the files. Angles that old writers stored are left out."""
    names = (name for name in stored.names if not name.endswith(".rotary_emb.inv_freq"))
    if hf.get("model_type") not in TEXT_TOWERS:
        return {name: name for name in names}
    return {name.removeprefix(TEXT_PREFIX): name for name in names if not name.startswith(OTHER_TOWERS)}


def _without_missing_modules(config: ModelConfig, names: Mapping[str, str]) -> ModelConfig:
    """transformers announces a prediction module for every DeepSeek shape, and stores none."""
    first = f"model.layers.{config.num_hidden_layers}."
    if config.model_type in LATENT and not any(name.startswith(first) for name in names):
        return replace(config, num_nextn_predict_layers=0)
    return config


def check_weights(
    directory: Path, config: ModelConfig, names: dict[str, str], wanted: Mapping[str, Tensor], stored: Stored
) -> None:
    """Every weight is there and has its shape, and nothing else is; before any memory is taken."""
    if config.tie_word_embeddings and EMBEDDING not in names and HEAD in names:
        # Some writers store a tied matrix under the head's name alone.
        names[EMBEDDING] = names[HEAD]
    ignored = {HEAD, *copies(config)} if config.tie_word_embeddings else set(copies(config))
    if unknown := set(names) - set(wanted) - ignored:
        name = names[min(unknown)]
        raise EtudeError(f"{stored.where(name)} holds {name!r}, which its config.json does not describe")
    if missing := set(wanted) - set(names):
        raise EtudeError(f"{directory} lacks {len(missing)} of the model's weights, {min(missing)!r} among them")
    for name, tensor in wanted.items():
        stored.check_shape(names[name], tuple(tensor.shape))


def read_json(directory: Path) -> dict[str, Any]:
    path = directory / CONFIG
    try:
        hf = json.loads(path.read_text())
    except FileNotFoundError:
        raise EtudeError(f"{directory} is not a model: it has no config.json") from None
    except (OSError, ValueError) as broken:
        raise EtudeError(f"{path} is not valid JSON ({broken}); the checkpoint is damaged") from None
    if not isinstance(hf, dict):
        raise EtudeError(f"{path} does not hold a JSON object; the checkpoint is damaged")
    return hf


# Writing


def save_model(
    directory: Path,
    decoder: Decoder,
    dtype: torch.dtype = torch.float32,
    max_shard_bytes: int = MAX_SHARD,
    tensors: Iterable[tuple[str, Tensor]] | None = None,
) -> None:
    """Writes a directory that transformers opens: one file, or several and an index where one would be too large.

    Adapters are added to their weights, a tied head is stored once, and correction biases stay float32. `tensors` are
    those that `saved_tensors` gave earlier, where the decoder has moved on.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for path in directory.iterdir():
        if STALE.fullmatch(path.name):
            path.unlink()  # or the files of an earlier model would be read with, or instead of, these
    config = decoder.config.to_hf() | {"dtype": str(dtype).removeprefix("torch.")}
    (directory / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    sizes = {name: numel * _stored_dtype(name, dtype).itemsize for name, numel in _numels(decoder).items()}
    shards = _shards(sizes, max_shard_bytes)
    files = [f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
    files = files if len(shards) > 1 else [WEIGHTS]
    ends = {names[-1]: file for file, names in zip(files, shards, strict=True)}
    part: dict[str, Tensor] = {}  # one shard at a time
    for name, tensor in tensors if tensors is not None else saved_tensors(decoder):
        part[name] = tensor.to("cpu", _stored_dtype(name, dtype)).contiguous()
        if name in ends:
            save_file(part, str(directory / ends[name]), metadata={"format": "pt"})
            part = {}
    if len(shards) > 1:
        weight_map = {name: file for file, names in zip(files, shards, strict=True) for name in names}
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map}
        (directory / INDEX).write_text(json.dumps(index, indent=2) + "\n")


def saved_tensors(decoder: Decoder) -> Iterator[tuple[str, Tensor]]:
    weights = named_weights(decoder)
    yield from merged(decoder, weights)
    for copy, name in copies(decoder.config).items():
        yield copy, weights[name].clone()  # safetensors refuses memory that is named twice


def _numels(decoder: Decoder) -> dict[str, int]:
    """Entries of each tensor that `saved_tensors` gives, in its order."""
    numels = {name: tensor.numel() for name, tensor in named_weights(decoder).items()}
    return numels | {copy: numels[name] for copy, name in copies(decoder.config).items()}


def _stored_dtype(name: str, dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if name.endswith(BIAS) else dtype


def _shards(sizes: Mapping[str, int], most: int) -> list[list[str]]:
    """Names in their order, as many at a time as fit into `most` bytes; one that alone is larger goes alone."""
    shards: list[list[str]] = []
    room = 0
    for name, size in sizes.items():
        if not shards or size > room:
            shards.append([])
            room = most
        shards[-1].append(name)
        room -= size
    return shards
