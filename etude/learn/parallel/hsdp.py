"""A decoder whose weights are divided over ranks (FSDP2), and which rows of each weight this rank holds.

Applied from outside: the model does not know. Every block is a unit that is gathered for its forward and its backward
and let go after each; where the experts of a layer are divided over ranks of their own (experts.py), so are they.
Embedding, head and last norm are the root's: they stay gathered between forward and backward, since the head is
computed in between, a chunk at a time (learn/loss.py).

Built block by block: no rank ever holds more of the whole model than one block, or what belongs to the root.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from etude.learn.parallel.experts import SplitExperts, expert_parameters, split_experts
from etude.learn.parallel.mesh import EXPERT, EXPERT_SHARD, SHARD, Meshes, sharding
from etude.learn.parallel.wire import Wire
from etude.model.decoder import Decoder
from etude.model.lora_linear import AdaptedLinear

Fill = Callable[[str, Tensor], bool]  # writes a whole parameter or buffer of this name; whether it is trained


@dataclass(frozen=True, eq=False)
class Shard:
    """The rows of a parameter that this rank holds."""

    parameter: Any  # a DTensor
    shape: tuple[int, ...]  # of the whole
    start: int  # first of the rows here
    averaged: int  # ranks over which FSDP averages its gradient, which is a sum for us
    copies: int  # ranks that hold the very same rows
    groups: tuple[dist.ProcessGroup, ...]  # the first divides the rows, the next one each part of them

    @property
    def local(self) -> Tensor:
        """The rows, as memory of the model itself."""
        rows: Tensor = self.parameter.detach().to_local()
        return rows

    @property
    def gradient(self) -> Tensor | None:
        grad = self.parameter.grad
        return None if grad is None else grad.to_local()

    @property
    def stop(self) -> int:
        return self.start + len(self.local)

    def whole(self, rows: Tensor) -> Tensor:
        """What all ranks of the groups hold of one tensor, put together on each of them; each gives its `rows`."""
        count = self.shape[0]
        counts = [count := -(-count // group.size()) for group in self.groups[:-1]]
        for group, whole in zip(reversed(self.groups), [*reversed(counts), self.shape[0]], strict=True):
            rows = _gathered(rows, whole, group)
        return rows


def _gathered(rows: Tensor, count: int, group: dist.ProcessGroup) -> Tensor:
    """The `count` rows of all ranks of a group, of which each gives its own."""
    ranks = group.size()
    if ranks == 1:
        return rows
    most = -(-count // ranks)  # torch gives the first ranks so many rows each, the last ones what is left
    padded = rows.new_zeros(most, *rows.shape[1:])
    padded[: len(rows)] = rows
    gathered = rows.new_empty(ranks * most, *rows.shape[1:])
    dist.all_gather(list(gathered.chunk(ranks)), padded, group=group)
    return gathered[:count]


class ShardedAdaptedLinear(AdaptedLinear):
    """FSDP reads the attribute `weight` before its first forward and means the parameter, not the sum with the adapter.

    With the sum in its place, a restored adapter would count twice.
    """

    @property
    def weight(self) -> Tensor:
        return self.base if isinstance(self.base, DTensor) else super().weight


def shard(outline: Decoder, meshes: Meshes, device: str, fill: Fill, wire: Wire = "same") -> dict[str, Shard]:
    """Gives the outline memory on `device`, block by block, writes its weights, and divides them.

    Tokens travel to experts of other ranks in the numbers of `wire`.
    """
    layout, shapes = meshes.layout, {name: tuple(parameter.shape) for name, parameter in outline.named_parameters()}
    for prefix, module in units(outline):
        _materialise(prefix, module, device, fill)
        for linear in [each for each in module.modules() if type(each) is AdaptedLinear]:
            linear.__class__ = ShardedAdaptedLinear
        if layout.expert > 1 and module is not outline:
            split_experts(module, meshes.expert, wire)
            for experts in [each for each in module.modules() if isinstance(each, SplitExperts)]:
                fully_shard(experts, mesh=sharding(meshes.expert_shard), reshard_after_forward=True)
        fully_shard(module, mesh=sharding(meshes.dense), reshard_after_forward=module is not outline)
    divided = expert_parameters(outline)
    dense, sparse = (meshes.dense, SHARD), (meshes.expert_shard, EXPERT_SHARD)
    shards = {}
    for name, parameter in outline.named_parameters():
        over = [(meshes.expert, EXPERT), sparse] if name in divided else [dense]
        start, left = 0, shapes[name][0]
        for mesh, axis in over:
            most = -(-left // mesh.get_group(axis).size())
            first = min(mesh.get_local_rank(axis) * most, left)
            start, left = start + first, min(most, left - first)
        ranks = meshes.world // (layout.expert if name in divided else 1)
        groups = tuple(mesh.get_group(axis) for mesh, axis in over)
        shards[name] = Shard(parameter, shapes[name], start, ranks, layout.replicate, groups)
    return shards


def units(decoder: Decoder) -> Iterator[tuple[str, nn.Module]]:
    """The modules that are gathered each as a whole, by the beginning of their parameters' names; the root last."""
    for i, block in enumerate(decoder.model.layers):
        yield f"model.layers.{i}.", block
    for i, head in enumerate(decoder.mtp):
        yield f"mtp.{i}.", head
    yield "", decoder


def let_go(decoder: nn.Module) -> None:
    """Lets go of what the root kept gathered after a forward that no backward follows."""
    assert isinstance(decoder, FSDPModule)
    decoder.reshard()


@torch.no_grad()
def _materialise(prefix: str, module: nn.Module, device: str, fill: Fill) -> None:
    made: dict[Tensor, nn.Parameter] = {}  # a tied weight stays one
    for path, owner in module.named_modules():
        inside = f"{prefix}{path}." if path else prefix
        for name, parameter in list(owner._parameters.items()):
            if parameter is None or isinstance(parameter, DTensor):  # or divided already
                continue
            if parameter not in made:
                memory = nn.Parameter(torch.empty(parameter.shape, dtype=parameter.dtype, device=device))
                memory.requires_grad = fill(inside + name, memory.data)
                made[parameter] = memory
            owner._parameters[name] = made[parameter]  # as FSDP does: a projection with adapters has a property there
        for name, buffer in list(owner._buffers.items()):
            if buffer is not None and buffer.is_meta:
                memory_of = torch.zeros(buffer.shape, dtype=buffer.dtype, device=device)
                owner._buffers[name] = memory_of
                if name not in owner._non_persistent_buffers_set:
                    fill(inside + name, memory_of)
