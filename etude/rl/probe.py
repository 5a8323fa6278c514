"""Numerics: do engine and learner give the same tokens the same probability, at every version that is published?

At each publish the engine samples a few hundred tokens at that version, beside the rollouts, and the learner scores
the same ids with the weights it published. This has nothing to do with drift, which is about old tokens and new
weights. Prompts are shorter than a cache block, so that no cached prefix is used: all is computed anew.

Short answers show nothing about long positions, cached prefixes and paged splits. Those are in the rollouts that are
trained: `real_tokens` compares their tokens of staleness 0, of which the learner has the very weights, by position.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from etude.core.errors import EtudeError
from etude.core.policy import Context, Policy, Sample, Sampling, Version, routes_of
from etude.core.rl_settings import RLSettings
from etude.learn.streams import Ids, Item
from etude.rl.batches import replayed
from etude.rl.groups import Rollout, Trace
from etude.rl.reference import Scores

LENGTH = 16  # tokens of one answer: the next update waits for as many engine steps, and at 64 that was half of a step
PROMPT = 8  # tokens
ENOUGH = 32  # tokens of a bin whose mean is held to the bound of means
FIRST_BIN = 128  # positions in the first bin; each further one is twice as long


@dataclass(frozen=True)
class Agreement:
    """How far apart the two were at one version."""

    version: Version
    tokens: int
    mean: float
    max: float
    p99: float = 0.0
    k3: float = 0.0  # mean of e^d - 1 - d, where d is by how much the learner's log-probability is higher


@dataclass(frozen=True)
class RealTokens:
    """The same of tokens that rollouts sampled with the present weights, by position."""

    tokens: int
    mean: float
    p99: float
    max: float
    k3: float
    by_position: dict[int, float]  # first position of a bin -> mean difference in it
    worst: float = 0.0  # the largest of these means, of bins with enough tokens for one
    scored: int = 0  # tokens of the segments that they stand in

    def row(self) -> dict[str, float]:
        """For the step's metrics."""
        if not self.tokens:
            return {"real_tokens": 0}
        found: dict[str, float] = {"real_tokens": self.tokens, "real_scored": self.scored}
        found |= {"real_mean": self.mean, "real_p99": self.p99, "real_max": self.max}
        return found | {"real_k3": self.k3} | {f"real_mean_{start}": v for start, v in self.by_position.items()}


def differences(learner: npt.NDArray[np.floating], engine: npt.NDArray[np.floating]) -> dict[str, float]:
    """Mean, p99, maximum and k3 of log-probabilities of the same tokens."""
    d = learner.astype(np.float64) - engine.astype(np.float64)
    apart = np.abs(d)
    found = {"mean": apart.mean(), "p99": np.quantile(apart, 0.99), "max": apart.max(), "k3": (np.expm1(d) - d).mean()}
    return {name: float(value) for name, value in found.items()}


class Probe:
    """The same prompts at every version, cut from `text`."""

    def __init__(self, text: Sequence[int], settings: RLSettings, block_tokens: int) -> None:
        if not text:
            raise EtudeError("the probe of engine and learner has no text to start from: the first task says nothing")
        self.settings = settings
        size = max(1, min(PROMPT, block_tokens, len(text)))
        count = -(-settings.probe_tokens // LENGTH)
        starts = [i * max(1, len(text) - size) // count for i in range(count)]
        self.prompts = [tuple(text[start : start + size]) for start in starts]

    async def check_real(self, rollouts: Sequence[Rollout], learner: Scores, version: Version) -> RealTokens:
        """Compares what `version` sampled of these rollouts; past the bounds it raises."""
        found = await real_tokens(rollouts, learner, self.settings, lambda version_T2: (version_T2 == version).all(-1))
        past = over_bounds(found, self.settings) if found.tokens else ""
        if past:
            bins = ", ".join(f"{mean:.3g} from {start} on" for start, mean in found.by_position.items())
            raise EtudeError(
                f"engine and learner disagree at version {version} on {found.tokens} tokens of real rollouts: {past}; "
                f"mean difference by position: {bins}"
            )
        return found

    async def run(self, engine: Policy, learner: Scores, version: Version) -> Agreement:
        """Samples, scores, compares; past the bounds it raises. No other version may be published meanwhile."""
        temperature = self.settings.temperature
        first = version.step * len(self.prompts)  # other seeds at every version
        requests = (
            engine.sample(Context(ids=prompt), Sampling(LENGTH, temperature, seed=seed))
            for seed, prompt in enumerate(self.prompts, start=first)
        )
        samples = await asyncio.gather(*requests)
        other = {found for sample in samples for found in sample.versions or ()} - {version}
        # No user's mistake: the loop must not publish while a probe runs.
        if other:
            raise RuntimeError(f"the probe of version {version} was sampled by version {min(other)}")
        items = [self._item(prompt, sample) for prompt, sample in zip(self.prompts, samples, strict=True)]
        scores = await learner.score(items)
        theirs = [np.array(sample.logprobs, np.float64) for sample in samples]
        ours = [score_T[len(prompt) :] for prompt, score_T in zip(self.prompts, scores, strict=True)]
        found = Agreement(version, sum(map(len, theirs)), **differences(np.concatenate(ours), np.concatenate(theirs)))
        self.check(found)
        return found

    def _item(self, prompt: Sequence[int], sample: Sample) -> Item:
        """What the learner is asked about, as it would train it: with the experts of the engine, if there are any."""
        ids_T = np.array((*prompt, *(sample.ids or ())), np.int64)
        experts_TBK = None if sample.experts is None else routes_of(sample.experts, len(ids_T))
        return replayed(Item(ids_T, [], self.settings.temperature, experts_TBK), self.settings)

    def check(self, found: Agreement) -> None:
        bounds = self.settings
        past = over_bounds(found, bounds)
        if past:
            raise EtudeError(
                f"engine and learner disagree at version {found.version}: over {found.tokens} tokens their "
                f"log-probabilities differ by {found.mean:.3g} on average and {found.max:.3g} at most, and "
                f"{past}; what the engine samples is not what the learner trains"
            )


def over_bounds(found: Agreement | RealTokens, bounds: RLSettings) -> str:
    """Which of the recipe's bounds are passed, in words; empty where none is."""
    mean = max(found.mean, found.worst) if isinstance(found, RealTokens) else found.mean
    values = {"mean": mean, "p99": found.p99, "max": found.max, "k3": found.k3}
    limits = {
        "mean": bounds.probe_mean,
        "p99": bounds.probe_p99 or 10 * bounds.probe_mean,
        "max": bounds.probe_max,
        # About d squared over 2; five leaves room for the tail, and is far below what mean and maximum allow.
        "k3": bounds.probe_k3 or 5 * bounds.probe_mean**2,
    }
    # Written with `not`, so that NaN fails, too.
    past = [name for name in values if not values[name] <= limits[name]]
    return " and ".join(f"its {name} {values[name]:.3g} is past rl.probe_{name} = {limits[name]:g}" for name in past)


async def real_tokens(
    rollouts: Sequence[Rollout], learner: Scores, settings: RLSettings, current: Callable[[Ids], npt.NDArray[np.bool_]]
) -> RealTokens:
    """Tokens that weights sampled which are the learner's own now, scored by it in the sequences that they stand in.

    `current` says of versions (lineage and step, a row a token) which are of such weights. A token counts only where
    every sampled token before it in its segment is of them, too: behind a swap the engine keeps the keys and values of
    older weights, and that is drift. Of the step's segments the longest are taken, up to `rl.probe_real_tokens`.
    """
    unmixed: list[tuple[Trace, float, npt.NDArray[np.bool_]]] = []
    for rollout in rollouts:
        for trace in rollout.traces:
            old_T = trace.sampled_T & ~current(trace.version_T2)
            counts_T = trace.sampled_T & (np.cumsum(old_T) == 0)
            if counts_T.any():
                unmixed.append((trace, rollout.temperature, counts_T))
    unmixed.sort(key=lambda found: -len(found[0].ids_T))  # stable: the same segments at every resume
    chosen: list[tuple[Trace, float, npt.NDArray[np.bool_]]] = []
    room = settings.probe_real_tokens
    if not room:
        unmixed = []
    for each in unmixed:
        if len(each[0].ids_T) <= room or not chosen:  # at least one, however long
            chosen.append(each)
            room -= len(each[0].ids_T)
    if not chosen:
        return RealTokens(0, 0.0, 0.0, 0.0, 0.0, {})
    items = [replayed(Item(trace.ids_T, [], t, trace.experts_TBK), settings) for trace, t, _ in chosen]
    scores = await learner.score(items)
    ours = np.concatenate([score_T[counts_T] for score_T, (_, _, counts_T) in zip(scores, chosen, strict=True)])
    theirs = np.concatenate([trace.logprob_T[counts_T] for trace, _, counts_T in chosen])
    at = np.concatenate([np.flatnonzero(counts_T) for _, _, counts_T in chosen])
    # Bins that double: 0 to 127, 128 to 255, 256 to 511, ...
    bins = np.where(at < FIRST_BIN, 0, FIRST_BIN << np.log2(np.maximum(at, FIRST_BIN) // FIRST_BIN).astype(np.int64))
    apart = np.abs(ours.astype(np.float64) - theirs)
    by_position = {int(start): float(apart[bins == start].mean()) for start in np.unique(bins)}
    enough = [mean for start, mean in by_position.items() if (bins == start).sum() >= ENOUGH]
    worst, scored = max(enough, default=0.0), sum(map(len, scores))
    return RealTokens(len(ours), **differences(ours, theirs), by_position=by_position, worst=worst, scored=scored)
