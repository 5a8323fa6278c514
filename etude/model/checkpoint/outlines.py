"""Decoders without memory that know where their weights come from: a directory, or a seed.

For models that no process holds whole: whoever gives parameters memory, some at a time, asks the outline's `reader` for
their values. What it writes is what `load_model` and `Decoder` would have.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from etude.model.checkpoint.directory import (
    BIAS,
    check_weights,
    named_weights,
    on_disk,
    open_stored,
    outline,
    read_config,
    read_config_and_names,
)
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder, draw, residual_deviation


def load_outline(directory: Path) -> Decoder:
    """The model of a directory, whose weights stay there until they are asked for."""
    read_config(directory)  # a shape that cannot be is refused before any file is opened
    stored = open_stored(directory)
    config, names = read_config_and_names(directory, stored)
    decoder = outline(config)
    check_weights(directory, config, names, named_weights(decoder), stored)

    @torch.no_grad()
    def read(name: str, tensor: Tensor) -> None:
        for key, part in on_disk(name, tensor, config).items():
            part.copy_(stored.read(names[key], tuple(part.shape)))

    decoder.reader = read
    return decoder


def draw_outline(config: ModelConfig, seed: int) -> Decoder:
    """The decoder that `Decoder(config, seed)` is, whose weights are drawn when they are asked for."""
    decoder = outline(config)
    generator, residual = torch.Generator(), residual_deviation(config)
    states: dict[str, Tensor] = {}  # of the generator before each parameter, which are drawn one behind the other

    def read(name: str, tensor: Tensor) -> None:
        if not states:
            generator.manual_seed(seed)
            # One piece of memory for all: freed ones would be cut up by the small states between them, and the heap
            # would grow by the whole model.
            scratch = torch.empty(max(parameter.numel() for parameter in decoder.parameters()))
            for each, parameter in decoder.named_parameters():
                states[each] = generator.get_state()
                draw(each, scratch[: parameter.numel()].view(parameter.shape), residual, generator)
        if name in states:  # a buffer begins with 0, as it is
            generator.set_state(states[name])
            drawn = torch.empty(tensor.shape)
            draw(name, drawn, residual, generator)
            tensor.copy_(drawn)

    decoder.reader = read
    return decoder


@torch.no_grad()
def each_weight(decoder: Decoder) -> Iterator[tuple[str, Tensor]]:
    """The named weights of a decoder, or of an outline, of which one parameter at a time is read."""
    tensors: dict[str, Tensor] = dict(decoder.named_parameters())
    tensors |= {name: bias for name, bias in decoder.named_buffers() if name.endswith(BIAS)}
    for name, tensor in tensors.items():
        whole = tensor.detach()
        if whole.is_meta:
            assert decoder.reader is not None
            whole = torch.zeros(tensor.shape, dtype=tensor.dtype)
            decoder.reader(name, whole)
        yield from on_disk(name, whole, decoder.config).items()
