"""Published weights in fewer bits than the learner has: the matrices of blocks in FP8 or INT4, named as in checkpoints.

A version then takes a half or a quarter of bfloat16's bytes, and its delta less, as few of the rounded values change in
a small step. The formats are those that checkpoints are stored in (`model/checkpoint/quantised_formats`); embeddings,
heads, routers and norms stay as they are. Whoever reads has the rounded weights, exactly; the learner keeps its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal

import torch
from torch import Tensor

from etude.core.errors import EtudeError
from etude.model.checkpoint.quantise import fp8_scale, int4_scale, quantise_fp8, quantise_int4
from etude.model.checkpoint.quantised_formats import (
    FP8,
    FP8_BLOCK,
    INT4_IN_WORD,
    blocks,
    dequantise_fp8,
    dequantise_int4,
)
from etude.model.checkpoint.tensors import PACKED, SCALE, SCALE_INV, SHAPE

Bits = Literal["fp8", "int4"]
GROUP: Final = 32  # columns that share a scale of INT4, as published INT4 checkpoints have it
_MATRIX: Final = re.compile(r"(?:.*\.)?layers\.\d+\..*proj\w*\.weight")


def is_matrix(name: str, weight: Tensor) -> bool:
    """Whether it is a matrix of a block, of attention or of a multilayer perceptron."""
    return weight.ndim == 2 and _MATRIX.fullmatch(name) is not None


def in_fewer_bits(name: str, weight: Tensor, bits: Bits) -> dict[str, Tensor]:
    """The tensors that such a matrix is published as."""
    if bits == "fp8":
        scale = fp8_scale(weight)
        return {name: quantise_fp8(weight, scale), name + SCALE_INV: scale}
    scale = int4_scale(weight, GROUP)
    base, shape = name.removesuffix("weight"), torch.tensor(weight.shape, dtype=torch.int64)
    return {base + PACKED: quantise_int4(weight, scale, GROUP), base + SCALE: scale, base + SHAPE: shape}


def restored(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights by the names that they have in a model, those of fewer bits as float32."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.dtype == FP8:
            wanted = tuple(map(blocks, tensor.shape, FP8_BLOCK))
            found[name] = dequantise_fp8(tensor, _beside(tensors, name + SCALE_INV, wanted))
        elif name.endswith(f".{PACKED}"):
            base = name.removesuffix(PACKED)
            rows, columns = (int(size) for size in _beside(tensors, base + SHAPE, (2,)))
            words = _beside(tensors, name, (rows, blocks(columns, INT4_IN_WORD)))
            scale = _beside(tensors, base + SCALE, (rows, blocks(columns, GROUP)))
            found[f"{base}weight"] = dequantise_int4(words, scale, columns, GROUP)
        elif not name.endswith((SCALE_INV, f".{SCALE}", f".{SHAPE}")):
            found[name] = tensor
    return found


def _beside(tensors: Mapping[str, Tensor], name: str, shape: tuple[int, ...]) -> Tensor:
    tensor = tensors.get(name)
    if tensor is None or tuple(tensor.shape) != shape:
        raise EtudeError(f"published weights in fewer bits lack {name!r}, or it has another shape than {shape}")
    return tensor
