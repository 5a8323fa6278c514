"""The verbs from rank 0: each is told to all ranks and carried out by all; and the loop of the ranks that are told.

A verb is announced in the store that the ranks met at, since any time may pass between two verbs; its message follows
through the process group, whose waits have a deadline. An error names the rank where that is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch.distributed as dist
from torch import Tensor

from etude.core.errors import EtudeError
from etude.core.policy import Version
from etude.core.settings import OptimSettings
from etude.core.transport import Frame, pack, unpack, write_frame
from etude.learn.drafts import Piece
from etude.learn.item_checks import check_teachers
from etude.learn.parallel import checkpoint
from etude.learn.parallel.manifest import Manifest
from etude.learn.parallel.messages import CheckpointFolder, Pieces, RankSpec, Refused, ScoreOrder, StepOrder
from etude.learn.parallel.rank_learner import RankLearner, frame_of
from etude.learn.streams import Batch, Floats, Item
from etude.learn.texts import Texts
from etude.model.decoder import Decoder

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from etude.learn.parallel.launch import Ranks
    from etude.model.weight_transfer.publish import Publisher

LOOK = timedelta(seconds=30)  # how often a rank that waits for a verb looks whether rank 0 still answers
CLOSE = "close"
Found = TypeVar("Found")


class LeadLearner:
    """A learner on several ranks, with the verbs and facts of `Learner`. Rank 0 makes it, `close` ends its group."""

    def __init__(self, ranks: Ranks, spec: RankSpec, decoder: Decoder, frozen: Decoder | None = None) -> None:
        self._ranks, self._number = ranks, 0
        ranks.join(spec)
        sources = {"live": decoder} | ({"frozen": frozen} if frozen is not None else {})
        self._learner = self._guarded("start", lambda: RankLearner(spec, sources))
        self.micro_tokens, self.ranks = spec.micro_tokens, spec.layout.ranks

    @property
    def decoder(self) -> Decoder:
        return self._learner.decoder

    @property
    def weights(self) -> dict[str, Decoder]:
        return self._learner.weights

    @property
    def optimiser(self) -> Any:
        return self._learner.optimiser

    @property
    def optim(self) -> OptimSettings:
        return self._learner.optim

    @optim.setter
    def optim(self, settings: OptimSettings) -> None:
        self._learner.optim = settings

    @property
    def total_steps(self) -> int:
        return self._learner.total_steps

    @total_steps.setter
    def total_steps(self, steps: int) -> None:
        self._learner.total_steps = steps  # the others hear of it with the next step

    @property
    def steps(self) -> int:
        return self._learner.steps

    @property
    def skipped(self) -> int:
        return self._learner.skipped

    def forward_backward(self, batch: Batch) -> dict[str, float]:
        if isinstance(batch.items, Texts):
            return self.forward_backward_files(Manifest.of(batch))
        check_teachers(batch.items, self._learner.config, self.weights)
        manifest, items = Manifest.of(batch), batch.items
        return self._all("forward_backward", manifest, lambda: self._learner.forward_backward(manifest, items))

    def forward_backward_files(self, batch: Manifest) -> dict[str, float]:
        """As `forward_backward` of the items that lie there; each rank opens its own."""
        return self._all("forward_backward", batch, lambda: self._learner.forward_backward(batch))

    def score(self, items: Sequence[Item], weights: str = "live") -> list[Floats]:
        if isinstance(items, Texts):
            return self.score_files(Manifest.of(Batch(items)), weights)
        check_teachers(items, self._learner.config, self.weights)
        order = ScoreOrder(Manifest.of(Batch(items)), weights)
        return self._all("score", order, lambda: self._learner.score(order.batch, weights, items))

    def score_files(self, batch: Manifest, weights: str = "live") -> list[Floats]:
        """As `score` of the items that lie there; each rank opens its own."""
        return self._all("score", ScoreOrder(batch, weights), lambda: self._learner.score(batch, weights))

    def drafts(self, pieces: Sequence[Piece]) -> tuple[Tensor, Tensor]:
        """As of one rank; every rank computes all of it, since an evaluation is short."""
        return self._all("drafts", Pieces.of(pieces), lambda: self._learner.drafts(pieces))

    def step(self) -> dict[str, float]:
        return self._all("step", StepOrder(self.optim.lr, self.total_steps), self._learner.step)

    def save(self, directory: Path) -> None:
        self._all("save", CheckpointFolder(str(directory.absolute())), lambda: self._learner.save(directory))

    def begin_save(self, directory: Path) -> None:
        self._all(
            "begin_save", CheckpointFolder(str(directory.absolute())), lambda: self._learner.begin_save(directory)
        )

    @property
    def saved(self) -> bool:
        return self._learner.saving.done  # the others have as much to write

    def finish_save(self) -> None:
        self._all("finish_save", None, self._learner.finish_save)

    def restore(self, directory: Path) -> None:
        self._all("restore", CheckpointFolder(str(directory.absolute())), lambda: self._learner.restore(directory))

    def publish(self, weights: Publisher, version: Version) -> None:
        self._all("gather", None, lambda: weights.publish_tensors(checkpoint.wholes(self._learner), version))

    def gradients(self) -> dict[str, Tensor]:
        """The summed gradients, whole, by name; for whoever compares them."""
        return self._all("gradients", None, lambda: _gradients(self._learner))

    def whole_weights(self) -> dict[str, Tensor]:
        """The live weights, whole, by name; for whoever compares them."""
        return self._all("whole_weights", None, lambda: _whole_weights(self._learner))

    def close(self) -> None:
        """Ends the group; the ranks wait for another learner, or end with this process."""
        self._announce(CLOSE)
        self._ranks.leave()

    def _all(self, verb: str, message: object, work: Callable[[], Found]) -> Found:
        def told() -> Found:
            self._announce(verb)
            if message is not None:
                self._learner.host.broadcast(write_frame(pack(message)))
            return work()

        return self._guarded(verb, told)

    def _announce(self, verb: str) -> None:
        self._ranks.store.set(f"verb/{self._number}", verb)
        self._number += 1

    def _guarded(self, verb: str, work: Callable[[], Found]) -> Found:
        try:
            return work()
        except RuntimeError as failed:  # of the process group: a rank died, or did not come in time
            raise EtudeError(self._ranks.reason(verb, failed, self._number)) from failed


def follow(spec: RankSpec, store: Store, say: Callable[[str], None]) -> None:
    """Builds this rank's part and does what rank 0 tells, until it closes the group.

    `say` hears where we are: how many verbs we were told, and the one we are in.
    """
    say("0 start")
    learner = RankLearner(spec, {})
    number = 0
    while True:
        say(f"{number}")
        verb = wait_for(store, f"verb/{number}").decode()
        number += 1
        if verb == CLOSE:
            return
        say(f"{number} {verb}")
        try:
            _carry_out(learner, verb)
        except Refused:
            continue
        except EtudeError:
            if verb not in ("save", "finish_save", "restore"):  # which all ranks give up together, and go on
                raise


def _carry_out(learner: RankLearner, verb: str) -> None:
    def told(kind: type[Found]) -> Found:
        frame: Frame = frame_of(learner.host.broadcast(None))
        return unpack(kind, frame)

    if verb == "forward_backward":
        learner.forward_backward(told(Manifest))
    elif verb == "score":
        order = told(ScoreOrder)
        learner.score(order.batch, order.weights)
    elif verb == "drafts":
        learner.drafts(told(Pieces).all())
    elif verb == "step":
        step = told(StepOrder)
        learner.set_rate(step.lr)
        learner.total_steps = step.total_steps
        learner.step()
    elif verb == "save":
        learner.save(Path(told(CheckpointFolder).directory))
    elif verb == "begin_save":
        learner.begin_save(Path(told(CheckpointFolder).directory))
    elif verb == "finish_save":
        learner.finish_save()
    elif verb == "restore":
        learner.restore(Path(told(CheckpointFolder).directory))
    elif verb == "gather":
        for _ in checkpoint.wholes(learner):
            pass
    elif verb == "gradients":
        _gradients(learner)
    elif verb == "whole_weights":
        _whole_weights(learner)
    else:
        raise EtudeError(f"rank 0 asks for {verb!r}, which no rank knows; are all ranks of one version?")


def _gradients(learner: RankLearner) -> dict[str, Tensor]:
    found = {}
    for name, held in learner.optimiser.shards.items():
        if (gradient := held.gradient) is not None:
            found[name] = held.whole(gradient * held.averaged)
    return found


def _whole_weights(learner: RankLearner) -> dict[str, Tensor]:
    return {name: held.whole(held.local) for name, held in learner.shards["live"].items()}


def wait_for(store: Store, key: str) -> bytes:
    """A key of the store, however long it takes; an error when rank 0, who has the store, is gone."""
    while True:
        try:
            store.wait([key], LOOK)
            found: bytes = store.get(key)
            return found
        except dist.DistStoreError:
            continue
