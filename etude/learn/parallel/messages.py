"""What rank 0 tells the other ranks, and what they bring back: declared once, sent as frames (core/transport.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from etude.core.errors import EtudeError
from etude.core.settings import ComputeSettings, LoraSettings, OptimSettings
from etude.core.token_files import Slice
from etude.learn.drafts import Piece, ids_of
from etude.learn.loss import Tally
from etude.learn.parallel.layout import Layout
from etude.learn.parallel.manifest import Manifest
from etude.learn.parallel.wire import Wire
from etude.learn.streams import Floats, Ids, Item
from etude.model.experts import Routing


@dataclass(frozen=True)
class RankSpec:
    """What every rank builds its part of the learner from; the weights follow from rank 0."""

    layout: Layout
    config: str  # the model's config.json
    optim: OptimSettings
    total_steps: int
    micro_tokens: int
    device: str = "cpu"
    compute: ComputeSettings = field(default_factory=ComputeSettings)
    lora: LoraSettings = field(default_factory=LoraSettings)
    frozen: bool = False  # whether there are reference weights for twins
    dispatch: Wire = "same"  # numbers in which tokens travel to experts of other ranks
    seconds: float = 600.0  # longest that ranks wait for each other


class Refused(EtudeError):
    """What every rank refuses together, before anything was computed: all of them go on."""


@dataclass(frozen=True)
class ScoreOrder:
    batch: Manifest
    weights: str


@dataclass(frozen=True)
class Pieces:
    """Sequences that every rank computes: those that lie in files, or all of them."""

    slices: Sequence[Slice]
    pieces: Sequence[Ids]

    @classmethod
    def of(cls, pieces: Sequence[Piece]) -> Pieces:
        slices = [piece for piece in pieces if isinstance(piece, Slice)]
        if len(slices) == len(pieces):
            return cls(slices, [])
        return cls([], [ids_of(piece) for piece in pieces])

    def all(self) -> Sequence[Piece]:
        return [*self.slices, *self.pieces]


@dataclass(frozen=True)
class Share:
    """The items of a batch that are one rank's, in the order of their numbers."""

    items: Sequence[Item]


@dataclass(frozen=True)
class StepOrder:
    lr: float  # peak learning rate
    total_steps: int  # of the schedule: a stage that ends by its seconds moves it


@dataclass(frozen=True)
class CheckpointFolder:
    directory: str


@dataclass(frozen=True)
class ScoredShare:
    numbers_I: npt.NDArray[np.int64]  # of the items
    scores: Sequence[Floats]


@dataclass(frozen=True)
class TallyShare:
    """A tally as plain data: what one rank's micro-batches add up to."""

    kinds: list[str]
    losses_L: npt.NDArray[np.float64]  # of each kind above
    log_ratios_E: Floats
    entropies_E: Floats
    changes_S: Floats
    distances_P: Floats  # pairs, one after another
    replay_F: npt.NDArray[np.int64]  # forwards with a replay; experts asked for, moved, refused

    @classmethod
    def of(cls, tally: Tally) -> TallyShare:
        sums = np.array([float(loss) for _, loss in tally.losses], np.float64)
        routed = [(1, int(r.replayed), int(r.moved), int(r.refused)) for r in tally.routings]
        replay = np.array(routed, np.int64).reshape(-1, 4).sum(0)
        ratios, entropies = _joined(tally.log_ratios), _joined(tally.entropies)
        changes, distances = _joined(tally.changes), _joined(tally.distances)
        return cls([kind for kind, _ in tally.losses], sums, ratios, entropies, changes, distances, replay)

    def tally(self) -> Tally:
        tally = Tally()
        tally.losses = [(kind, torch.tensor(loss)) for kind, loss in zip(self.kinds, self.losses_L, strict=True)]
        tally.log_ratios, tally.entropies = _parts(self.log_ratios_E), _parts(self.entropies_E)
        tally.changes, tally.distances = _parts(self.changes_S), _parts(self.distances_P)
        if self.replay_F[0]:
            routing = Routing()
            routing.replayed, routing.moved, routing.refused = (int(x) for x in self.replay_F[1:])
            tally.routings = [routing]
        return tally


def _parts(values_E: Floats) -> list[torch.Tensor]:
    return [torch.from_numpy(values_E)] if len(values_E) else []


def _joined(parts: Sequence[torch.Tensor]) -> Floats:
    return torch.cat([part.flatten() for part in parts]).float().cpu().numpy() if parts else np.empty(0, np.float32)
