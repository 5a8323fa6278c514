"""The types that sampler and harness share: messages, Context, Sampling, Sample, Policy, Version.

Knows no tokenizer, no model and no transport. Everything here is plain data, so a scripted policy, the
embedded engine and a remote endpoint are the same thing to whoever asks for a sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from etude.core.errors import EtudeError


class Version(NamedTuple):
    """Which weights: a resume opens a new lineage, every published optimiser step counts up within one."""

    lineage: int
    step: int

    def __str__(self) -> str:
        return f"{self.lineage}.{self.step}"

    @classmethod
    def parse(cls, text: str) -> Version:
        lineage, step = text.split(".")
        return cls(int(lineage), int(step))


@dataclass(frozen=True)
class System:
    text: str


@dataclass(frozen=True)
class User:
    text: str


@dataclass(frozen=True)
class Call:
    """One tool call. Arguments are text, byte for byte as sampled; a tool's schema turns them into values.

    A byte that is not valid UTF-8 is kept as a lone surrogate (`surrogateescape`), so nothing is lost.
    """

    name: str
    arguments: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Assistant:
    """One turn of the model: what it thought, what it said, and the calls it made at once."""

    thinking: str = ""
    final: str = ""
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True)
class ToolResult:
    """What one call gave back. Results follow their turn in the order of its calls."""

    name: str
    text: str


Experts = npt.NDArray[np.int16]  # [tokens, blocks with experts, experts of a token]
UNROUTED = -1  # stands for the experts of a token that are not known
Message = System | User | Assistant | ToolResult
Part = Literal["thinking", "final", "call", "output", "prompt", "summary"]
StopReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True)
class Context:
    """What the policy answers: the messages and, when we render them ourselves, their exact token ids."""

    messages: tuple[Message, ...] = ()
    ids: tuple[int, ...] | None = None
    routed: int = 0  # leading tokens whose experts the one who asks knows from earlier samples


@dataclass(frozen=True)
class Sampling:
    """How to sample. Training uses top_p 1 and no top_k, so that log-probabilities are of the whole distribution."""

    max_tokens: int = 256
    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0
    top_k: int = 0  # 0 is off
    seed: int = 0  # token i of a request depends on (seed, i) alone, never on its neighbours in the batch
    stop_ids: tuple[int, ...] = ()  # sampled, kept as the last id, and ends the sample
    top_logprobs: int = 0  # likeliest alternatives reported for each token; served over the OpenAI routes only
    # A policy that can do so ends an answer after this time and returns what there is, as if it were at its longest.
    seconds: float = 0.0  # 0 is no limit


@dataclass(frozen=True)
class Sample:
    """An answer. Per-token facts are known only from engines that return ids; without ids it is never trained on."""

    text: str
    stop: StopReason
    ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None  # of the distribution sampled from, temperature applied
    versions: tuple[Version, ...] | None = None
    cached_tokens: int = 0  # prompt tokens that came from the prefix cache
    # where a model with experts routed the context's tokens, from `routed` on, and the sampled ones but the last
    experts: Experts | None = field(default=None, compare=False)
    late: bool = False  # `Sampling.seconds` ended it


def routes_of(experts: Experts, tokens: int) -> Experts:
    """Experts with an entry for each of so many tokens: those behind the ones that are known are UNROUTED."""
    return np.pad(experts, ((0, tokens - len(experts)), (0, 0), (0, 0)), constant_values=UNROUTED)


class ContextOverflow(EtudeError):
    """The context leaves the policy no room for an answer. That is a result of the policy, not a failure of machinery.

    The two counts are 0 where nobody told them.
    """

    def __init__(self, message: str, most: int = 0, prompt: int = 0) -> None:
        super().__init__(message)
        self.most, self.prompt = most, prompt  # tokens of the whole context, and of the prompt


class Policy(Protocol):
    async def sample(self, context: Context, sampling: Sampling) -> Sample: ...


class Scorer(Protocol):
    """A policy that also gives the log-probability of given ids (the first id has none: 0.0)."""

    async def score(self, ids: tuple[int, ...], temperature: float = 1.0) -> tuple[float, ...]: ...
