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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Final

import safetensors
import safetensors.torch
from torch import Tensor

from etude.core.errors import EtudeError
from etude.core.policy import Version
from etude.model.weight_transfer.deltas import apply, digest, encode, header_of
from etude.model.weight_transfer.object_store import Conflict, ObjectStore

HEAD: Final = "HEAD"
DAMAGED: Final = "damaged/"
TRIES: Final = 3  # of reading one object: what was damaged on its way is whole the next time


@dataclass(frozen=True)
class StoredPart:
    """An object of a version."""

    name: str
    sha256: str
    weights: str  # checksum of the part's tensors once it is applied


@dataclass(frozen=True)
class Link:
    """A version in the chain: its parts, full or as changes of the version before."""

    version: str
    full: bool
    parts: tuple[StoredPart, ...]


@dataclass(frozen=True)
class Head:
    """What a reader needs to know: links from a full base to the newest version."""

    links: tuple[Link, ...] = ()
    earlier: tuple[str, ...] = ()  # objects of the chain before, which a slow reader may still need

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
            return cls(tuple(links), tuple(map(str, told["earlier"])))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise EtudeError(f"the head of a weight chain cannot be read: {error}") from None


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

    def __post_init__(self) -> None:
        data, self._tag = self.store.read_head(HEAD)
        self._head = Head.read(data)

    def publish(self, weights: Mapping[str, Tensor], version: Version) -> int:
        """All tensors as one part, and the head; how many bytes went out."""
        part, size = self.write_part(weights, version, "0", full=self.wants_base)
        self.commit([part], version, full=part.name.startswith("base/"))
        return size

    @property
    def wants_base(self) -> bool:
        """Whether the next version must be full: the chain is long, nothing is known of it, or a reader asks."""
        return not self._last or len(self._head.links) >= self.base_every or self._reported()

    def repair(self) -> bool:
        """Publishes the newest version again as a full base, if a reader could not read something of it."""
        version = self._head.version
        if version is None or not self._last or not self._reported():
            return False
        parts = [self.write_part(last, version, part, full=True)[0] for part, last in list(self._last.items())]
        self.commit(parts, version, full=True)
        return True

    def _reported(self) -> bool:
        return any(name.startswith(DAMAGED) for name in self.store.names())

    def write_part(
        self, weights: Mapping[str, Tensor], version: Version, part: str, *, full: bool
    ) -> tuple[StoredPart, int]:
        """Puts the tensors of one part there; nobody sees it before `commit`. The part, and its size in bytes."""
        # A copy: the next step of training writes over what is given here.
        own = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in weights.items()}
        last = self._last.get(part)
        if full or last is None:
            data, name = safetensors.torch.save(own), f"base/{version}-{part}"
        else:
            data, name = encode(last, own, {"to": str(version), "from": digest(last)}), f"delta/{version}-{part}"
        self.store.put(name, data)
        self._last[part] = own
        return StoredPart(name, hashlib.sha256(data).hexdigest(), digest(own)), len(data)

    def commit(self, parts: Sequence[StoredPart], version: Version, *, full: bool) -> None:
        """Makes the version the newest one, and deletes what no reader needs any more."""
        link = Link(str(version), full, tuple(parts))
        before = tuple(part.name for each in self._head.links for part in each.parts)
        head = Head((link,), before) if full else Head((*self._head.links, link), self._head.earlier)
        try:
            self._tag = self.store.swap_head(HEAD, head.write(), self._tag)
        except Conflict:
            raise EtudeError(
                f"version {version} was not published: another learner writes to the same weights; give this run a "
                "cluster.weights of its own, or end the other"
            ) from None
        self._head = head
        if full:
            kept = {HEAD, *head.earlier, *(part.name for part in parts)}
            for name in set(self.store.names()) - kept:
                self.store.delete(name)


@dataclass
class ChainReader:
    """Follows a chain: from nothing, or from the version it has."""

    store: ObjectStore
    version: Version | None = None
    _parts: dict[str, dict[str, Tensor]] = field(default_factory=dict)

    def newest(self) -> Version | None:
        """What the head says; None where nothing was published yet."""
        return Head.read(self.store.read_head(HEAD)[0]).version

    def update(self) -> dict[str, Tensor]:
        """The weights of the newest version. Where an object is damaged this raises, and what was there stays."""
        head = Head.read(self.store.read_head(HEAD)[0])
        if head.version is None:
            raise EtudeError("nothing has been published to these weights yet; has the learner started?")
        known = [number for number, link in enumerate(head.links) if link.version == str(self.version)]
        # From the base where this version is not in the chain: it is of a chain before, or of another lineage.
        links = head.links[known[0] + 1 :] if known else head.links
        parts = dict(self._parts) if known else {}
        for link in links:
            parts = {_part(each.name): self._read(each, link, parts) for each in link.parts}
        self._parts, self.version = parts, head.version
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
                raise EtudeError(f"{part.name} is the change of other weights than these; nothing was applied")
            made = apply(data, before)
        if digest(made) != part.weights:
            raise EtudeError(f"{part.name} does not lead to the weights that were published; nothing was applied")
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


def _part(name: str) -> str:
    return name.rpartition("-")[2]
