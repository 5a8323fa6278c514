"""What a batch asks of the learner: plain data, written by algorithms, read by the loss.

An item is one token sequence. A stream says, for one head of the decoder and for each token, how much it counts
(`weight_T`) and towards what (`target`). Entry t of every array concerns token t, which is predicted from what stands
before it; entry 0 is never used. The loss is the plain sum of weight times term: any cut into micro-batches is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from etude.core.errors import EtudeError

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.integer]


@dataclass(frozen=True, eq=False)
class Label:
    """Cross-entropy against given ids."""

    ids_T: Ids


@dataclass(frozen=True, eq=False)
class Sampled:
    """Policy gradient on the sequence's own tokens; `logprob_T` is the sampler's, temperature applied."""

    advantage_T: Floats
    logprob_T: Floats


@dataclass(frozen=True, eq=False, kw_only=True)
class Distribution:
    """A teacher's distribution, without gradient, and the measure of how far from it the student is."""

    divergence: Literal["forward", "reverse", "jsd"] = "forward"  # forward is KL(teacher || student)
    beta: float = 0.5  # jsd: the teacher's share of the mixture
    support: Literal["full", "sampled"] | int = "full"  # k: the student's top k and a bucket for the rest;
    # "sampled": the sequence's own token alone, a policy gradient whose mean is that of the reverse divergence
    clip: float = float("inf")  # a token that is further apart counts as if it were this far: its gradient is scaled


@dataclass(frozen=True, eq=False, kw_only=True)
class Twin(Distribution):
    """The same tokens in another context, scored in the same step under named weights."""

    tokens_U: Ids
    align_T: Ids  # where token t stands in the twin; -1 where it does not
    weights: Literal["live", "ema", "frozen"] = "live"
    trust: float = 0.0  # share of the live weights' logits mixed into those of `weights`
    lowers: bool = False  # counts only if its context makes the weighted tokens less likely in the mean
    logprob_T: Floats | None = None  # the sampler's: a token then counts r = p(learner) / p(sampler) times,
    ratio: float = float("inf")  # and at most so many times
    experts_UBK: npt.NDArray[np.int16] | None = None  # as of an item; None leaves the teacher's routers free
    plausible: float = 0.0


@dataclass(frozen=True, eq=False, kw_only=True)
class MainHead(Distribution):
    """The main head's own distribution of the same token: what an MTP head learns."""


@dataclass(frozen=True, eq=False)
class Stream:
    head: str  # "main", or "mtp.1", "mtp.2", ...: how many tokens further ahead it predicts
    weight_T: Floats
    target: Label | Sampled | Twin | MainHead

    @property
    def depth(self) -> int:
        return 0 if self.head == "main" else int(self.head.removeprefix("mtp."))

    @property
    def counts(self) -> bool:
        """False when it cannot change the gradient, so that a group without variance costs no forward."""
        heard_T = self.weight_T != 0
        if isinstance(self.target, Sampled):
            heard_T = heard_T & (self.target.advantage_T != 0)
        if isinstance(self.target, Twin):
            heard_T = heard_T & (self.target.align_T > 0)
        return bool(heard_T[1 + self.depth :].any())

    @property
    def likeness(self) -> tuple[object, ...]:
        """Equal for streams of one head with like targets."""
        settings = [value for value in vars(self.target).values() if not isinstance(value, np.ndarray)]
        return self.depth, type(self.target).__name__, *settings


@dataclass(frozen=True, eq=False)
class Item:
    """One segment: its tokens, what is asked of them, and how they were sampled: temperature and experts.

    `experts_TBK` (K in each of B blocks, -1 unknown) are chosen again where they are plausible (model/experts.py).
    """

    tokens_T: Ids
    streams: Sequence[Stream]
    temperature: float = 1.0
    experts_TBK: npt.NDArray[np.int16] | None = None
    plausible: float = 0.0

    @property
    def forward_tokens(self) -> int:
        """What it costs: its own tokens and its twins', or nothing when no stream counts."""
        heard = [stream.target for stream in self.streams if stream.counts]
        return sum((len(t.tokens_U) for t in heard if isinstance(t, Twin)), len(self.tokens_T)) if heard else 0

    def shared_tokens(self, target: Twin, t: Ids) -> int:
        """Leading tokens that a twin has in common with it, and whose states its tokens `t` do not ask for."""
        # The state that predicts a token is that of the place before it.
        most = min(len(target.tokens_U), len(self.tokens_T), int(target.align_T[t].min()) - 1)
        unlike = np.flatnonzero(target.tokens_U[:most] != self.tokens_T[:most])
        return int(unlike[0]) if len(unlike) else most

    @property
    def taught_tokens(self) -> int:
        """Those that its teachers compute: live ones only what they do not share with it."""
        tokens = 0
        for stream in self.streams:
            target = stream.target
            if isinstance(target, Twin) and stream.counts:
                asked = np.flatnonzero((stream.weight_T != 0) & (target.align_T > 0))
                tokens += len(target.tokens_U) - (target.weights == "live") * self.shared_tokens(target, asked)
        return tokens

    @property
    def computed_tokens(self) -> int:
        """`forward_tokens` without those that live teachers share with it."""
        return len(self.tokens_T) + self.taught_tokens if self.forward_tokens else 0

    @property
    def room(self) -> int:
        """What it takes of a micro-batch's tokens: teachers compute after the student, in as much room."""
        return max(len(self.tokens_T), self.taught_tokens)

    def __post_init__(self) -> None:
        for stream in self.streams:
            target = stream.target
            for array in (stream.weight_T, *(value for name, value in vars(target).items() if name.endswith("_T"))):
                if array is not None and len(array) != len(self.tokens_T):
                    raise EtudeError(f"a stream has {len(array)} entries for a sequence of {len(self.tokens_T)} tokens")
            if isinstance(target, Twin):
                t = np.flatnonzero((stream.weight_T != 0) & (target.align_T > 0))
                if (target.tokens_U[target.align_T[t]] != self.tokens_T[t]).any():
                    raise EtudeError("a twin's align_T points at other tokens than those of its sequence")


@dataclass(frozen=True)
class Correction:
    """What is done about tokens that older weights sampled; r = p(learner) / p(sampler), sg stops the gradient.

    none      -A log p
    truncate  -sg[clip(r, low, high)] A log p            low = 0 is TIS, both bounds are CISPO
    mask      -sg[r if low <= r <= high else 0] A log p
    clip      -min(r A, clip(r, low, high) A)            PPO

    At level "sequence" r is its geometric mean over the item's weighted sampled tokens; `clip` then sends each
    of them the gradient of sg[r / p] p (GSPO).
    """

    kind: Literal["none", "truncate", "mask", "clip"] = "none"
    level: Literal["token", "sequence"] = "token"
    low: float = 0.0
    high: float = float("inf")


@dataclass(frozen=True)
class Batch:
    items: Sequence[Item]
    correction: Correction = Correction()
