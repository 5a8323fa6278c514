"""What every engine of the training loop must do, as checks with figures; for tests and for a benchmark.

    probe          log-probabilities of sampled tokens, and scores of given ones, are those of a reference
    equal_weights  weights published again under another version change nothing but the version
    swap           a delta swapped in under load: requests go on, and each token's version is the one that sampled it
    pause          nothing is computed while it is paused, and nothing is lost
    abort          a request that is ended returns what there is
    prefix         a prompt that was computed before is not computed again, and gives the same tokens
    routes         experts of a mixture have an entry for each token, or `facts` says that they are not told

Knows no model: a `Lab` publishes weights and has the reference.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from etude.core.errors import EtudeError
from etude.core.policy import Context, Sample, Sampling, Version
from etude.policies.engine_protocol import EngineFacts, InferenceEngine

MEAN, MOST = 1e-4, 1e-2  # nats that log-probabilities may differ by from the reference, on average and at most
PROMPT = 24  # tokens
ANSWER = 32
TRIES = 6  # of a swap or an abort that found no request under way


class Lab(Protocol):
    """The other side of the checks."""

    vocabulary: int
    routes: tuple[int, int] | None  # blocks with experts, and experts of a token, where the model has any
    longest: int  # tokens of a prompt and its answer

    def publish(self, moved: bool) -> Version:
        """Publishes the weights, changed a little or as they are, under the next version."""

    def logprobs(self, version: Version, ids: Sequence[int]) -> Sequence[float]:
        """Of each id given those before it, under that version's weights; the first has none: 0.0."""


@dataclass(frozen=True)
class Finding:
    """What a check found."""

    name: str
    passed: bool
    figures: dict[str, float] = field(default_factory=dict)
    said: str = ""


async def check_engine(engine: InferenceEngine, lab: Lab) -> list[Finding]:
    """All checks, one after another, on an engine that nobody else uses. One that raises has failed."""
    facts = await engine.facts()
    checks = {
        "probe": probe(engine, lab),
        "equal_weights": equal_weights(engine, lab),
        "swap": swap(engine, lab, facts),
        "pause": pause(engine, lab),
        "abort": abort(engine, lab),
        "prefix": prefix(engine, lab),
        "routes": routes(engine, lab, facts),
    }
    found: list[Finding] = []
    for name, check in checks.items():
        try:
            found.append(await check)
        except EtudeError as failed:
            found.append(Finding(name, False, said=str(failed)))
    return found


async def probe(engine: InferenceEngine, lab: Lab) -> Finding:
    prompts = _prompts(lab, 8)
    samples = await _answers(engine, prompts, Sampling(ANSWER))
    version = (await engine.facts()).version
    labelled = all(set(sample.versions or ()) == {version} for sample in samples)
    sampled, scored = [], []
    for prompt, sample in zip(prompts, samples, strict=True):
        ids = (*prompt, *(sample.ids or ()))
        reference = np.asarray(lab.logprobs(version, ids))
        sampled.append(np.abs(np.asarray(sample.logprobs) - reference[len(prompt) :]))
        scored.append(np.abs(np.asarray(await engine.score(ids)) - reference))
    return _within("probe", {"sampled": np.concatenate(sampled), "scored": np.concatenate(scored)}, labelled)


async def equal_weights(engine: InferenceEngine, lab: Lab) -> Finding:
    prompts = _prompts(lab, 4)
    before = await _answers(engine, prompts, Sampling(ANSWER, temperature=0.0))
    version = lab.publish(moved=False)
    await engine.update(version)
    after = await _answers(engine, prompts, Sampling(ANSWER, temperature=0.0))
    same = all(old.ids == new.ids for old, new in zip(before, after, strict=True))
    named = all(set(sample.versions or ()) == {version} for sample in after)
    pairs = zip(before, after, strict=True)
    apart = np.concatenate([np.asarray(old.logprobs) - np.asarray(new.logprobs) for old, new in pairs])
    return _within("equal_weights", {"change": np.abs(apart)}, same and named)


async def swap(engine: InferenceEngine, lab: Lab, facts: EngineFacts) -> Finding:
    """Deltas under load until a request has tokens of two versions; each token is compared under its own version."""
    for turn in range(TRIES):
        prompts = _prompts(lab, 8, turn)
        old, new = (await engine.facts()).version, lab.publish(moved=True)  # before anybody samples
        asked = [
            asyncio.ensure_future(engine.sample(Context(ids=prompt), Sampling(lab.longest - PROMPT - 1)))
            for prompt in prompts
        ]
        await asyncio.sleep(0.02)
        told = await engine.update(new)
        samples = await asyncio.gather(*asked)
        spanning = [s for s in samples if len(set(s.versions or ())) > 1]
        if spanning:
            break
    else:
        return Finding("swap", False, said="no request was under way at any of the swaps")
    given = [list(sample.versions or ()) for sample in samples]
    ordered = all(versions == sorted(versions) and set(versions) <= {old, new} for versions in given)
    right, stale, wrong = [], [], []
    for prompt, sample in zip(prompts, samples, strict=True):
        ids = (*prompt, *(sample.ids or ()))
        of = {each: np.asarray(lab.logprobs(each, ids))[PROMPT:] for each in (old, new)}
        logprobs = np.asarray(sample.logprobs)
        is_new = np.array([version == new for version in sample.versions or ()])
        exact = ~is_new if facts.keeps_cache and is_new.any() and not is_new.all() else np.ones(len(is_new), bool)
        labelled = np.where(is_new, of[new], of[old])
        right.append(np.abs(logprobs - labelled)[exact])
        stale.append(np.abs(logprobs - labelled)[~exact])
        wrong.append(np.abs(logprobs - np.where(is_new, of[old], of[new])))
    found = {"labelled": np.concatenate(right)}
    others, behind = np.concatenate(wrong), np.concatenate(stale)
    # Behind a swap that keeps the cache, tokens are near the new weights, and never nearer to the old ones.
    nearer = not len(behind) or bool(behind.mean() < others.mean())
    told_apart = nearer and bool(found["labelled"].mean() < others.mean() / 3)
    extra = {
        "under_way": len(spanning),
        "other_version_mean": float(others.mean()),
        "kept_cache_mean": float(behind.mean()) if len(behind) else 0.0,
        "seconds": float(told.get("seconds", 0.0)),
        "density": float(told.get("publish_density", 1.0)),
    }
    return _within("swap", found, ordered and told_apart, extra)


async def pause(engine: InferenceEngine, lab: Lab) -> Finding:
    await engine.pause()
    try:
        asked = asyncio.ensure_future(engine.sample(Context(ids=_prompts(lab, 1, 7)[0]), Sampling(4)))
        done, _ = await asyncio.wait({asked}, timeout=0.5)
    finally:
        await engine.resume()
    sample = await asked
    return Finding("pause", not done and len(sample.ids or ()) == 4)


async def abort(engine: InferenceEngine, lab: Lab) -> Finding:
    most = lab.longest - PROMPT - 1
    for turn in range(TRIES):
        name, prompt = uuid.uuid4().hex, _prompts(lab, 1, 8 + 100 * turn)[0]
        asked = asyncio.ensure_future(engine.sample(Context(ids=prompt), Sampling(most), name=name))
        heard = False
        for _ in range(100):
            await asyncio.sleep(0.01)
            if asked.done() or (heard := await engine.abort(name)):
                break
        sample = await asked
        if heard or sample.stop == "abort":
            break  # and not one that had ended by itself before anybody asked, on a busy machine
    counts = {"tokens": float(len(sample.ids or ()))}
    return Finding("abort", sample.stop == "abort" and len(sample.ids or ()) < most, counts)


async def prefix(engine: InferenceEngine, lab: Lab) -> Finding:
    prompt = _prompts(lab, 1, 9, min(lab.longest // 2, 160))[0]
    first, second = [await engine.sample(Context(ids=prompt), Sampling(8, temperature=0.0)) for _ in range(2)]
    cached = {"cached": float(second.cached_tokens), "prompt": float(len(prompt))}
    apart = np.abs(np.asarray(first.logprobs) - np.asarray(second.logprobs))
    reused = second.cached_tokens >= len(prompt) // 2 and first.ids == second.ids
    return _within("prefix", {"change": apart}, reused, cached)


async def routes(engine: InferenceEngine, lab: Lab, facts: EngineFacts) -> Finding:
    prompt = _prompts(lab, 1, 10)[0]
    sample = await engine.sample(Context(ids=prompt), Sampling(8))
    if lab.routes is None or not facts.routed_experts:
        said = "the model has no experts" if lab.routes is None else "this engine does not tell them"
        return Finding("routes", sample.experts is None, said=said)
    wanted = (len(prompt) + len(sample.ids or ()) - 1, *lab.routes)
    found = None if sample.experts is None else sample.experts.shape
    return Finding("routes", found == wanted, said=f"{found}, wanted {wanted}")


def _prompts(lab: Lab, count: int, seed: int = 0, length: int = PROMPT) -> list[tuple[int, ...]]:
    draw = np.random.default_rng([seed, length])
    return [tuple(int(each) for each in draw.integers(3, lab.vocabulary, length)) for _ in range(count)]


async def _answers(engine: InferenceEngine, prompts: Sequence[tuple[int, ...]], sampling: Sampling) -> list[Sample]:
    return list(await asyncio.gather(*(engine.sample(Context(ids=prompt), sampling) for prompt in prompts)))


def _within(
    name: str, apart: dict[str, npt.NDArray[np.float64]], holds: bool, figures: dict[str, float] | None = None
) -> Finding:
    """Passed where the check holds and all differences are within the bounds."""
    found = {f"{what}_mean": float(each.mean()) for what, each in apart.items()}
    found |= {f"{what}_max": float(each.max()) for what, each in apart.items()}
    close = all(each.mean() <= MEAN and each.max() <= MOST for each in apart.values())
    return Finding(name, holds and close, found | (figures or {}))
