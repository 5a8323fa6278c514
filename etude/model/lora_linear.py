"""A linear projection with a low-rank adapter: x W' + b + scale (x A') B'. W and b are frozen, A and B are trained.

Parameters keep the names of a checkpoint: W is still `weight`, and the adapter's are `lora_A.weight` [rank, inputs]
and `lora_B.weight` [outputs, rank] beside it, as PEFT calls them. Whoever reads the attribute `weight` wants the
matrix that acts on x (latent attention takes one apart), so that is the sum. Knows neither which projections get an
adapter nor files.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from etude.model.low_precision.products import PLAIN

ADAPTER = (".lora_A.weight", ".lora_B.weight")  # how the names of an adapter's parameters end


class Factor(nn.Module):
    """One of the two: zeros, of the dtype and on the device of `like`."""

    def __init__(self, rows: int, columns: int, like: Tensor) -> None:
        super().__init__()
        device = "cpu" if like.is_meta else like.device  # an outline's adapters exist: nobody could read them later
        self.weight = nn.Parameter(torch.zeros(rows, columns, dtype=like.dtype, device=device))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype))


class AdaptedLinear(nn.Module):
    """`linear` with an adapter that adds nothing yet: B stays 0 until it is trained, A is for the caller to fill."""

    precision = PLAIN

    def __init__(self, linear: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        outputs, inputs = linear.weight.shape
        weight = linear.requires_grad_(False).weight
        assert isinstance(weight, nn.Parameter)
        self._parameters["weight"] = weight  # past the property of that name
        self.bias = linear.bias
        self.lora_A, self.lora_B = Factor(rank, inputs, linear.weight), Factor(outputs, rank, linear.weight)
        self.rank, self.scale = rank, alpha / rank

    @property
    def base(self) -> Tensor:
        """The frozen weight, as loaded."""
        weight = self._parameters["weight"]
        assert weight is not None
        return weight

    @property
    def weight(self) -> Tensor:
        """The matrix that acts on x: the frozen one and the adapter's product, added up whenever it is asked for."""
        return torch.addmm(self.base, self.lora_B.weight, self.lora_A.weight, alpha=self.scale)

    def forward(self, x: Tensor) -> Tensor:
        added: Tensor = self.lora_B(self.scale * self.lora_A(x))
        return self.precision.linear(x, self.base, self.bias) + added


def adapted(decoder: nn.Module) -> dict[str, AdaptedLinear]:
    """The projections with an adapter, by name."""
    return {name: module for name, module in decoder.named_modules() if isinstance(module, AdaptedLinear)}


Copied = TypeVar("Copied", bound=nn.Module)


def copy_trained(decoder: Copied) -> Copied:
    """A copy with trained parameters of its own; those that are frozen it shares."""
    # Frozen parameters are in deepcopy's memo, so it takes them for copied already.
    return copy.deepcopy(decoder, {id(p): p for p in decoder.parameters() if not p.requires_grad})


@torch.no_grad()
def merged(decoder: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """The decoder's named weights as they act: adapters are added as their turn comes, never all at once."""
    left = {module.base.data_ptr(): module for module in adapted(decoder).values()}
    for name, tensor in weights.items():
        module = left.pop(tensor.data_ptr(), None)
        yield name, tensor.detach() if module is None else module.weight
    if left:
        raise RuntimeError(f"{len(left)} adapters belong to none of the named weights")
