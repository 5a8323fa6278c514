"""Weights across machines: a chain of full bases and lossless deltas in a directory or a bucket.

    HEAD               the version to have, and every object that leads to it with its checksum; swapped, never edited
    base/L.S-P         a full copy of the weights, in parts (safetensors)
    delta/L.S-P        the change from the version before, in parts
    damaged/...        a reader could not read that object: the writer publishes a full base

A writer puts the objects of a version there first and swaps the head last, so a reader sees all of a version or nothing
of it; a writer whose head somebody else replaced is refused. A reader takes what it lacks, checks every object and the
weights that come out, and never half applies a version. Each rank of a learner may write the parts of its own tensors;
whoever commits needs only their names and checksums.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Final

import safetensors
import safetensors.torch
from torch import Tensor

from etude.core.errors import EtudeError
from etude.core.policy import Version
from etude.model.weight_transfer.deltas import apply, count_changed, digest, encode, header_of
from etude.model.weight_transfer.object_store import Conflict, ObjectStore

HEAD: Final = "HEAD"
DAMAGED: Final = "damaged/"
# What a writer may delete: the place that was named for the chain may hold other things, a whole bucket or a run.
_OURS: Final = re.compile(r"(damaged/)?(base|delta)[/-]\d+\.\d+-\w+", re.ASCII)
TRIES: Final = 3  # of reading one object: what was damaged on its way is whole the next time


@dataclass(frozen=True)
class StoredPart:
    """An object of a version."""

    name: str
    sha256: str
    weights: str  # checksum of the part's tensors once it is applied
    size: int = 0  # bytes
    values: int = 0  # of the part's tensors
    changed: int = 0  # of these, since the version before; all where that is not known


@dataclass(frozen=True)
class Link:
    """A version in the chain: its parts, full or as changes of the version before."""

    version: str
    full: bool
    parts: tuple[StoredPart, ...]

    @property
    def bytes(self) -> int:
        return sum(part.size for part in self.parts)

    @property
    def density(self) -> float:
        """Share of the values that changed since the version before."""
        return sum(part.changed for part in self.parts) / max(1, sum(part.values for part in self.parts))


@dataclass(frozen=True)
class Head:
    """What a reader needs to know: links from a full base to the newest version."""

    links: tuple[Link, ...] = ()
    earlier: tuple[str, ...] = ()  # objects of the chain before, which a slow reader may still need
    writer: str = ""  # who may publish next; a learner that was replaced finds another name here

    @property
    def version(self) -> Version | None:
        return Version.parse(self.links[-1].version) if self.links else None

    def write(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def read(cls, data: bytes | None) -> Head:
        if data is None:
            return cls()
        try:
            told = json.loads(data)
            links = [
                Link(str(link["version"]), bool(link["full"]), tuple(StoredPart(**part) for part in link["parts"]))
                for link in told["links"]
            ]
            for link in links:
                Version.parse(link.version)
            return cls(tuple(links), tuple(map(str, told["earlier"])), str(told.get("writer", "")))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise EtudeError(f"the head of a weight chain cannot be read: {error}") from None


class NotThere(EtudeError):
    """The chain has no such version, or none yet. `newest` is the last that it has."""

    def __init__(self, message: str, newest: Version | None = None) -> None:
        super().__init__(message)
        self.newest = newest


class OtherWeights(EtudeError):
    """What a reader holds is not what the chain goes on from."""


class DamagedObject(EtudeError):
    """An object is not what the head says; the writer was told."""


@dataclass
class ChainWriter:
    """Publishes versions, a full base every `base_every` of them. One at a time may write to a store."""

    store: ObjectStore
    base_every: int = 20
    _head: Head = field(default_factory=Head)
    _tag: str = ""
    _last: dict[str, dict[str, Tensor]] = field(default_factory=dict)  # by part: what was published last
    _next: dict[str, dict[str, Tensor]] = field(default_factory=dict)  # what lies there and may not be committed
    _pending: Version | None = None  # whose that is

    def __post_init__(self) -> None:
        data, self._tag = self.store.read_head(HEAD)
        self._head = Head.read(data)

    def claim(self, name: str) -> None:
        """Takes the chain over: whoever published before, and may live on unseen, is refused from here on.

        Its versions are gone with it: those of another run have the same names, and an engine would take them for ours.
        """
        before = tuple(part.name for link in self._head.links for part in link.parts)
        self._swap(Head((), before or self._head.earlier, name), "the chain was not taken over")

    def publish(self, weights: Mapping[str, Tensor], version: Version) -> int:
        """All tensors as one part, and the head; how many bytes went out. May be asked again where it failed."""
        part = self.write_part(weights, version, "0", full=self.wants_base)
        self.commit([part], version, full=part.name.startswith("base/"))
        return part.size

    @property
    def wants_base(self) -> bool:
        """Whether the next version must be full: the chain is long or empty, its end is not known, or a reader asks."""
        return not self._last or not self._head.links or len(self._head.links) >= self.base_every or self._reported()

    def repair(self) -> bool:
        """Publishes the newest version again as a full base, if a reader could not read it or the store lost it."""
        version = self._head.version
        if version is None or not self._last:
            return False
        if self.store.read_head(HEAD)[0] is None:
            self._begin_anew()
        elif not self._reported():
            return False
        parts = [self.write_part(last, version, part, full=True) for part, last in list(self._last.items())]
        self.commit(parts, version, full=True)
        return True

    def _reported(self) -> bool:
        return any(name.startswith(DAMAGED) and _OURS.fullmatch(name) for name in self.store.names())

    def write_part(self, weights: Mapping[str, Tensor], version: Version, part: str, *, full: bool) -> StoredPart:
        """Puts the tensors of one part there; nobody sees it before `commit`."""
        if self._pending not in (None, version):
            # Another rank committed it, or nobody did: then it is no base of the next one.
            self._settle(committed=Head.read(self.store.read_head(HEAD)[0]).version == self._pending)
        # A copy: the next step of training writes over what is given here.
        own = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in weights.items()}
        last, values = self._last.get(part), sum(tensor.numel() for tensor in own.values())
        changed = values if last is None else count_changed(last, own)
        if full or last is None:
            data, name = safetensors.torch.save(own), f"base/{version}-{part}"
        else:
            data, name = encode(last, own, {"to": str(version), "from": digest(last)}), f"delta/{version}-{part}"
        self.store.put(name, data)
        self._next[part], self._pending = own, version
        return StoredPart(name, hashlib.sha256(data).hexdigest(), digest(own), len(data), values, changed)

    def commit(self, parts: Sequence[StoredPart], version: Version, *, full: bool) -> None:
        """Makes the version the newest one, and deletes what no reader needs any more."""
        link = Link(str(version), full, tuple(parts))
        before = tuple(part.name for each in self._head.links for part in each.parts)
        links, earlier = ((link,), before) if full else ((*self._head.links, link), self._head.earlier)
        self._swap(replace(self._head, links=links, earlier=earlier), f"version {version} was not published")
        self._settle(committed=True)
        if full:
            kept = {*earlier, *(part.name for part in parts)}
            for name in set(filter(_OURS.fullmatch, self.store.names())) - kept:
                self.store.delete(name)

    def _begin_anew(self) -> None:
        """A store that came back empty: its next head is created, which only one writer can do."""
        self._head, self._tag = Head(writer=self._head.writer), ""

    def _settle(self, committed: bool) -> None:
        self._last = self._last | self._next if committed else self._last
        self._next, self._pending = {}, None

    def _swap(self, head: Head, failed: str) -> None:
        data = head.write()
        try:
            self._tag = self.store.swap_head(HEAD, data, self._tag)
        except EtudeError as failure:
            found, tag = self.store.read_head(HEAD)
            if found is None and self._tag:
                self._begin_anew()
                raise EtudeError(f"{failed}: the store has lost the chain; a full base is next") from None
            # It may be our own, of a try whose answer was lost on its way.
            if found != data and not isinstance(failure, Conflict):
                raise
            if found != data:
                raise Conflict(
                    f"{failed}: another learner writes to the same weights; give this run a cluster.weights of its "
                    "own, or end the other"
                ) from None
            self._tag = tag
        self._head = head


@dataclass
class ChainReader:
    """Follows a chain: from nothing, or from the version it has."""

    store: ObjectStore
    version: Version | None = None
    link: Link | None = None  # what the chain says of that version
    _parts: dict[str, dict[str, Tensor]] = field(default_factory=dict)

    def newest(self) -> Version | None:
        """What the head says; None where nothing was published yet."""
        return Head.read(self.store.read_head(HEAD)[0]).version

    def update(self, wanted: Version | None = None) -> dict[str, Tensor]:
        """The weights of a version, or of the newest. Where an object is damaged this raises, and what was there stays.

        Raises `NotThere` where the chain does not have the version.
        """
        head = Head.read(self.store.read_head(HEAD)[0])
        if head.version is None:
            raise NotThere("nothing has been published to these weights yet; has the learner started?")
        named = [Version.parse(link.version) for link in head.links]
        if wanted is not None and wanted not in named:
            there = f"{named[0]} to {named[-1]}"
            raise NotThere(f"version {wanted} is not in the published weights (there: {there})", named[-1])
        end = len(named) if wanted is None else _last_place(named, wanted) + 1
        # From the base where this version is not in the chain: it is of a chain before, or of another lineage.
        begin = _last_place(named[:end], self.version) + 1 if self.version in named[:end] else 0
        parts = dict(self._parts) if begin else {}
        for link in head.links[begin:end]:
            parts = {_part(each.name): self._read(each, link, parts) for each in link.parts}
        self._parts, self.version, self.link = parts, named[end - 1], head.links[end - 1]
        return {name: tensor for part in parts.values() for name, tensor in part.items()}

    def _read(self, part: StoredPart, link: Link, parts: Mapping[str, dict[str, Tensor]]) -> dict[str, Tensor]:
        data = self._fetch(part)
        if link.full:
            try:
                made = safetensors.torch.load(data)
            except (safetensors.SafetensorError, ValueError) as error:
                raise DamagedObject(f"{part.name} cannot be read: {error}") from None
        else:
            before = parts.get(_part(part.name), {})
            if header_of(data).get("from") != digest(before):
                raise OtherWeights(f"{part.name} is the change of other weights than these; nothing was applied")
            made = apply(data, before)
        if digest(made) != part.weights:
            raise OtherWeights(f"{part.name} does not lead to the weights that were published; nothing was applied")
        return made

    def _fetch(self, part: StoredPart) -> bytes:
        for _ in range(TRIES):
            data = self.store.get(part.name)
            if data is not None and hashlib.sha256(data).hexdigest() == part.sha256:
                return data
        with suppress(EtudeError):  # another reader may be saying the same at this moment
            self.store.put(DAMAGED + part.name.replace("/", "-"), b"")
        raise DamagedObject(
            f"{part.name} is missing or damaged in the published weights; the learner was asked for a full base"
        )


def _last_place(versions: Sequence[Version], wanted: Version | None) -> int:
    """Where a version stands; the later place of two, as a version may be published again."""
    return max(place for place, version in enumerate(versions) if version == wanted)


def _part(name: str) -> str:
    return name.rpartition("-")[2]
