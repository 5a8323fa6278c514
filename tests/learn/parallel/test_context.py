"""Sequences divided over 2 and 4 ranks against one: every kind of target, scores, recomputation, divided experts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from etude.core.settings import ComputeSettings
from etude.learn.loss import MicroBatch, Tally, packed
from etude.learn.parallel.context import pieces, places, split_context
from etude.learn.parallel.experts import split_experts
from etude.learn.streams import Correction, Item, Label, MainHead, Sampled, Stream, Twin
from etude.model.decoder import Decoder
from etude.model.training import set_up
from tests.learn.parallel.groups import Found, run_ranks, worst
from tests.learn.parallel.models import DENSE, GROUPED, LATENT, VOCAB, decoder_of

LENGTHS = [29, 1, 16, 3]  # of one token one rank has nothing, and of 3 tokens some ranks have
SEQUENCE = Correction("clip", "sequence", 0.8, 1.2)


def items(decoder: Decoder, seed: int = 0) -> list[Item]:
    """All kinds of targets, temperatures, and experts to be chosen again."""
    config, rng, found = decoder.config, np.random.default_rng(seed), []
    for number, length in enumerate(LENGTHS):
        tokens = rng.integers(0, VOCAB, length)
        weight, logprob = rng.random(length, np.float32), -3 * rng.random(length, np.float32)
        streams = [
            Stream("main", weight, Label(tokens)),
            Stream("main", weight[::-1].copy(), Sampled(rng.standard_normal(length).astype(np.float32), logprob)),
            Stream("mtp.1", weight, MainHead(divergence="forward")),
        ]
        if length > 8:
            # A hint in front of the last tokens, as the student knows it and as frozen weights do.
            hinted = np.concatenate((tokens[:5], rng.integers(0, VOCAB, 4), tokens[5:]))
            align = np.where(np.arange(length) > 6, np.arange(length) + 4, -1)
            streams += [
                Stream("main", weight, Twin(tokens_U=hinted, align_T=align, weights=kind, lowers=kind == "live"))
                for kind in ("live", "frozen")
            ]
        experts = None
        if config.num_experts and number != 2:
            shape = length, len(config.sparse_layers), config.num_experts_per_tok
            first = rng.integers(0, config.num_experts - 1, shape[:2])
            experts = (first[:, :, None] + np.arange(shape[2])).astype(np.int16)
        found.append(Item(tokens, streams, 1.0 + 0.1 * number, experts, plausible=0.4))
    return found


def cell(shape: list[str], mesh: DeviceMesh, *, recompute: bool = False, experts: bool = False) -> dict[str, float]:
    """How far a decoder whose sequences are divided over `mesh` is from one by itself."""
    whole, split, frozen = (decoder_of(shape, seed, mtp_layers=1) for seed in (1, 1, 2))
    beside = decoder_of(shape, 2, mtp_layers=1)
    if experts:
        for decoder in (split, beside):
            split_experts(decoder, mesh)
    set_up(split, ComputeSettings(recompute=recompute), "cpu")
    for decoder in (split, beside):
        split_context(decoder, mesh.get_group())
    batch, far = items(whole), {}
    tallies = Tally(), Tally()
    MicroBatch(batch, SEQUENCE, {"live": whole, "frozen": frozen}, tallies[0]).backward()
    MicroBatch(batch, SEQUENCE, {"live": split, "frozen": beside}, tallies[1]).backward()
    losses = [torch.tensor([v for k, v in t.metrics().items() if k.endswith("_loss") or k == "loss"]) for t in tallies]
    dist.all_reduce(losses[1], group=mesh.get_group())
    assert len(losses[0]) == 5
    far["losses"] = worst(losses[1], losses[0])
    far["gradient"] = 0.0
    for (name, ours), theirs in zip(split.named_parameters(), whole.parameters(), strict=True):
        assert ours.grad is not None and theirs.grad is not None, name
        gradient = ours.grad.full_tensor() if isinstance(ours.grad, DTensor) else ours.grad
        if not isinstance(ours.grad, DTensor):
            dist.all_reduce(gradient, group=mesh.get_group())
        far["gradient"] = max(far["gradient"], worst(gradient, theirs.grad))
    far["scores"] = worst(packed(split, batch).scores(), packed(whole, batch).scores())
    replayed = torch.tensor([float(sum(r.refused for r in t.routings)) for t in tallies])
    ours = replayed[1].clone()
    dist.all_reduce(ours, group=mesh.get_group())
    far["refused"] = float(ours - replayed[0])
    twins = torch.tensor(float(sum(map(len, tallies[1].changes))))
    dist.all_reduce(twins, group=mesh.get_group())
    far["twins"] = float(twins) - sum(map(len, tallies[0].changes))
    return far


def ranks(rank: int, count: int) -> Found:
    whole = init_device_mesh("cpu", (count,), mesh_dim_names=("context",))
    pairs = init_device_mesh("cpu", (count // 2, 2), mesh_dim_names=("data", "context"))["context"]
    found: Found = {"dense 2": cell(DENSE, pairs), "grouped 4": cell(GROUPED, whole), "latent 2": cell(LATENT, pairs)}
    found["latent 4, recomputed"] = cell(LATENT, whole, recompute=True)
    found["dense 4, recomputed"] = cell(DENSE, whole, recompute=True)
    found["latent 2 with experts divided"] = cell(LATENT, pairs, experts=True)
    found["latent 4 with experts divided, recomputed"] = cell(LATENT, whole, experts=True, recompute=True)
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    return run_ranks(ranks, 4, tmp_path_factory.mktemp("context"))


def test_divided_sequences_give_the_losses_gradients_and_scores_of_whole_ones(found: list[Found]) -> None:
    assert all(len(each) == 7 for each in found)
    for rank, each in enumerate(found):
        for name, far in each.items():
            assert far["losses"] < 1e-5 and far["scores"] < 1e-5 and far["gradient"] < 1e-4, (rank, name, far)
            assert far["refused"] == 0 and far["twins"] == 0, (rank, name, far)


def test_pieces_cover_each_sequence_once_and_cost_about_the_same() -> None:
    for count in (2, 3, 4, 8):
        lengths = [100, 7, 1, 64]
        every = np.concatenate([places(lengths, r, count) for r in range(count)])
        assert sorted(every.tolist()) == list(range(sum(lengths)))
        seen = [sum(sum(range(low + 1, high + 1)) for low, high in pieces(4096, r, count)) for r in range(count)]
        assert max(seen) / min(seen) < 1.01
