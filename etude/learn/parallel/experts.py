"""Expert parallelism: each rank keeps some of the experts of every layer, and tokens travel to the experts they chose.

    here      route, sort visits by expert                       all ranks, each its own tokens
    send      visits to the ranks of their experts               shared experts are computed meanwhile
    there     sort by expert, one grouped product
    back      what the experts made of the visits; combine       here again, with this rank's weights

Applied from outside: `split_experts` puts `SplitExperts` in the place of each layer's experts, under the same names.
Routing happens before and knows nothing of it, so replayed choices and their bound work as on one rank. Gradients of
the experts are sums over the tokens of all ranks of the mesh; those of all other weights are of this rank's tokens.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from etude.core.errors import EtudeError
from etude.learn.parallel.wire import Exchange, Wire
from etude.model.experts import Experts, MixtureOfExperts, Router, Visits, grouped_swiglu, reorder
from etude.model.low_precision.products import Precision
from etude.model.mlp import SwiGLU


class SplitExperts(nn.Module):
    """The experts of one layer that this rank keeps, and the way to those of others.

    Weights are DTensors, so their names, whole shapes and placements are known to checkpoints and to FSDP.
    """

    compiles = False  # how many rows come is known only when they come

    def __init__(self, experts: Experts, shared: SwiGLU | None, mesh: DeviceMesh, wire: Wire) -> None:
        super().__init__()
        self.precision: Precision = experts.precision
        self.group, self.ranks, self.wire = mesh.get_group(), mesh.size(), wire
        self.count = experts.gate_up_proj.shape[0]
        self.gate_up_proj = _own(experts.gate_up_proj, mesh)
        self.down_proj = _own(experts.down_proj, mesh)
        self._shared = (shared,)  # in a tuple: it stays a part of the layer, under its own name

    def forward(self, x_TD: Tensor, chosen_TK: Tensor, weight_TK: Tensor) -> Tensor:
        visits = Visits(chosen_TK, self.count)
        here_RE, sent, received = self._sizes(visits.sizes_E)
        there = Exchange(self.group, sent, received, self.wire)
        token = there.start(visits.spread(x_TD))
        (shared,) = self._shared
        shared_TD = None if shared is None else shared(x_TD)
        rows_MD = there.finish(token)
        # rows come rank by rank and of each rank expert by expert; all rows of an expert must be together
        expert_M = torch.arange(here_RE.shape[1], device=here_RE.device).repeat(self.ranks)
        order_M = expert_M.repeat_interleave(here_RE.flatten(), output_size=len(rows_MD)).argsort(stable=True)
        back_M = torch.empty_like(order_M).scatter_(0, order_M, torch.arange(len(order_M), device=order_M.device))
        weights = _local(self.gate_up_proj), _local(self.down_proj)
        out_MD = grouped_swiglu(self.precision, reorder(rows_MD, order_M, back_M), *weights, here_RE.sum(0))
        back = Exchange(self.group, received, sent, "same" if self.wire == "same" else "bfloat16")
        out_ND = back.finish(back.start(reorder(out_MD, back_M, order_M)))
        mixed_TD = visits.combine(out_ND, weight_TK)
        return mixed_TD if shared_TD is None else mixed_TD + shared_TD

    def _sizes(self, sizes_E: Tensor) -> tuple[Tensor, list[int], list[int]]:
        """Rows that come, by rank and expert of this rank; rows for each rank, and rows from each."""
        here_E = torch.empty_like(sizes_E)
        dist.all_to_all_single(here_E, sizes_E, group=self.group)
        here_RE, there_RE = here_E.view(self.ranks, -1), sizes_E.view(self.ranks, -1)
        sent, received = torch.stack((there_RE.sum(1), here_RE.sum(1))).tolist()  # the one wait of a GPU
        return here_RE, sent, received


def split_experts(model: nn.Module, mesh: DeviceMesh, wire: Wire = "same") -> None:
    """Keeps on each rank of `mesh`, which has one dimension, an equal part of the experts of every layer.

    Called on every rank, on the same whole model (which may be an outline on the meta device), before FSDP. Rows go to
    the experts in the numbers of `wire`; what the experts made of them comes back in bfloat16, or with "same" as it is.
    """
    for mixture in [module for module in model.modules() if isinstance(module, MixtureOfExperts)]:
        if not isinstance(mixture.experts, Experts):
            raise EtudeError("the experts of this model are divided over ranks already")
        shared = mixture.shared_experts if mixture.shared else None
        mixture.register_module("experts", SplitExperts(mixture.experts, shared, mesh, wire))
        mixture.shared = False  # added by SplitExperts, which computes them while rows travel


def expert_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The weights that were divided, by name."""
    found: dict[str, nn.Parameter] = {}
    for prefix, module in model.named_modules():
        if isinstance(module, SplitExperts):
            found |= {f"{prefix}.{name}": p for name, p in module.named_parameters(recurse=False)}
    return found


@torch.no_grad()
def sum_loads(model: nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """Adds up over the ranks of the group how many tokens each expert got: before `balance`, which every rank does."""
    routers = [module for module in model.modules() if isinstance(module, Router)]
    if routers:
        load_RE = torch.stack([router.load_E for router in routers])
        dist.all_reduce(load_RE, group=group)
        for router, load_E in zip(routers, load_RE, strict=True):
            router.load_E.copy_(load_E)


def _own(weight: nn.Parameter, mesh: DeviceMesh) -> nn.Parameter:
    count, ranks = weight.shape[0], mesh.size()
    if count % ranks:
        raise EtudeError(f"cluster.learner.expert is {ranks}, which does not divide the model's {count} experts")
    first = mesh.get_local_rank() * count // ranks
    # a copy: a view would keep the memory of all experts
    own = weight.detach()[first : first + count // ranks].clone()
    placed = DTensor.from_local(own, mesh, [Shard(0)], run_check=False)
    return nn.Parameter(placed, requires_grad=weight.requires_grad)


def _local(weight: Tensor) -> Tensor:
    return weight.to_local() if isinstance(weight, DTensor) else weight
