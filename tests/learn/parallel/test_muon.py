"""Muon over divided weights against the optimiser of one rank: FSDP, HSDP, divided experts, heads, uneven rows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from etude.core.settings import OptimSettings
from etude.learn.optim import Optimiser
from etude.learn.parallel import muon
from etude.learn.parallel.experts import split_experts
from etude.learn.parallel.muon import ShardedMuon, division
from etude.model.decoder import Block, Decoder
from etude.model.experts import MixtureOfExperts
from tests.learn.parallel.groups import Found, run_ranks, worst
from tests.learn.parallel.models import DENSE, LATENT, decoder_of

SETTINGS = OptimSettings(muon_lr=0.02, weight_decay=0.1, momentum=0.9, lr=0.01)


def gradients(decoder: Decoder, step: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return {name: torch.randn(p.shape, generator=generator) for name, p in decoder.named_parameters()}


def local(x: Tensor) -> Tensor:
    return x.to_local() if isinstance(x, DTensor) else x


def cell(shape: list[str], decoder: Decoder, **sizes: int) -> dict[str, float]:
    """How far three steps of a divided decoder are from those of a whole one."""
    whole = decoder_of(shape, **sizes)
    config = whole.config
    alone = Optimiser(dict(whole.named_parameters()), SETTINGS, config.head_dims)
    divided = dict(decoder.named_parameters())
    parts = {name: nn.Parameter(local(p.detach())) for name, p in divided.items()}
    divisions = {name: division(p) for name, p in divided.items()}
    together = Optimiser(parts, SETTINGS, config.head_dims, ShardedMuon(divisions, config.head_dims))
    for step in range(3):
        for name, gradient in gradients(whole, step).items():
            whole.get_parameter(name).grad = gradient.clone()
            place = divided[name]
            if isinstance(place, DTensor):
                placed = distribute_tensor(gradient, place.device_mesh, place.placements)
                parts[name].grad = placed.to_local()
            else:
                parts[name].grad = gradient.clone()
        if step == 1:  # a step in which some weights get no gradient
            for optimiser in (alone, together):
                optimiser.parameters["model.layers.0.self_attn.o_proj.weight"].grad = None
        alone.step(0.5)
        together.step(0.5)
    far = 0.0
    for name, p in divided.items():
        found = p.full_tensor() if isinstance(p, DTensor) else p
        far = max(far, worst(found, whole.get_parameter(name)))
    return {"far": far, "exchanged": float(sum(divisions[name] is not None for name in together.muon))}


def sharded(decoder: Decoder, mesh: DeviceMesh, experts: DeviceMesh | None = None, dim: int = 1) -> Decoder:
    for module in decoder.modules():
        if experts is not None and isinstance(module, MixtureOfExperts):
            fully_shard(module.experts, mesh=experts, shard_placement_fn=lambda p: Shard(dim))
    for block in [module for module in decoder.modules() if isinstance(module, Block)]:
        fully_shard(block, mesh=mesh)
    fully_shard(decoder, mesh=mesh)
    return decoder


def ranks(rank: int, count: int) -> Found:
    flat = init_device_mesh("cpu", (count,), mesh_dim_names=("shard",))
    hybrid = init_device_mesh("cpu", (2, count // 2), mesh_dim_names=("replicate", "shard"))
    sparse = init_device_mesh("cpu", (count // 2, 2), mesh_dim_names=("expert_shard", "expert"))
    found: Found = {"fsdp": cell(DENSE, sharded(decoder_of(DENSE), flat))}
    found["hsdp"] = cell(DENSE, sharded(decoder_of(DENSE), hybrid))
    found["stacked experts under fsdp"] = cell(LATENT, sharded(decoder_of(LATENT), flat))
    for dim in (0, 1):
        decoder = decoder_of(LATENT)
        split_experts(decoder, sparse["expert"])
        found[f"divided experts, cut along {dim}"] = cell(LATENT, sharded(decoder, flat, sparse["expert_shard"], dim))
    decoder = decoder_of(LATENT)
    split_experts(decoder, flat)
    found["divided experts alone"] = cell(LATENT, decoder)
    muon.BUCKET_NUMBERS = 400  # several buckets, one on its way while another is computed
    decoder = decoder_of(LATENT, layers=4)
    found["small buckets"] = cell(LATENT, sharded(decoder, flat), layers=4)
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    return run_ranks(ranks, 4, tmp_path_factory.mktemp("muon"))


def test_divided_weights_move_as_whole_ones_do(found: list[Found]) -> None:
    assert all(len(each) == 7 for each in found)
    for rank, each in enumerate(found):
        for name, cell in each.items():
            assert cell["far"] < 1e-5, (rank, name, cell)


def test_whole_experts_of_a_rank_are_not_sent_anywhere(found: list[Found]) -> None:
    for each in found:
        assert each["divided experts alone"]["exchanged"] == 0
        cut = [each[f"divided experts, cut along {dim}"]["exchanged"] for dim in (0, 1)]
        assert cut[1] > cut[0]
