"""How learner ranks divide the work: replicas, shards, expert parallelism and context parallelism. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from etude.core.cluster_settings import LearnerRanks
from etude.core.errors import EtudeError


@dataclass(frozen=True)
class Layout:
    """Numbers of ranks, checked against each other; one rank is training without any other process."""

    ranks: int = 1  # all of them: replicate * shard * context
    replicate: int = 1  # copies of the whole model
    shard: int = 1  # ranks that share one copy and read different data
    expert: int = 1  # ranks over which the experts of a layer are divided; they are some of those that share a copy
    context: int = 1  # ranks that compute one sequence together; each holds a part of the copy too

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise EtudeError(f"cluster.learner.{name} is {value}; it must be 1 or more")
        if self.ranks != self.replicate * self.shard * self.context:
            raise EtudeError(
                f"cluster.learner.ranks is {self.ranks}, but replicate * shard * context is {self.replicate} * "
                f"{self.shard} * {self.context} = {self.replicate * self.shard * self.context}; make them equal"
            )
        if self.sharing % self.expert:
            raise EtudeError(
                f"cluster.learner.expert is {self.expert}, which does not divide the {self.sharing} ranks that share "
                "one copy of the model (shard * context)"
            )

    @classmethod
    def of(cls, settings: LearnerRanks) -> Layout:
        """A recipe's `cluster.learner`, where shard = 0 takes all ranks that are left."""
        shard = settings.shard or max(1, settings.ranks // (settings.replicate * settings.context))
        return cls(settings.ranks, settings.replicate, shard, settings.expert, settings.context)

    @property
    def sharing(self) -> int:
        """Ranks that hold one copy of the model together."""
        return self.shard * self.context

    @property
    def data(self) -> int:
        """Ranks, or groups of context ranks, that read different data."""
        return self.replicate * self.shard
