"""The messages between orchestrator and learner, each declared once, and what of a batch only the learner can check.

How they become bytes is the business of `etude.core.transport`. Imports no torch, and does not know who speaks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from etude.core.cluster_settings import LearnerRanks, WeightsDtype
from etude.core.errors import EtudeError
from etude.core.policy import Version
from etude.core.settings import ComputeSettings, LoraSettings, OptimSettings
from etude.core.transport import Frame, unpack
from etude.learn.item_checks import check_values
from etude.learn.parallel.manifest import Manifest
from etude.learn.streams import Batch, Floats, Item

READY = "etude learner ready at"  # what the process prints, followed by its address, once it listens


@dataclass(frozen=True)
class LearnerSpec:
    """What a learner process is started with."""

    model: Path  # Hugging Face directory
    optim: OptimSettings
    total_steps: int  # length of the learning-rate schedule
    micro_tokens: int  # tokens that go through the model at once
    board: Path  # weight board, made at the start, removed at the end
    lora: LoraSettings = field(default_factory=LoraSettings)
    seed: int = 0  # of the adapters
    device: str = "cpu"
    compute: ComputeSettings = field(default_factory=ComputeSettings)
    threads: int = 1  # 0 takes all cores
    restore: Path | None = None  # continue from this checkpoint
    frozen: Path | None = None  # Hugging Face directory of reference weights
    ranks: LearnerRanks = field(default_factory=LearnerRanks)
    weights: str = ""  # directory or address of a delta chain to publish to, in place of the board
    weights_base_every: int = 20
    weights_dtype: WeightsDtype = ""  # of what is published there; empty: as served
    batches: Path | None = None  # folder that all of several ranks see, for a batch's items; None sends them to rank 0


@dataclass(frozen=True)
class ScoreRequest:
    items: Sequence[Item]
    weights: str = "live"


@dataclass(frozen=True)
class ScoreFiles:
    """The same of items that lie in files."""

    batch: Manifest
    weights: str = "live"


@dataclass(frozen=True)
class StepRequest:
    """Move the weights."""

    lr: float | None = None  # another peak learning rate from this step on
    total_steps: int | None = None  # another last step of the schedule: the run ends by its seconds


@dataclass(frozen=True)
class SaveRequest:
    directory: str
    background: bool = False  # answered when the tensors are copied; the files are written beside the next verbs


@dataclass(frozen=True)
class PublishRequest:
    version: Version


@dataclass(frozen=True)
class Done:
    """A verb's answer; `metrics` are what it measured."""

    metrics: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Scores:
    scores: Sequence[Floats]


Message = TypeVar("Message", Batch, ScoreRequest)


def read_batch(frame: Frame) -> Batch:
    batch = _unpack(Batch, frame)
    check_values(batch.items)
    return batch


def read_score_request(frame: Frame) -> ScoreRequest:
    request = _unpack(ScoreRequest, frame)
    check_values(request.items)
    return request


def read_metrics(frame: Frame) -> dict[str, float]:
    """What a verb measured, with the `seconds` that it took."""
    metrics = unpack(Done, frame).metrics | {"seconds": frame.header["seconds"]}
    if not all(type(value) in (int, float) for value in metrics.values()):  # not a number (NaN) is one of them
        raise EtudeError("the learner's metrics are not numbers; are both sides of one version?")
    return {name: float(value) for name, value in metrics.items()}


def _unpack(kind: type[Message], frame: Frame) -> Message:
    try:
        return unpack(kind, frame)
    except IndexError:  # from Item, which compares the tokens of both
        raise EtudeError("a twin's align_T points past the twin's end") from None
