"""Muon over weights that are divided by ranks: each matrix is put together on one rank, its owner, which finds the
orthogonal factor and sends every rank its part of it.

    whole here    experts that lie whole on a rank, and heads that do: no communication
    divided       same shapes form buckets; owners are those who have least to do; parts go to them by one all-to-all

While a bucket is computed, the parts of the next one and the results of the last one are on their way. Equal to the
optimiser of one rank (optim.py), head by head and expert by expert, but for the order of sums.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from etude.core.errors import EtudeError
from etude.model.matrices import fast, orthogonal, slices

BUCKET_NUMBERS = 16 << 20  # that an owner gets of a bucket, or one matrix: few messages, and memory for two in flight


@dataclass(frozen=True)
class Division:
    """A weight whose parts the ranks of `group` hold, cut along `dim` as `torch.chunk` cuts it."""

    shape: tuple[int, ...]  # of what they hold together
    group: dist.ProcessGroup
    dim: int = 0

    def sizes(self) -> list[int]:
        length, ranks = self.shape[self.dim], self.group.size()
        most = -(-length // ranks)
        return [max(0, min(most, length - r * most)) for r in range(ranks)]


def division(parameter: Tensor) -> Division | None:
    """How FSDP and expert parallelism divided a weight; None where this rank has whole matrices of it.

    A stack of experts that is cut along its first dimension, once or twice, is whole experts on every rank.
    """
    if not isinstance(parameter, DTensor):
        return None
    mesh = parameter.device_mesh
    # a second cut of a dimension has a class of its own, which also says `dim`
    cut = [(i, getattr(p, "dim")) for i, p in enumerate(parameter.placements) if not p.is_replicate()]  # noqa: B009
    cut = [(i, dim) for i, dim in cut if mesh.size(i) > 1 and (parameter.ndim == 2 or dim > 0)]
    if not cut:
        return None
    if len(cut) > 1:
        raise EtudeError(f"a matrix is cut in {len(cut)} ways, {parameter.placements}; Muon puts one back together")
    ((number, dim),) = cut
    shape = list(parameter.to_local().shape)
    shape[dim] = parameter.shape[dim]
    return Division(tuple(shape), mesh.get_group(number), dim)


@dataclass(frozen=True)
class Unit:
    """A matrix that is put together by itself: a whole weight, or one expert of a stack."""

    name: str
    expert: int | None
    owner: int


@dataclass(frozen=True)
class Bucket:
    """Units of one shape, cut alike."""

    units: Sequence[Unit]
    division: Division  # of one unit
    rank: int

    def numbers(self, owner: int, rank: int) -> int:
        """How many of them one rank sends to an owner."""
        shape, dim = list(self.division.shape), self.division.dim
        shape[dim] = self.division.sizes()[rank]
        return sum(unit.owner == owner for unit in self.units) * _product(shape)


@dataclass
class _Transfer:
    work: dist.Work
    sent: Tensor  # read until the transfer ends
    received: Tensor

    def wait(self) -> Tensor:
        self.work.wait()
        return self.received


class ShardedMuon:
    """The directions in which an `Optimiser` moves matrices whose parts it has. All ranks call it alike."""

    def __init__(self, divisions: Mapping[str, Division | None], heads: Mapping[str, int]) -> None:
        self.divisions, self.heads = dict(divisions), heads
        self._plans: dict[tuple[str, ...], tuple[list[str], list[Bucket]]] = {}

    @torch.no_grad()
    def __call__(self, updates: Mapping[str, Tensor]) -> None:
        """Turns each update, a part of a matrix, into that part of its orthogonal factor, with an RMS of 0.2."""
        key = tuple(updates)
        if key not in self._plans:
            self._plans[key] = self._plan(updates)
        here, buckets = self._plans[key]
        parts = {name: x.to_local() if isinstance(x, DTensor) else x for name, x in updates.items()}
        gathering = self._gather(buckets[0], parts) if buckets else None
        self._whole({name: parts[name] for name in here})
        returning: tuple[Bucket, _Transfer] | None = None
        for number, bucket in enumerate(buckets):
            coming = gathering
            gathering = self._gather(buckets[number + 1], parts) if number + 1 < len(buckets) else None
            assert coming is not None
            received = coming.wait()
            results = self._compute(bucket, received)
            if returning is not None:
                self._place(*returning, parts)
            returning = bucket, self._return(bucket, results, received)
        if returning is not None:
            self._place(*returning, parts)

    def _plan(self, updates: Mapping[str, Tensor]) -> tuple[list[str], list[Bucket]]:
        here, alike = [], defaultdict[tuple[object, ...], list[tuple[str, int | None]]](list)
        units: dict[tuple[object, ...], Division] = {}
        for name in updates:
            divided = self.divisions[name]
            if divided is None or self._whole_heads(name, divided):
                here.append(name)
                continue
            stacked = len(divided.shape) == 3
            one = Division(divided.shape[1:], divided.group, divided.dim - 1) if stacked else divided
            key = one.group.group_name, one.shape, one.dim
            units[key] = one
            alike[key] += [(name, e) for e in range(divided.shape[0])] if stacked else [(name, None)]
        buckets: list[Bucket] = []
        loads: dict[object, list[int]] = {}  # of the ranks of each group; the costliest matrices are given out first
        for kind in sorted(alike, key=lambda kind: -_cost(units[kind].shape)):
            one = units[kind]
            load = loads.setdefault(one.group.group_name, [0] * one.group.size())
            buckets += _buckets(one, alike[kind], load)
        return here, buckets

    def _whole_heads(self, name: str, divided: Division) -> bool:
        """Whether each rank has whole heads of a projection, whose rows are heads."""
        projection = name.removesuffix(".weight").rpartition(".")[2]
        head = self.heads.get(projection, 0) if projection != "o_proj" else 0
        return bool(head) and divided.dim == 0 and not any(size % head for size in divided.sizes())

    def _whole(self, updates: Mapping[str, Tensor]) -> None:
        """As on one rank: slices of one shape are one batch."""
        held = {name: update.contiguous() for name, update in updates.items() if update.numel()}  # some hold no row
        _turn([slices(name, rows, self.heads) for name, rows in held.items()])
        for name, rows in held.items():
            if rows is not updates[name]:
                updates[name].copy_(rows)

    def _gather(self, bucket: Bucket, parts: Mapping[str, Tensor]) -> _Transfer:
        """Parts of each unit, to its owner."""
        ranks = range(bucket.division.group.size())
        sent = [fast(_part(parts, unit)).reshape(-1) for owner in ranks for unit in bucket.units if unit.owner == owner]
        to = [bucket.numbers(owner, bucket.rank) for owner in ranks]
        return _transfer(bucket, torch.cat(sent), to, [bucket.numbers(bucket.rank, r) for r in ranks])

    def _compute(self, bucket: Bucket, received: Tensor) -> list[Tensor]:
        """What this rank owns of the bucket, whole and turned."""
        own, one = [unit for unit in bucket.units if unit.owner == bucket.rank], bucket.division
        if not own:
            return []
        shapes = [[*one.shape[: one.dim], size, *one.shape[one.dim + 1 :]] for size in one.sizes()]
        counts = [_product(shape) for shape in shapes for _ in own]
        pieces = torch.split(received, counts)  # rank by rank, and of each rank unit by unit
        whole = []
        for number in range(len(own)):
            cut = [pieces[r * len(own) + number].view(shape) for r, shape in enumerate(shapes)]
            whole.append(torch.cat(cut, one.dim))
        _turn([slices(unit.name, _as_stored(unit, x), self.heads) for unit, x in zip(own, whole, strict=True)])
        return whole

    def _return(self, bucket: Bucket, results: Sequence[Tensor], like: Tensor) -> _Transfer:
        """Parts of each result, to the ranks that hold these."""
        one, ranks = bucket.division, range(bucket.division.group.size())
        cut = [torch.split(x, one.sizes(), one.dim) for x in results]
        sent = [each[r].reshape(-1) for r in ranks for each in cut]
        flat = torch.cat(sent) if sent else like.new_empty(0)
        to = [bucket.numbers(bucket.rank, r) for r in ranks]
        return _transfer(bucket, flat, to, [bucket.numbers(owner, bucket.rank) for owner in ranks])

    def _place(self, bucket: Bucket, transfer: _Transfer, parts: Mapping[str, Tensor]) -> None:
        received, ranks = transfer.wait(), range(bucket.division.group.size())
        units = [unit for owner in ranks for unit in bucket.units if unit.owner == owner]
        pieces = torch.split(received, [_part(parts, unit).numel() for unit in units])
        for unit, piece in zip(units, pieces, strict=True):
            part = _part(parts, unit)
            part.copy_(piece.view(part.shape))


def _turn(matrices: Sequence[Tensor]) -> None:
    """Replaces stacks of matrices by their orthogonal factors; those of one shape are batches of a bucket's size.

    All at once would need some copies of all experts of a rank.
    """
    alike: dict[tuple[int, ...], list[list[Tensor]]] = defaultdict(list)
    for x_BMN in matrices:
        size, batches = max(1, BUCKET_NUMBERS // _product(x_BMN.shape[1:])), alike[x_BMN.shape[1:]]
        for part_BMN in torch.split(x_BMN, size):
            if not batches or sum(map(len, batches[-1])) + len(part_BMN) > size:
                batches.append([])
            batches[-1].append(part_BMN)
    for (_, longer), batches in alike.items():
        for batch in batches:
            found = orthogonal(torch.cat([fast(x_BMN) for x_BMN in batch]))
            for x_BMN, part_BMN in zip(batch, torch.split(found, [len(x_BMN) for x_BMN in batch]), strict=True):
                # An RMS of 0.2 whatever the shape, and multiplied in the update's own precision, as in optim.py: in
                # bfloat16, which factors have on a GPU, scores were 1.9e-3 apart from those of one rank.
                x_BMN.copy_(part_BMN).mul_(0.2 * longer**0.5)


def _buckets(one: Division, members: Sequence[tuple[str, int | None]], load: list[int]) -> list[Bucket]:
    """Units of one shape, each given to the rank that has least to do so far, which `load` counts."""
    ranks, rank, owned = one.group.size(), dist.get_rank(one.group), []
    for name, expert in members:
        owner = load.index(min(load))
        load[owner] += _cost(one.shape)
        owned.append(Unit(name, expert, owner))
    size = ranks * max(1, BUCKET_NUMBERS // _product(one.shape))
    return [Bucket(owned[i : i + size], one, rank) for i in range(0, len(owned), size)]


def _cost(shape: Sequence[int]) -> int:
    """Of an orthogonal factor, in products of numbers: the Gram matrix is of the shorter side."""
    return _product(shape) * min(shape)


def _transfer(bucket: Bucket, flat: Tensor, to: list[int], of: list[int]) -> _Transfer:
    received = flat.new_empty(sum(of))
    work = dist.all_to_all_single(received, flat, of, to, group=bucket.division.group, async_op=True)
    assert work is not None
    return _Transfer(work, flat, received)


def _part(parts: Mapping[str, Tensor], unit: Unit) -> Tensor:
    return parts[unit.name] if unit.expert is None else parts[unit.name][unit.expert]


def _as_stored(unit: Unit, x: Tensor) -> Tensor:
    """With the dimension of experts that its name promises."""
    return x if unit.expert is None else x[None]


def _product(shape: Sequence[int]) -> int:
    return int(torch.Size(shape).numel())
