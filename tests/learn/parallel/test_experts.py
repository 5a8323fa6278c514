"""Experts divided over 2 and 4 ranks against the same layers on one: outputs, gradients, loads, replayed routes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from etude.core.errors import EtudeError
from etude.core.settings import ComputeSettings
from etude.learn.parallel.experts import expert_parameters, split_experts, sum_loads
from etude.learn.parallel.wire import Exchange, Wire
from etude.model.decoder import Block, Decoder
from etude.model.experts import MixtureOfExperts, Router, balance, replay_metrics
from etude.model.packed_forward import Packed
from etude.model.training import set_up
from tests.learn.parallel.groups import Found, run_ranks, worst
from tests.learn.parallel.models import GROUPED, LATENT, decoder_of, sequences

LENGTHS = [[9, 5], [17], [4, 4, 4], [11]]  # sequences of each rank


def routes(lengths: list[int], decoder: Decoder, seed: int) -> list[np.ndarray]:
    """Experts to be chosen again: at random, some unknown."""
    config, rng = decoder.config, np.random.default_rng(seed)
    shape = len(config.sparse_layers), config.num_experts_per_tok
    found = []
    for length in lengths:
        places = [[rng.permutation(config.num_experts)[: shape[1]] for _ in range(shape[0])] for _ in range(length)]
        asked = np.sort(np.array(places, np.int16), -1)
        asked[rng.random(length) < 0.3] = -1
        found.append(asked)
    return found


def backward(decoder: Decoder, lengths: list[int], seed: int, replay: bool) -> tuple[Tensor, Packed]:
    """A forward of whole sequences and the gradient of a fixed weighted sum of its states."""
    experts = routes(lengths, decoder, seed) if replay else []
    flat = Packed(decoder, sequences(lengths, seed), experts=experts, plausible=[0.5] * len(lengths) if replay else [])
    (hidden_TD,) = flat.hidden()
    weight_TD = torch.randn(hidden_TD.shape, generator=torch.Generator().manual_seed(seed))
    (hidden_TD * weight_TD).sum().backward()
    return hidden_TD.detach(), flat


def whole_of(weight: Tensor) -> Tensor:
    return weight.full_tensor() if isinstance(weight, DTensor) else weight.detach()


def model_cell(
    shape: list[str], mesh: DeviceMesh, *, replay: bool = False, recompute: bool = False
) -> dict[str, float]:
    """How far a split decoder is from the whole one, over the ranks of `mesh`."""
    whole, split, rank = decoder_of(shape), decoder_of(shape), mesh.get_local_rank()
    split_experts(split, mesh)
    set_up(split, ComputeSettings(recompute=recompute), "cpu")
    wanted = [backward(whole, LENGTHS[r], r, replay) for r in range(mesh.size())]
    hidden_TD, flat = backward(split, LENGTHS[rank], rank, replay)
    far = {"hidden": worst(hidden_TD, wanted[rank][0])}
    divided = expert_parameters(split)
    far["gradient"] = 0.0
    for (name, ours), theirs in zip(split.named_parameters(), whole.parameters(), strict=True):
        assert ours.grad is not None and theirs.grad is not None, name
        gradient = whole_of(ours.grad)
        if name not in divided:
            dist.all_reduce(gradient, group=mesh.get_group())
        far["gradient"] = max(far["gradient"], worst(gradient, theirs.grad))
    far["names"] = float([n for n, _ in split.named_parameters()] != [n for n, _ in whole.named_parameters()])
    far["gathered"] = max(worst(whole_of(x), whole.get_parameter(name)) for name, x in divided.items())
    sum_loads(split, mesh.get_group())
    far["load"] = max(worst(a.load_E, b.load_E) for a, b in zip(routers(split), routers(whole), strict=True))
    far["uneven"] = balance(split, 0.1)["load_max"] - balance(whole, 0.1)["load_max"]
    if shape is LATENT:
        biases = [[r.e_score_correction_bias for r in routers(x)] for x in (split, whole)]
        far["bias"] = max(worst(a, b) for a, b in zip(*biases, strict=True))
    if replay:
        assert flat.routing is not None and wanted[rank][1].routing is not None
        metrics = replay_metrics([flat.routing])
        far["replay"] = sum(abs(metrics[k] - v) for k, v in replay_metrics([wanted[rank][1].routing]).items())
        far["unfiltered"] = float(metrics["replay_refused"] == 0)
    return far


def sharded_cell(mesh: DeviceMesh) -> dict[str, float]:
    """Experts over a mesh (expert_shard, expert), cut once more by FSDP, in a model under FSDP that computes twice."""
    whole, split, rank = decoder_of(LATENT), decoder_of(LATENT), dist.get_rank()
    split_experts(split, mesh["expert"])
    set_up(split, ComputeSettings(recompute=True), "cpu")
    world = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("shard",))
    for block in [module for module in split.modules() if isinstance(module, Block)]:
        if isinstance(block.mlp, MixtureOfExperts):
            fully_shard(block.mlp.experts, mesh=mesh["expert_shard"])
        fully_shard(block, mesh=world)
    fully_shard(split, mesh=world)
    hidden_TD, _ = backward(split, LENGTHS[rank], rank, False)
    wanted = [backward(whole, LENGTHS[r], r, False)[0] for r in range(4)]
    far, divided = {"hidden": worst(hidden_TD, wanted[rank]), "gradient": 0.0}, expert_parameters(split)
    for (name, ours), theirs in zip(split.named_parameters(), whole.parameters(), strict=True):
        assert isinstance(ours.grad, DTensor) and theirs.grad is not None, name
        ranks = 2 if name in divided else 4  # over which FSDP averaged
        far["gradient"] = max(far["gradient"], worst(ranks * ours.grad.full_tensor(), theirs.grad))
    return far


def order_cell(mesh: DeviceMesh) -> list[str]:
    """What happens one behind the other in a forward and a backward pass of one layer."""
    model, seen = decoder_of(LATENT), []
    split_experts(model, mesh)
    layer = next(m for m in model.modules() if isinstance(m, MixtureOfExperts))
    layer.shared_experts.register_forward_hook(lambda *_: seen.append("shared"))
    layer.shared_experts.down_proj.weight.register_hook(lambda _: seen.append("gradient of shared"))
    send, wait = Exchange._send, Exchange._wait

    def sends(self: Exchange, *facts: Any) -> None:
        seen.append("send")
        send(self, *facts)

    def waits(self: Exchange) -> Tensor:
        seen.append("wait")
        return wait(self)

    Exchange._send, Exchange._wait = sends, waits  # type: ignore[method-assign]
    layer(torch.randn(5, 16, requires_grad=True)).square().sum().backward()
    Exchange._send, Exchange._wait = send, wait  # type: ignore[method-assign]
    return seen


def routers(model: nn.Module) -> Iterator[Router]:
    return (module for module in model.modules() if isinstance(module, Router))


def layer_cell(mesh: DeviceMesh, wire: Wire, tokens: list[int], only: int | None = None) -> dict[str, float]:
    """One layer by itself, with `tokens` of them on each rank; `only`: all go to this expert and its neighbour."""
    whole, split = decoder_of(LATENT), decoder_of(LATENT)
    split_experts(split, mesh, wire)
    layers: list[MixtureOfExperts] = [
        next(m for m in x.modules() if isinstance(m, MixtureOfExperts)) for x in (whole, split)
    ]
    rank, count = mesh.get_local_rank(), whole.config.num_experts
    if only is not None:
        for layer in layers:
            layer.gate.e_score_correction_bias[only : only + 2] = 10.0
    x = [torch.randn(n, 16, generator=torch.Generator().manual_seed(r)) for r, n in enumerate(tokens)]
    slope = [torch.randn(n, 16, generator=torch.Generator().manual_seed(9 + r)) for r, n in enumerate(tokens)]
    wanted, leaf = torch.cat(x).requires_grad_(), x[rank].clone().requires_grad_()
    out = layers[0](wanted)
    out.backward(torch.cat(slope))
    ours = layers[1](leaf)
    ours.backward(slope[rank])
    assert wanted.grad is not None and leaf.grad is not None
    far = {"out": worst(ours, out.split(tokens)[rank]), "x": worst(leaf.grad, wanted.grad.split(tokens)[rank])}
    for name in ("gate_up_proj", "down_proj"):
        mine, theirs = (getattr(layer.experts, name).grad for layer in layers[::-1])
        part = theirs.chunk(mesh.size())[rank]
        far[name] = float((mine.to_local() - part).abs().max() / theirs.abs().max().clamp(min=1e-12))
    assert count % mesh.size() == 0
    return far


def ranks(rank: int, count: int) -> Found:
    whole = init_device_mesh("cpu", (count,), mesh_dim_names=("expert",))
    square = init_device_mesh("cpu", (count // 2, 2), mesh_dim_names=("expert_shard", "expert"))
    pairs, found = square["expert"], Found()
    for size, mesh in ((2, pairs), (4, whole)):
        for name, shape in (("latent", LATENT), ("grouped", GROUPED)):
            for kind in ({}, {"replay": True}, {"recompute": True}) if name == "latent" else ({},):
                found[f"{name} {size} {next(iter(kind), 'plain')}"] = model_cell(shape, mesh, **kind)
    found["latent 2, sharded, recomputed"] = sharded_cell(square)
    found["order"] = order_cell(whole)
    found["no tokens on two ranks"] = layer_cell(whole, "same", [0, 5, 0, 3])
    found["no tokens anywhere"] = layer_cell(pairs, "same", [0, 0])
    found["one rank gets all"] = layer_cell(whole, "same", [3, 5, 7, 3], only=4)
    found["wire bfloat16"] = layer_cell(whole, "bfloat16", [30, 50, 20, 40])
    found["wire fp8"] = layer_cell(whole, "fp8", [30, 50, 20, 40])
    try:
        split_experts(decoder_of(LATENT, experts=6), whole)
    except EtudeError as refused:
        found["refused"] = str(refused)
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    return run_ranks(ranks, 4, tmp_path_factory.mktemp("experts"))


def test_split_models_compute_what_whole_ones_do(found: list[Found]) -> None:
    cells = {
        (r, name): cell
        for r, each in enumerate(found)
        for name, cell in each.items()
        if name.split()[0] in ("latent", "grouped")
    }
    assert len(cells) == 4 * 9
    for where, cell in cells.items():
        assert all(abs(value) < 1e-5 for value in cell.values()), (where, cell)


def test_shared_experts_are_computed_while_rows_travel_and_their_gradient_too(found: list[Found]) -> None:
    forward = ["send", "shared", "wait", "send", "wait"]
    for each in found:
        assert each["order"] == [*forward, "send", "wait", "send", "gradient of shared", "wait"]


@pytest.mark.parametrize("name", ["no tokens on two ranks", "no tokens anywhere", "one rank gets all"])
def test_uneven_and_empty_groups(found: list[Found], name: str) -> None:
    for each in found:
        assert all(value < 1e-5 for value in each[name].values()), each[name]


def test_fewer_bits_on_the_wire_cost_their_rounding_and_no_more(found: list[Found]) -> None:
    # half a step of bfloat16 is 2**-9 of a number, of 8 bits 2**-4; sums over 16 and more numbers even out
    for each in found:
        assert all(0 < value < 0.02 for value in each["wire bfloat16"].values()), each["wire bfloat16"]
        assert all(0 < value < 0.08 for value in each["wire fp8"].values()), each["wire fp8"]
        assert each["wire fp8"]["out"] > each["wire bfloat16"]["out"]


def test_experts_that_cannot_be_divided_are_refused(found: list[Found]) -> None:
    assert all("does not divide the model's 6 experts" in each["refused"] for each in found)
