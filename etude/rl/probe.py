"""Numerics: do engine and learner give the same tokens the same probability, at every version that is published?

At each publish the engine samples a few hundred tokens at that version, beside the rollouts, and the learner scores
the same ids with the weights it published. This has nothing to do with drift, which is about old tokens and new
weights. Prompts are shorter than a cache block, so that no cached prefix is used: all is computed anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from etude.core.errors import EtudeError
from etude.core.policy import Context, Policy, Sample, Sampling, Version, routes_of
from etude.core.settings import RLSettings
from etude.learn.streams import Item
from etude.rl.batches import Scores, replayed

LENGTH = 64  # tokens of one answer: many short ones in parallel take fewer engine steps than one long one
PROMPT = 8  # tokens


@dataclass(frozen=True)
class Agreement:
    """How far apart the two were at one version."""

    version: Version
    tokens: int
    mean: float
    max: float


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
        apart = np.concatenate(
            [
                np.abs(score_T[len(prompt) :].astype(np.float64) - np.array(sample.logprobs))
                for prompt, sample, score_T in zip(self.prompts, samples, scores, strict=True)
            ]
        )
        found = Agreement(version, len(apart), float(apart.mean()), float(apart.max()))
        self.check(found)
        return found

    def _item(self, prompt: Sequence[int], sample: Sample) -> Item:
        """What the learner is asked about, as it would train it: with the experts of the engine, if there are any."""
        ids_T = np.array((*prompt, *(sample.ids or ())), np.int64)
        experts_TBK = None if sample.experts is None else routes_of(sample.experts, len(ids_T))
        return replayed(Item(ids_T, [], self.settings.temperature, experts_TBK), self.settings)

    def check(self, found: Agreement) -> None:
        bounds = self.settings
        # Written with `not`, so that NaN fails, too.
        if not (found.mean <= bounds.probe_mean and found.max <= bounds.probe_max):
            raise EtudeError(
                f"engine and learner disagree at version {found.version}: over {found.tokens} tokens their "
                f"log-probabilities differ by {found.mean:.3g} on average and {found.max:.3g} at most, and "
                f"rl.probe_mean = {bounds.probe_mean:g} and rl.probe_max = {bounds.probe_max:g} allow no more; "
                "what the engine samples is not what the learner trains"
            )
