"""Every stream's loss and gradient against a float64 reference: one sequence at a time, one token at a time."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from etude.core.errors import EtudeError
from etude.core.settings import OptimSettings
from etude.learn.learner import Learner
from etude.learn.streams import Batch, Correction, Item, Label, MainHead, Sampled, Stream, Twin
from etude.model import packed_forward as packed
from etude.model.decoder import Decoder

VOCAB = 37
Make = Callable[..., Decoder]

# The reference


def naive_attend(layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
    share = q_THD.shape[1] // k_TKD.shape[1]
    k_THD, v_THD = (x.repeat_interleave(share, dim=1) for x in (k_TKD, v_TKD))
    rows = []
    for t in range(q_THD.shape[0]):
        scores = torch.einsum("hd,shd->hs", q_THD[t], k_THD[: t + 1]) / math.sqrt(q_THD.shape[2])
        rows.append(torch.einsum("hs,shd->hd", scores.softmax(-1), v_THD[: t + 1]))
    return torch.stack(rows)


def naive_logits(decoder: Decoder, tokens: np.ndarray, depth: int) -> list[Tensor]:
    """By head (0 is main), [T, V]: row i is the distribution after reading token i (and `depth` more, for MTP)."""
    ids, positions = torch.from_numpy(tokens.astype(np.int64)), torch.arange(len(tokens))
    hidden = [decoder(ids, positions, naive_attend)]
    for d in range(1, depth + 1):
        hidden.append(decoder.mtp_hidden(d, hidden[-1], ids.roll(-d), positions, naive_attend))
    return [decoder.logits(h) for h in hidden]


def log_probabilities(logits_V: Tensor, temperature: float) -> Tensor:
    scaled = logits_V / temperature
    return scaled - torch.log(torch.exp(scaled - scaled.max()).sum()) - scaled.max()


def kl(p: Sequence[Tensor], q: Sequence[Tensor]) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for log_p, log_q in zip(p, q, strict=True):
        total = total + torch.exp(log_p) * (log_p - log_q)
    return total


def naive_term(target: Twin | MainHead, student: Tensor, teacher: Tensor, token: int, logprob: float | None) -> Tensor:
    """The divergence within its bounds, times the bounded ratio to the sampler."""
    term = naive_divergence(target, student, teacher, token)
    if target.support != "sampled" and float(term.detach()) > target.clip:
        term = term * (target.clip / float(term.detach()))
    if logprob is not None:
        term = term * min(math.exp(float(student[token].detach()) - logprob), target.ratio)  # type: ignore[union-attr]
    return term


def naive_divergence(target: Twin | MainHead, student: Tensor, teacher: Tensor, token: int) -> Tensor:
    if target.support == "sampled":
        advantage = float((teacher[token] - student[token]).detach())
        return -min(max(advantage, -target.clip), target.clip) * student[token]
    p, q = list(teacher), list(student)
    if isinstance(target.support, int) and target.support < VOCAB:
        top = sorted(range(VOCAB), key=lambda v: -float(student[v].detach()))[: target.support]
        rest = [v for v in range(VOCAB) if v not in top]
        p, q = ([x[v] for v in top] + [torch.log(sum(torch.exp(x[v]) for v in rest))] for x in (teacher, student))
    if target.divergence == "forward":
        return kl(p, q)
    if target.divergence == "reverse":
        return kl(q, p)
    beta = target.beta
    mixture = [torch.log(beta * torch.exp(a) + (1 - beta) * torch.exp(b)) for a, b in zip(p, q, strict=True)]
    return beta * kl(p, mixture) + (1 - beta) * kl(q, mixture)


def naive_policy(correction: Correction, advantage: float, logp: Tensor, ratio: Tensor) -> Tensor:
    value = float(ratio.detach())
    clipped = min(max(value, correction.low), correction.high)
    if correction.kind == "none":
        return -advantage * logp
    if correction.kind == "truncate":
        return -clipped * advantage * logp
    if correction.kind == "mask":
        return -(value if correction.low <= value <= correction.high else 0.0) * advantage * logp
    inside = correction.low <= value <= correction.high
    return -(
        ratio * advantage if inside or value * advantage < clipped * advantage else torch.tensor(clipped * advantage)
    )


def twin_change(item: Item, stream: Stream, target: Twin, log_ps: dict[int, Tensor], twin: Tensor) -> float:
    """Mean change of the log-probability of the weighted tokens."""
    changes = []
    for t, log_p in log_ps.items():
        if stream.weight_T[t] != 0 and target.align_T[t] >= 1:
            teacher = log_probabilities(twin[int(target.align_T[t]) - 1], item.temperature)
            changes.append(float((teacher - log_p.detach())[int(item.tokens_T[t])]))
    return sum(changes) / len(changes)


def naive_loss(weights: dict[str, Decoder], batch: Batch) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for item in batch.items:
        depth = max((stream.depth for stream in item.streams), default=0)
        heads = naive_logits(weights["live"], item.tokens_T, depth)
        for stream in item.streams:
            target, d = stream.target, stream.depth
            log_ps = {}
            for t in range(1 + d, len(item.tokens_T)):
                log_ps[t] = log_probabilities(heads[d][t - 1 - d], item.temperature)
            if isinstance(target, Twin):
                with torch.no_grad():
                    named = naive_logits(weights[target.weights], target.tokens_U, 0)[0]
                    live = naive_logits(weights["live"], target.tokens_U, 0)[0]
                    share = 0.0 if target.weights == "live" else target.trust
                    twin = (1 - share) * named + share * live
            if isinstance(target, Sampled) and batch.correction.level == "sequence":
                heard = [t for t in log_ps if stream.weight_T[t] != 0]
                deltas = [float(log_ps[t][item.tokens_T[t]].detach()) - float(target.logprob_T[t]) for t in heard]
                shared = math.exp(sum(deltas) / max(1, len(deltas)))
            for t, log_p in log_ps.items():
                weight, token = float(stream.weight_T[t]), int(item.tokens_T[t])
                if weight == 0:
                    continue
                match target:
                    case Label():
                        term = -log_p[int(target.ids_T[t])]
                    case Sampled():
                        if batch.correction.level == "sequence":
                            ratio = shared * torch.exp(log_p[token] - log_p[token].detach())
                        else:
                            ratio = torch.exp(log_p[token] - float(target.logprob_T[t]))
                        term = naive_policy(batch.correction, float(target.advantage_T[t]), log_p[token], ratio)
                    case Twin():
                        if target.align_T[t] < 1:
                            continue
                        teacher = log_probabilities(twin[int(target.align_T[t]) - 1], item.temperature)
                        if target.lowers and twin_change(item, stream, target, log_ps, twin) >= 0:
                            continue
                        logprob = None if target.logprob_T is None else float(target.logprob_T[t])
                        term = naive_term(target, log_p, teacher, token, logprob)
                    case MainHead():
                        teacher = log_probabilities(heads[0][t - 1].detach(), item.temperature)
                        term = naive_divergence(target, log_p, teacher, token)
                total = total + weight * term
    return total


def check(make_decoder: Make, batch: Batch, micro_tokens: int = 40, mtp: int = 0) -> dict[str, float]:
    """The learner's loss and gradient are the reference's; returns the learner's metrics."""
    live, ema, frozen = (make_decoder(seed, mtp=mtp) for seed in (1, 2, 3))
    weights = {name: copy.deepcopy(d).double() for name, d in {"live": live, "ema": ema, "frozen": frozen}.items()}
    expected = naive_loss(weights, batch)
    expected.backward()
    learner = Learner(live, OptimSettings(), 10, micro_tokens, frozen=frozen)
    learner.weights["ema"] = ema
    metrics = learner.forward_backward(batch)
    assert metrics["loss"] == pytest.approx(float(expected.detach()), rel=2e-5, abs=1e-6)
    for (name, ours), theirs in zip(live.named_parameters(), weights["live"].parameters(), strict=True):
        if theirs.grad is None or not theirs.grad.abs().max():
            assert ours.grad is None or not ours.grad.abs().max(), name
            continue
        assert ours.grad is not None, name
        difference = (ours.grad.double() - theirs.grad).abs().max() / theirs.grad.abs().max()
        assert float(difference) < 5e-5, f"{name}: {float(difference):.1e} of the largest gradient"
    return metrics


# The streams


def weights_for(rng: np.random.Generator, length: int) -> np.ndarray:
    """Positive and negative, with holes, and never 0 at entry 0: it must be ignored."""
    weight = rng.normal(size=length).astype(np.float32)
    weight[rng.random(length) < 0.3] = 0.0
    weight[0] = 5.0
    return weight


def tokens_for(rng: np.random.Generator, length: int) -> np.ndarray:
    return rng.integers(0, VOCAB, length).astype(np.uint16)


def label(rng: np.random.Generator, tokens: np.ndarray, head: str = "main") -> Stream:
    return Stream(head, weights_for(rng, len(tokens)), Label(rng.integers(0, VOCAB, len(tokens))))


def sampled(rng: np.random.Generator, tokens: np.ndarray) -> Stream:
    advantage, logprob = rng.normal(size=len(tokens)), -rng.gamma(2.0, 2.0, len(tokens))
    target = Sampled(advantage.astype(np.float32), logprob.astype(np.float32))
    return Stream("main", weights_for(rng, len(tokens)), target)


def twin(rng: np.random.Generator, tokens: np.ndarray, **settings: object) -> Stream:
    """A hint of a few tokens goes in before a random place; two tokens have no counterpart."""
    hint, at = tokens_for(rng, int(rng.integers(1, 6))), int(rng.integers(1, len(tokens)))
    align = np.arange(len(tokens)) + np.where(np.arange(len(tokens)) >= at, len(hint), 0)
    align[rng.integers(0, len(tokens), 2)] = -1
    target = Twin(tokens_U=np.concatenate((tokens[:at], hint, tokens[at:])), align_T=align, **settings)  # type: ignore[arg-type]
    return Stream("main", weights_for(rng, len(tokens)), target)


LENGTHS = (13, 5, 21, 9, 2)
TEMPERATURES = (1.0, 0.7, 1.3, 1.0, 2.0)


def items(rng: np.random.Generator, *streams: Callable[..., Stream]) -> list[Item]:
    found = []
    for length, temperature in zip(LENGTHS, TEMPERATURES, strict=True):
        tokens = tokens_for(rng, length)
        found.append(Item(tokens, [make(rng, tokens) for make in streams], temperature))
    return found


def test_labels(make_decoder: Make, rng: np.random.Generator) -> None:
    check(make_decoder, Batch(items(rng, label)))


CORRECTIONS = [
    Correction("none"),
    Correction("truncate", low=0.0, high=2.0),
    Correction("truncate", low=0.6, high=1.5),
    Correction("mask", low=0.3, high=3.0),
    Correction("clip", low=0.8, high=1.25),
]


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("correction", CORRECTIONS, ids=lambda c: f"{c.kind}-{c.low}")
def test_sampled_tokens(make_decoder: Make, rng: np.random.Generator, correction: Correction, level: str) -> None:
    batch = Batch(items(rng, sampled), dataclasses.replace(correction, level=level))
    metrics = check(make_decoder, batch)
    learner = Learner(make_decoder(1), OptimSettings(), 10, 64)
    log_r = []
    for item, scores in zip(batch.items, learner.score(batch.items), strict=True):
        stream = item.streams[0]
        log_r.append((scores - stream.target.logprob_T)[(stream.weight_T != 0) & (np.arange(len(scores)) > 0)])
    log_r = np.concatenate(log_r).astype(np.float64)
    assert metrics["sampled_tokens"] == len(log_r)
    assert metrics["k1"] == pytest.approx(np.mean(-log_r), rel=1e-4)
    assert metrics["k2"] == pytest.approx(np.mean(log_r**2 / 2), rel=1e-4)
    assert metrics["k3"] == pytest.approx(np.mean(np.exp(log_r) - 1 - log_r), rel=1e-4)
    for name, value in {"mean": np.mean, "max": np.max, "p50": np.median}.items():
        assert metrics[f"drift_{name}"] == pytest.approx(float(value(np.abs(log_r))), rel=1e-4)
    assert metrics["drift_p99"] == pytest.approx(float(np.quantile(np.abs(log_r), 0.99)), rel=1e-4)


@pytest.mark.parametrize("support", ["full", 5, VOCAB])
@pytest.mark.parametrize("divergence", ["forward", "reverse", "jsd"])
def test_twin(make_decoder: Make, rng: np.random.Generator, divergence: str, support: str | int) -> None:
    check(
        make_decoder,
        Batch(items(rng, lambda r, t: twin(r, t, divergence=divergence, support=support, beta=0.3, weights="ema"))),
    )


@pytest.mark.parametrize(("weights", "trust"), [("live", 0.0), ("frozen", 0.0), ("frozen", 0.4), ("ema", 1.0)])
def test_twin_under_named_weights(make_decoder: Make, rng: np.random.Generator, weights: str, trust: float) -> None:
    check(make_decoder, Batch(items(rng, lambda r, t: twin(r, t, weights=weights, trust=trust))))


@pytest.mark.parametrize("support", ["full", 5, "sampled"])
def test_twin_with_bounds_and_the_ratio_to_the_sampler(
    make_decoder: Make, rng: np.random.Generator, support: str | int
) -> None:
    def make(r: np.random.Generator, t: np.ndarray) -> Stream:
        logprob = -r.gamma(2.0, 2.0, len(t)).astype(np.float32)
        return twin(r, t, support=support, divergence="reverse", clip=0.7, logprob_T=logprob, ratio=2.0)

    check(make_decoder, Batch(items(rng, make)))


@pytest.mark.parametrize(("weights", "trust"), [("live", 0.0), ("frozen", 0.4)])
def test_twins_that_make_their_tokens_likelier_are_left_out_and_counted(
    make_decoder: Make, rng: np.random.Generator, weights: str, trust: float
) -> None:
    batch = Batch([*items(rng, lambda r, t: twin(r, t, lowers=True, weights=weights, trust=trust))] * 2)
    metrics = check(make_decoder, batch)
    assert metrics["twins"] >= 8 and 0 < metrics["twins_filtered"] < metrics["twins"]
    assert metrics["twin_kl"] > 0


def test_two_hints_above_turns_of_one_sequence_beside_its_policy_gradient(
    make_decoder: Make, rng: np.random.Generator
) -> None:
    check(make_decoder, Batch(items(rng, sampled, twin, twin), Correction("truncate", high=2.0)))


def test_live_teachers_compute_only_what_their_context_changes(
    make_decoder: Make, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The student's keys and values stand for all tokens before the hint."""
    tokens, turn = tokens_for(rng, 30), slice(24, 28)
    align, weight = np.full(30, -1), np.zeros(30, np.float32)
    align[turn], weight[turn] = np.arange(turn.start, turn.stop) + 3, 1.0
    hinted = np.concatenate((tokens[:22], [1, 2, 3], tokens[22:28]))
    computed: list[int] = []
    forward = Decoder.forward
    monkeypatch.setattr(
        Decoder, "forward", lambda self, ids, *rest: computed.append(len(ids)) or forward(self, ids, *rest)
    )
    learner = Learner(make_decoder(1), OptimSettings(), 10, 64)
    stream = Stream("main", weight, Twin(tokens_U=hinted, align_T=align))
    learner.forward_backward(Batch([Item(tokens, [stream])]))
    assert computed == [30, 9]


def test_hints_add_neither_micro_batches_nor_calls_of_attention(
    make_decoder: Make, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU waits for launches where sequences are short, so these may not grow with the number of hints."""
    forward, attention = Decoder.forward, torch.nn.functional.scaled_dot_product_attention
    computed: list[bool] = []
    attended: list[int] = []

    def counted(self: Decoder, *facts: object) -> Tensor:
        computed.append(torch.is_grad_enabled())
        return forward(self, *facts)  # type: ignore[arg-type]

    def noticed(q: Tensor, *rest: object, **settings: object) -> Tensor:
        attended.append(len(q))
        return attention(q, *rest, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(Decoder, "forward", counted)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", noticed)
    tokens = [tokens_for(rng, length) for length in range(20, 26)]
    turn, hint = 6, np.array([1, 2, 3])

    def hinted(ids: np.ndarray) -> Stream:
        first = len(ids) - turn
        align, weight = np.full(len(ids), -1), np.zeros(len(ids), np.float32)
        align[first:], weight[first:] = np.arange(first, len(ids)) + len(hint), 1.0
        return Stream("main", weight, Twin(tokens_U=np.concatenate((ids[:first], hint, ids[first:])), align_T=align))

    learner = Learner(make_decoder(1), OptimSettings(), 10, micro_tokens=sum(map(len, tokens)))
    for hints in (1, 6):
        computed.clear()
        attended.clear()
        streams = [[label(rng, ids), *([hinted(ids)] if n < hints else [])] for n, ids in enumerate(tokens)]
        learner.forward_backward(Batch([Item(ids, asked) for ids, asked in zip(tokens, streams, strict=True)]))
        assert computed == [True, False], "one forward of the student and one of its teacher"
        assert attended == [hints] * learner.decoder.config.num_hidden_layers


def test_twin_on_sampled_tokens(make_decoder: Make, rng: np.random.Generator) -> None:
    check(make_decoder, Batch(items(rng, lambda r, t: twin(r, t, support="sampled", weights="frozen"))))


@pytest.mark.parametrize("settings", [{}, {"divergence": "reverse"}, {"support": 4}], ids=str)
def test_mtp_heads_learn_the_main_heads_distribution(
    make_decoder: Make, rng: np.random.Generator, settings: dict[str, object]
) -> None:
    def head(name: str) -> Callable[..., Stream]:
        return lambda r, t: Stream(name, weights_for(r, len(t)), MainHead(**settings))  # type: ignore[arg-type]

    check(make_decoder, Batch(items(rng, head("mtp.1"), head("mtp.2"))), mtp=2)


@pytest.mark.parametrize("micro_tokens", [30, 70, 1000])
def test_all_streams_in_one_batch(make_decoder: Make, rng: np.random.Generator, micro_tokens: int) -> None:
    mixed = items(
        rng,
        label,
        sampled,
        lambda r, t: twin(r, t, divergence="reverse", weights="frozen", trust=0.2),
        lambda r, t: twin(r, t, divergence="forward", support=6, weights="ema"),
        lambda r, t: label(r, t, "mtp.1"),
        lambda r, t: Stream("mtp.1", weights_for(r, len(t)), MainHead()),
    )
    metrics = check(make_decoder, Batch(mixed, Correction("clip", "sequence", 0.7, 1.4)), micro_tokens, mtp=1)
    parts = [metrics[f"{kind}_loss"] for kind in ("label", "sampled", "twin", "mainhead")]
    assert metrics["loss"] == pytest.approx(sum(parts), rel=1e-6)


def test_the_head_in_chunks_gives_the_same_gradient(
    make_decoder: Make, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "CHUNK_ROWS", 7)
    monkeypatch.setitem(packed.CHUNK_LOGITS, "cpu", 1)
    check(make_decoder, Batch(items(rng, label, sampled, twin), Correction("mask", "sequence", 0.5, 2.0)))


# What costs nothing, and what is refused


def test_items_without_a_gradient_cost_no_forward(make_decoder: Make, rng: np.random.Generator) -> None:
    decoder = make_decoder(1)
    tokens = tokens_for(rng, 12)
    nothing, weight = np.zeros(12, np.float32), np.ones(12, np.float32)
    flat = Item(tokens, [Stream("main", weight, Sampled(nothing, nothing))])  # a group without variance
    silent = Item(tokens, [Stream("main", nothing, Label(tokens))])
    alone = Item(tokens, [Stream("main", weight, Twin(tokens_U=tokens, align_T=np.full(12, -1)))])
    unpredicted = Item(tokens, [Stream("main", np.eye(12, dtype=np.float32)[0], Label(tokens))])
    learner = Learner(decoder, OptimSettings(), 10, 64)
    decoder.forward = None  # type: ignore[method-assign,assignment]
    metrics = learner.forward_backward(Batch([flat, silent, alone, unpredicted]))
    assert metrics == {"forward_tokens": 0.0, "shared_tokens": 0.0, "loss": 0.0}


def test_only_trained_parameters_get_a_gradient(make_decoder: Make, rng: np.random.Generator) -> None:
    """Stand-alone MTP training: the base is frozen, only the new modules move."""
    decoder = make_decoder(1, mtp=1)
    decoder.requires_grad_(False)
    decoder.mtp.requires_grad_(True)
    learner = Learner(decoder, OptimSettings(), 10, 64)
    before = {name: p.clone() for name, p in decoder.named_parameters()}
    learner.forward_backward(Batch(items(rng, lambda r, t: Stream("mtp.1", weights_for(r, len(t)), MainHead()))))
    learner.step()
    moved = {name for name, p in decoder.named_parameters() if not torch.equal(p, before[name])}
    assert moved
    assert all(name.startswith("mtp.") for name in moved)


def test_streams_that_do_not_fit_their_sequence_are_refused(rng: np.random.Generator) -> None:
    tokens = tokens_for(rng, 6)
    weight = np.ones(6, np.float32)
    with pytest.raises(EtudeError, match="5 entries for a sequence of 6 tokens"):
        Item(tokens, [Stream("main", weight, Label(tokens[:5]))])
    with pytest.raises(EtudeError, match="other tokens"):
        Item(tokens, [Stream("main", weight, Twin(tokens_U=tokens + 1, align_T=np.arange(6)))])


def test_weights_that_the_learner_does_not_keep_are_named(make_decoder: Make, rng: np.random.Generator) -> None:
    learner = Learner(make_decoder(1), OptimSettings(), 10, 64)
    with pytest.raises(EtudeError, match="asks for 'frozen' weights"):
        learner.forward_backward(Batch(items(rng, lambda r, t: twin(r, t, weights="frozen"))))
