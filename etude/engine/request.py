"""One answer in the making: its tokens, what is known of each, and what it holds of the cache.

A request does not know its neighbours. There are no phases: a request has `length` tokens of which `computed` have
their keys and values in the cache; a step computes some of the rest, and when none is left it samples one more.
Prefill, decode and the return after a preemption are the same thing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from etude.core.errors import EtudeError
from etude.core.policy import Experts, Sample, Sampling, StopReason, Version
from etude.core.settings import EngineSettings

if TYPE_CHECKING:  # it loads torch, and the server's module must load before torch's process is prepared
    from etude.engine.logit_rules import LogitRules

WAITING = -1
COLDEST = 1e-3  # logits divided by less would overflow
MOST_TOP = 20  # alternatives reported for a token

Top = tuple[tuple[int, float], ...]  # the likeliest tokens with their log-probabilities, likeliest first


class QueueFull(EtudeError):
    """The one refusal that goes away by itself: ask again later."""


class EngineFailed(EtudeError):
    """A request that the engine could not answer for a reason of its own: its logits are not finite."""


class EngineGone(EtudeError):
    """The engine's thread has ended, so nothing will be answered any more."""


@dataclass(eq=False)
class Request:
    number: int  # order of arrival: smaller is older, and older is never set back for newer
    prompt: tuple[int, ...]
    sampling: Sampling
    routed: int = 0  # leading tokens whose experts nobody asks for
    rules: LogitRules | None = None  # what bends its logits
    tokens: list[int] = field(default_factory=list)  # the prompt, then what was sampled
    logprobs: list[float] = field(default_factory=list)  # one for each sampled token
    versions: list[Version] = field(default_factory=list)  # the weights that sampled it, one for each sampled token
    tops: list[Top] = field(default_factory=list)  # one for each sampled token if `sampling.top_logprobs`
    stop: StopReason | None = None
    error: str | None = None  # why it failed, for the one who asked
    cached_tokens: int = 0  # of the prompt, found in the prefix cache when it first ran
    experts: Experts | None = None  # at the end: those of the tokens from `routed` on, but the last

    # what it holds of the cache; all of it is given back by a preemption
    row: int = WAITING
    table: list[int] = field(default_factory=list)  # block i holds tokens i * block_tokens onwards
    computed: int = 0
    stored: int = 0  # leading blocks that are full and lie in the pool under their hash
    mixed: bool = False  # keys and values of several versions: of no use to anybody else
    ahead: int = 0  # tokens sampled by steps that nobody has read yet; the device knows them
    draft_slots: int = 0  # places for tokens drafted for it: accepted ones need room, too
    seat: int = 0  # where the last of them stands among those that its step sampled

    chain: list[bytes] = field(default_factory=list)  # hashes of the leading full blocks, under `chain_version`
    chain_version: Version | None = None
    preemptions: int = 0

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)

    @property
    def length(self) -> int:
        return len(self.tokens) + self.ahead

    @property
    def missing(self) -> int:
        """Tokens to compute before the next one can be sampled; none if the last one is under way."""
        # Its last token is being sampled on the device already, and what comes behind it nobody wants.
        if self.ahead and len(self.logprobs) + self.ahead >= self.sampling.max_tokens:
            return 0
        return len(self.tokens) + self.ahead - self.computed

    @property
    def reach(self) -> int:
        """Tokens that may be computed after the next step."""
        return self.computed + self.missing + self.draft_slots

    @property
    def settled(self) -> int:
        """Computed tokens that are known here, too."""
        return min(self.computed, len(self.tokens))

    @property
    def sampled(self) -> list[int]:
        return self.tokens[len(self.prompt) :]

    @property
    def running(self) -> bool:
        return self.row != WAITING

    @property
    def finished(self) -> bool:
        return self.stop is not None or self.error is not None

    def append(self, token: int, logprob: float, version: Version, top: Top | None = None) -> None:
        """Takes a sampled token, and notices when it is the last."""
        if top is not None:
            self.tops.append(top)
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.versions.append(version)
        # A stop id comes before the length: an answer whose last allowed token is a stop id did end by itself.
        if token in self.sampling.stop_ids:
            self.stop = "stop"
        elif len(self.logprobs) >= self.sampling.max_tokens:
            self.stop = "length"

    def answer(self, text: str = "") -> Sample:
        """What the one who asked gets; a failed request raises instead."""
        if self.error is not None:
            raise EngineFailed(self.error)
        assert self.stop is not None, f"request {self.number} is not finished"
        return Sample(
            text=text,
            stop=self.stop,
            ids=tuple(self.sampled),
            logprobs=tuple(self.logprobs),
            versions=tuple(self.versions),
            cached_tokens=self.cached_tokens,
            experts=self.experts,
        )

    def check(self) -> None:
        """Raises when the parts contradict each other."""
        sampled = len(self.tokens) - len(self.prompt)
        assert tuple(self.tokens[: len(self.prompt)]) == self.prompt, f"request {self.number}: its prompt changed"
        assert len(self.logprobs) == len(self.versions) == sampled, f"request {self.number}: facts missing"
        assert 0 <= self.computed <= self.length, f"request {self.number}: computed {self.computed} of {self.length}"
        if not self.running:
            assert not self.table and not self.computed and not self.ahead, (
                f"request {self.number}: holds cache without running"
            )


def refuse_ids(ids: Sequence[int], vocab_size: int, settings: EngineSettings, positions: int, answer: int = 0) -> None:
    """Refuses ids that this model and these settings can never process, with `answer` more tokens after them."""
    if not ids:
        raise EtudeError("a request needs at least one token id")
    if min(ids) < 0 or max(ids) >= vocab_size:
        outside = min(ids) if min(ids) < 0 else max(ids)
        raise EtudeError(f"token id {outside} is outside the vocabulary of {vocab_size}")
    total = len(ids) + answer
    wanted = f"{len(ids)} tokens" + (f" and an answer of up to {answer}" if answer else "")
    if total > settings.max_length:
        raise EtudeError(f"{wanted} pass engine.max_length = {settings.max_length}; shorten one or raise the setting")
    if total > positions:
        raise EtudeError(f"{wanted} pass the {positions} positions of this model")
    # It has to fit alone: the oldest request is never preempted, which only helps if it can run to its end.
    if answer and -(-total // settings.block_tokens) > settings.cache_tokens // settings.block_tokens:
        raise EtudeError(
            f"{wanted} do not fit in the cache of engine.cache_tokens = {settings.cache_tokens}, even alone; "
            "shorten one or raise the setting"
        )


def refuse_sampling(sampling: Sampling) -> None:
    if sampling.max_tokens < 1:
        raise EtudeError(f"max_tokens is {sampling.max_tokens}; ask for at least 1")
    if sampling.temperature and not COLDEST <= sampling.temperature < math.inf:
        raise EtudeError(f"temperature is {sampling.temperature}; it must be 0 (greedy) or at least {COLDEST}")
    if not 0 < sampling.top_p <= 1:
        raise EtudeError(f"top_p is {sampling.top_p}; it must be above 0 and at most 1")
    if sampling.top_k < 0:
        raise EtudeError(f"top_k is {sampling.top_k}; it must be 0 (off) or positive")
    if not 0 <= sampling.top_logprobs <= MOST_TOP:
        raise EtudeError(f"top_logprobs is {sampling.top_logprobs}; it must be between 0 and {MOST_TOP}")
