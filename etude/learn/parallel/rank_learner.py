"""One rank of a learner: the five verbs, which all ranks carry out together.

Every rank knows the manifest of the batch (manifest.py), and opens and computes its own share of it. Gradients and
weights are divided by rows (hsdp.py); what is returned is complete on rank 0 only. lead.py lets rank 0 call the verbs
on all ranks.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from etude.core.errors import EtudeError
from etude.core.process import return_large_blocks
from etude.core.transport import PREFIX_BYTES, Frame, read_frame, read_prefix, unpack, write_frame
from etude.core.transport import pack as packed_message
from etude.learn.background_save import BackgroundSave
from etude.learn.drafts import Piece, drafts
from etude.learn.item_checks import check_items
from etude.learn.lora import adapt, fingerprint
from etude.learn.loss import Tally
from etude.learn.optim import rate
from etude.learn.packing import pack
from etude.learn.parallel import checkpoint
from etude.learn.parallel.context import split_context
from etude.learn.parallel.experts import sum_loads
from etude.learn.parallel.host_group import HostGroup
from etude.learn.parallel.hsdp import Fill, Shard, let_go, shard
from etude.learn.parallel.manifest import Manifest
from etude.learn.parallel.mesh import Meshes
from etude.learn.parallel.messages import RankSpec, Refused, ScoredShare, Share, TallyShare
from etude.learn.parallel.rounds import RankMicroBatch, Round, score_items
from etude.learn.parallel.shard_optimiser import ShardOptimiser
from etude.learn.streams import Floats, Item
from etude.model.checkpoint.directory import outline
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder
from etude.model.experts import balance
from etude.model.training import set_up

Shares = list[list[list[int]]]  # numbers of items, by rank (or ranks that compute together) and micro-batch
Sources = Mapping[str, Decoder]  # whole decoders by the name of their weights; on rank 0 only


class RankLearner:
    def __init__(self, spec: RankSpec, sources: Sources) -> None:
        if spec.device == "cpu":
            return_large_blocks()
        self.spec, self.optim, self.host = spec, spec.optim, HostGroup(spec.seconds)
        self.total_steps, self.micro_tokens = spec.total_steps, spec.micro_tokens
        self.meshes = Meshes(spec.layout, torch.device(spec.device).type, spec.seconds)
        self.config = ModelConfig.from_hf(json.loads(spec.config), "the model of rank 0")
        self.base: str | None = None  # of the frozen weights that adapters belong to
        if spec.lora.rank:
            base = fingerprint(sources["live"]).encode() if sources else None
            self.base = self.host.broadcast(base).decode()
        # Compiled blocks keep 8-bit copies until a weight was written to; FSDP writes without counting that.
        compute = replace(spec.compute, compile=spec.compute.compile and spec.compute.precision != "fp8")
        self.weights: dict[str, Decoder] = {}
        self.shards: dict[str, dict[str, Shard]] = {}
        for name in ["live", *(["frozen"] if spec.frozen else []), *(["ema"] if spec.optim.ema else [])]:
            decoder = outline(self.config)
            # Reference weights have adapters only where they follow those of the live ones.
            adapt(decoder, spec.lora if name != "frozen" else replace(spec.lora, rank=0), 0)
            set_up(decoder, compute, spec.device)
            fill = self._sent(sources.get("live" if name == "ema" else name), name == "live")
            self.shards[name] = shard(decoder, self.meshes, spec.device, fill, spec.dispatch)
            if self.meshes.context is not None:
                split_context(decoder, self.meshes.context)
            self.weights[name] = decoder
        self.decoder = self.weights["live"]
        trained = {name: held for name, held in self.shards["live"].items() if held.parameter.requires_grad}
        self.optimiser = ShardOptimiser(trained, spec.optim, self.config.head_dims)
        self.steps = self.skipped = 0
        self.saving = BackgroundSave()

    def forward_backward(self, batch: Manifest, held: Sequence[Item] | None = None) -> dict[str, float]:
        """Adds this rank's gradients; metrics of all ranks, on rank 0.

        `held` are the items of a batch without files, on rank 0.
        """
        shares = self._shares([entry.room if entry.computed else 0 for entry in batch.items])
        items, tally = self._items(batch, shares, held), Tally()
        for needs, mine in self._rounds(batch, shares):
            chosen = [items[i] for i in mine]
            RankMicroBatch(chosen, batch.correction, self.weights, tally, needs).backward()
        gathered = self.host.gather(write_frame(packed_message(TallyShare.of(tally))))
        tallies = [unpack(TallyShare, frame_of(share)).tally() for share in gathered]
        # Ranks compute every sequence whole: none is given what it has in common with another.
        tokens = {"forward_tokens": sum(entry.computed for entry in batch.items), "shared_tokens": 0}
        found = tokens | Tally(tallies).metrics()
        if (texts := batch.texts) is not None and texts.sizes is not None:
            # Ranks that compute a sequence together have all read it.
            found["text_bytes"] = self.host.total([texts.bytes_of(items)])[0] / self.spec.layout.context
        return found

    def score(self, batch: Manifest, weights: str, held: Sequence[Item] | None = None) -> list[Floats]:
        """As of one rank, on rank 0."""
        numbers: list[int] = []
        scores: list[Floats] = []
        shares = self._shares([max(1, entry.tokens) for entry in batch.items])
        items = self._items(batch, shares, held)
        for _, mine in self._rounds(batch, shares):
            scores += score_items(self.weights[weights], [items[i] for i in mine])
            numbers += mine
        gathered = self.host.gather(write_frame(packed_message(ScoredShare(np.array(numbers, np.int64), scores))))
        found: dict[int, Floats] = {}
        for share in gathered:
            scored = unpack(ScoredShare, frame_of(share))
            found |= dict(zip(scored.numbers_I.tolist(), scored.scores, strict=True))
        return [found[i] for i in range(len(batch.items))] if gathered else []

    def drafts(self, pieces: Sequence[Piece]) -> tuple[Tensor, Tensor]:
        found = drafts(self.decoder, pieces)
        let_go(self.decoder)
        return found

    @torch.no_grad()
    def step(self) -> dict[str, float]:
        """As of one rank: clips by the norm over all ranks, updates, averages; skips gradients that are not finite."""
        norm = self._take_gradients()
        factor = rate(self.steps, self.total_steps, self.optim)
        self.steps += 1
        self.skipped += not math.isfinite(norm)
        if math.isfinite(norm):
            self.optimiser.step(factor)
        self.decoder.zero_grad(set_to_none=True)
        for rows in self.optimiser.parameters.values():
            rows.grad = None
        report = {"lr": self.optim.lr * factor, "grad_norm": norm, "skipped": self.skipped}
        sum_loads(self.decoder)
        report |= balance(self.decoder, self.optim.balance if math.isfinite(norm) else 0.0)
        if self.optim.ema and math.isfinite(norm):
            for _, average, live in self.averaged():
                average.lerp_(live, 1 - self.optim.ema)
        return report

    def save(self, directory: Path) -> None:
        checkpoint.save(self, directory)

    def begin_save(self, directory: Path) -> None:
        checkpoint.begin_save(self, directory)

    def finish_save(self) -> None:
        checkpoint.finish_save(self)

    def restore(self, directory: Path) -> None:
        checkpoint.restore(self, directory)

    def set_rate(self, lr: float) -> None:
        """Another peak learning rate from the next step on."""
        if lr != self.optim.lr:
            self.optim = self.optimiser.settings = replace(self.optim, lr=lr)

    @torch.no_grad()
    def _take_gradients(self) -> float:
        """Hands the optimiser this rank's rows of the summed and clipped gradients; their norm over all ranks."""
        squares = []
        for name, rows in self.optimiser.parameters.items():
            held = self.optimiser.shards[name]
            gradient = held.gradient
            if gradient is not None:
                rows.grad = gradient.mul_(held.averaged)
                squares.append(gradient.double().square().sum() / held.copies)
        total = float(torch.stack(squares).sum()) if squares else 0.0
        norm = math.sqrt(self.host.total([total])[0])
        if self.optim.clip and norm > self.optim.clip:
            for rows in self.optimiser.parameters.values():
                if rows.grad is not None:
                    rows.grad.mul_(self.optim.clip / (norm + 1e-6))  # as torch's clip_grad_norm_ does
        return norm

    def averaged(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Averaged weights beside the live ones they follow: rows of trained parameters, and buffers."""
        for name in self.optimiser.parameters:
            yield name, self.shards["ema"][name].local, self.shards["live"][name].local
        live = buffers(self.decoder)
        for name, average in buffers(self.weights["ema"]).items():
            yield name, average, live[name]

    def _rounds(self, batch: Manifest, shares: Shares) -> Iterator[tuple[Round, list[int]]]:
        """Round by round: what it needs, and the numbers of the items that are this rank's."""
        for micro_batches in zip(*shares, strict=True):
            needs = Round.of([batch.items[i] for micro in micro_batches for i in micro])
            yield needs, micro_batches[self.meshes.data_rank]

    def _shares(self, room: Sequence[int]) -> Shares:
        """Every rank finds the same; items that take no room are nobody's."""
        counted = [number for number, tokens in enumerate(room) if tokens]
        # attention costs about n * n * width against 12 * n * width * width of the products
        quadratic = 1 / (12 * self.config.hidden_size)
        # A micro-batch is that of all ranks that compute a sequence together, so more of them need less memory each.
        shares = pack([room[i] for i in counted], self.micro_tokens, self.meshes.data_ranks, quadratic)
        return [[[counted[i] for i in micro] for micro in share] for share in shares]

    def _items(self, batch: Manifest, shares: Shares, held: Sequence[Item] | None) -> dict[int, Item]:
        """This rank's items by number: opened here, or sent by rank 0, who has them all."""
        numbers = [[i for micro in share for i in micro] for share in shares]
        mine = numbers[self.meshes.data_rank]
        if batch.in_files:
            return self._opened(batch, mine)
        if held is None:
            return dict(zip(mine, unpack(Share, frame_of(self.host.scatter(None))).items, strict=True))
        parts = [write_frame(packed_message(Share([held[i] for i in some]))) for some in numbers]
        self.host.scatter([parts[rank // self.spec.layout.context] for rank in range(self.host.ranks)])
        return {i: held[i] for i in mine}

    def _opened(self, batch: Manifest, mine: Sequence[int]) -> dict[int, Item]:
        """From their files; what is wrong with one is refused by all ranks, before any of them computes."""
        items, said = {}, ""
        try:
            items = {number: batch.open(number) for number in mine}
            check_items(list(items.values()), self.config, self.weights)
        except EtudeError as refused:
            said = f"{refused} (rank {self.host.rank})"
        if self.host.total([bool(said)])[0]:
            others = [text.decode() for text in self.host.gather(said.encode()) if text]
            raise Refused(others[0] if others else said or "another rank refuses its items")
        return items

    def _sent(self, source: Decoder | None, live: bool) -> Fill:
        """Writes what rank 0 has into each rank's memory, one tensor at a time."""
        held: dict[str, Tensor] = {}
        frozen: list[str] = []
        if source is not None:
            held = dict(source.named_parameters(remove_duplicate=False)) | dict(source.named_buffers())
            frozen = [name for name, p in source.named_parameters() if not p.requires_grad]
        frozen = json.loads(self.host.broadcast(json.dumps(frozen).encode() if self.host.rank == 0 else None))
        still = set(frozen)

        def fill(name: str, tensor: Tensor) -> bool:
            if source is not None:
                if held[name].is_meta:
                    assert source.reader is not None
                    source.reader(name, tensor)
                else:
                    tensor.copy_(held[name])
            dist.broadcast(tensor, 0)
            return live and name not in still

        return fill


def buffers(decoder: Decoder) -> dict[str, Tensor]:
    """Those that a checkpoint holds, which every rank has whole."""
    kept = {name: x for name, x in decoder.named_buffers() if x.is_floating_point()}
    stored = decoder.state_dict().keys()
    return {name: x for name, x in kept.items() if name in stored}


def frame_of(data: bytes) -> Frame:
    header, _ = read_prefix(data[:PREFIX_BYTES])
    return read_frame(data[PREFIX_BYTES : PREFIX_BYTES + header], data[PREFIX_BYTES + header :])
