"""The five verbs: scoring, stepping, skipping, averaging, publishing, and a resume that is exact to the bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from etude.core.errors import EtudeError
from etude.core.policy import Version
from etude.core.settings import OptimSettings
from etude.learn.learner import Learner
from etude.learn.streams import Batch, Correction, Item, Label, Sampled, Stream, Twin
from etude.model.checkpoint.directory import load_model
from etude.model.decoder import Decoder
from etude.model.weight_transfer.shared_memory import WeightBoard

Make = Callable[..., Decoder]
VOCAB = 37


def labels(seed: int, lengths: tuple[int, ...] = (9, 17, 4)) -> Batch:
    rng = np.random.default_rng(seed)
    items = []
    for length in lengths:
        tokens = rng.integers(0, VOCAB, length)
        weight = np.full(length, 1 / sum(lengths), np.float32)
        items.append(Item(tokens, [Stream("main", weight, Label(tokens))]))
    return Batch(items)


def everything(learner: Learner) -> dict[str, torch.Tensor]:
    named = {f"{name}/{key}": p for name, decoder in learner.weights.items() for key, p in decoder.named_parameters()}
    return {key: x.detach().clone() for key, x in (named | learner.optimiser.state()).items()}


def test_scores_are_log_probabilities_at_the_items_temperature(make_decoder: Make, rng: np.random.Generator) -> None:
    decoder, frozen = make_decoder(1), make_decoder(2)
    learner = Learner(decoder, OptimSettings(), 1, micro_tokens=24, frozen=frozen)
    items = [
        Item(rng.integers(0, VOCAB, n).astype(np.uint16), (), t) for n, t in ((7, 1.0), (19, 0.5), (1, 1.0), (12, 2.0))
    ]
    for name, model in {"live": decoder, "frozen": frozen}.items():
        for item, scores in zip(items, learner.score(items, weights=name), strict=True):
            tokens = torch.from_numpy(item.tokens_T.astype(np.int64))
            with torch.no_grad():
                hidden = model.double()(tokens, torch.arange(len(tokens)), naive_causal)
                logits = model.logits(hidden) / item.temperature
            expected = [0.0] + [float(logits[t - 1].log_softmax(-1)[tokens[t]]) for t in range(1, len(tokens))]
            model.float()
            assert scores.dtype == np.float32
            assert scores == pytest.approx(expected, abs=2e-5)


def naive_causal(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    scores = torch.einsum("thd,shd->hts", q, k) / math.sqrt(q.shape[2])
    scores = scores + torch.full_like(scores[0], -torch.inf).triu(1)
    return torch.einsum("hts,shd->thd", scores.softmax(-1), v)


def test_training_lowers_the_loss_of_what_it_is_trained_on(make_decoder: Make) -> None:
    for matrices in ("muon", "adamw"):
        learner = Learner(make_decoder(1, deviation=0.05), OptimSettings(matrices=matrices), 30, 64)
        losses = []
        for _ in range(30):
            losses.append(learner.forward_backward(labels(0))["loss"])
            learner.step()
        assert losses[-1] < 0.75 * losses[0]


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_beginnings_in_common_are_computed_once_with_the_gradient_of_whole_items(
    make_decoder: Make, rng: np.random.Generator, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tree of sequences, some longer than a block of queries, some equal, one at another temperature."""
    trunk, branch = rng.integers(0, VOCAB, 80), rng.integers(0, VOCAB, 70)
    ends = [rng.integers(0, VOCAB, n) for n in (5, 40, 1, 90, 20)]
    texts = [np.concatenate((trunk, branch, end)) for end in ends] + [np.concatenate((trunk, end)) for end in ends]
    texts += [texts[0], trunk, rng.integers(0, VOCAB, 30), texts[1][:-1]]
    items = []
    for place, ids in enumerate(texts):
        advantage, logprob = rng.normal(size=(2, len(ids))).astype(np.float32)
        stream = Stream("main", (rng.random(len(ids)) < 0.4).astype(np.float32) / 50, Sampled(advantage, logprob - 3))
        items.append(Item(ids, [stream], 0.7 if place == 3 else 1.0))
    correction = Correction("truncate", level, 0.5, 2.0)  # type: ignore[arg-type]

    def trained(batches: list[Batch]) -> tuple[dict[str, torch.Tensor], float, float]:
        learner = Learner(make_decoder(1), OptimSettings(), 10, 700)
        found = [learner.forward_backward(batch) for batch in batches]
        gradients = {name: p.grad for name, p in learner.decoder.named_parameters() if p.grad is not None}
        return gradients, sum(each["loss"] for each in found), sum(each.get("shared_tokens", 0) for each in found)

    alone, expected, _ = trained([Batch([item], correction) for item in items])
    computed: list[int] = []
    forward = Decoder.forward
    monkeypatch.setattr(
        Decoder, "forward", lambda self, ids_T, *facts: computed.append(len(ids_T)) or forward(self, ids_T, *facts)
    )
    together, loss, shared = trained([Batch(items, correction)])
    # Two parts of the tree in two micro-batches, of which each computes the trunk.
    assert sum(computed) < sum(map(len, texts)) / 2
    assert shared == sum(map(len, texts)) - sum(computed)
    assert loss == pytest.approx(expected, rel=1e-5)
    for name, gradient in alone.items():
        assert torch.allclose(together[name], gradient, rtol=1e-4, atol=1e-6), name


def test_micro_batches_do_not_change_the_gradient(make_decoder: Make) -> None:
    gradients = []
    for micro_tokens in (17, 25, 1000):
        learner = Learner(make_decoder(1), OptimSettings(), 10, micro_tokens)
        learner.forward_backward(labels(0))
        gradients.append([p.grad for p in learner.decoder.parameters()])
    for other in gradients[1:]:
        torch.testing.assert_close(other, gradients[0], rtol=1e-4, atol=1e-7)


def test_threads_share_the_weights_and_add_up_to_the_same_gradient(make_decoder: Make) -> None:
    """Each thread has a replica; only the order of summation may differ from one thread, and never between runs."""

    def train(threads: int) -> tuple[Learner, list[dict[str, float]]]:
        torch.set_num_threads(threads)
        try:
            learner = Learner(make_decoder(1), OptimSettings(), 10, 17)
            reports = []
            for step in range(3):
                reports.append(learner.forward_backward(mixed(step, weights="live")) | learner.step())
            scores = learner.score(mixed(0).items)
        finally:
            torch.set_num_threads(1)
        reports.append({str(i): float(x.sum()) for i, x in enumerate(scores)})
        return learner, reports

    (alone, one), (first, two), (second, again) = train(1), train(3), train(3)
    assert [len(learner.replicas.decoders) for learner in (alone, first)] == [1, 3]
    assert two == again
    for a, b in zip(first.decoder.parameters(), second.decoder.parameters(), strict=True):
        assert torch.equal(a, b)
    for a, b in zip(first.decoder.parameters(), alone.decoder.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=2e-3)
    for found, wanted in zip(two, one, strict=True):
        assert found == pytest.approx(wanted, rel=1e-2, abs=1e-3)
    for name in ("loss", "grad_norm", "k1", "drift_max"):
        assert two[0][name] == pytest.approx(one[0][name], rel=1e-5)


def test_gradients_are_clipped_to_the_global_norm(make_decoder: Make) -> None:
    """AdamW ignores the scale of a first gradient, so the moments tell."""
    learner = Learner(make_decoder(1), OptimSettings(matrices="adamw", clip=1e-3, betas=(0.0, 0.95)), 10, 64)
    learner.forward_backward(labels(0))
    expected = math.sqrt(sum(float(p.grad.double().square().sum()) for p in learner.decoder.parameters()))
    report = learner.step()
    assert report["grad_norm"] == pytest.approx(expected, rel=1e-5)
    moments = [x.double() for name, x in learner.optimiser.state().items() if name.startswith("exp_avg.")]
    assert math.sqrt(sum(float(x.square().sum()) for x in moments)) == pytest.approx(1e-3, rel=1e-3)


def test_a_step_that_is_not_finite_is_skipped_and_counted(make_decoder: Make) -> None:
    learner = Learner(make_decoder(1), OptimSettings(ema=0.9), 10, 64)
    learner.forward_backward(labels(0))
    learner.step()
    before = everything(learner)
    broken = labels(1)
    weight = broken.items[0].streams[0].weight_T.copy()
    weight[3] = np.nan
    tokens = broken.items[0].tokens_T
    learner.forward_backward(Batch([Item(tokens, [Stream("main", weight, Label(tokens))]), *broken.items[1:]]))
    report = learner.step()
    assert report["skipped"] == 1
    assert not math.isfinite(report["grad_norm"])
    after = everything(learner)
    assert all(torch.equal(before[name], after[name]) for name in before)
    learner.forward_backward(labels(2))
    assert learner.step()["skipped"] == 1
    assert learner.steps == 3
    assert not torch.equal(
        everything(learner)["live/model.embed_tokens.weight"], after["live/model.embed_tokens.weight"]
    )


def test_averaged_weights_follow_the_live_ones(make_decoder: Make) -> None:
    learner = Learner(make_decoder(1), OptimSettings(ema=0.75), 10, 64)
    expected = learner.decoder.model.embed_tokens.weight.detach().clone()
    for seed in range(3):
        learner.forward_backward(labels(seed))
        learner.step()
        expected = 0.75 * expected + 0.25 * learner.decoder.model.embed_tokens.weight.detach()
    torch.testing.assert_close(learner.weights["ema"].model.embed_tokens.weight.detach(), expected)


def mixed(seed: int, weights: str = "ema") -> Batch:
    """Labels, sampled tokens and a twin under averaged weights, so that a resume has everything to get wrong."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, VOCAB, 15)
    weight, noise = np.full(15, 0.1, np.float32), rng.normal(size=(2, 15)).astype(np.float32)
    hinted, places = np.concatenate((tokens[:4], [1, 2], tokens[4:])), np.arange(15)
    twin = Twin(tokens_U=hinted, align_T=places + 2 * (places > 3), weights=weights)  # type: ignore[arg-type]
    streams = [Stream("main", weight, target) for target in (Sampled(noise[0], noise[1] - 3), twin)]
    return Batch([*labels(seed).items, Item(tokens, streams, 0.8)], Correction("truncate", high=2.0))


@pytest.mark.parametrize("matrices", ["muon", "adamw"])
def test_a_resume_is_exact_to_the_bit(make_decoder: Make, tmp_path: Path, matrices: str) -> None:
    settings = OptimSettings(matrices=matrices, ema=0.9, warmup=0.3)
    straight = Learner(make_decoder(1), settings, 8, 40)
    for step in range(8):
        straight.forward_backward(mixed(step))
        straight.step()
    first = Learner(make_decoder(1), settings, 8, 40)
    for step in range(4):
        first.forward_backward(mixed(step))
        first.step()
    first.save(tmp_path)
    second = Learner(make_decoder(9), settings, 8, 40)
    second.restore(tmp_path)
    assert (second.steps, second.skipped) == (4, 0)
    for step in range(4, 8):
        second.forward_backward(mixed(step))
        second.step()
    wanted, found = everything(straight), everything(second)
    assert wanted.keys() == found.keys()
    assert [name for name in wanted if not torch.equal(wanted[name], found[name])] == []


def test_what_is_saved_is_a_model_directory(make_decoder: Make, tmp_path: Path) -> None:
    learner = Learner(make_decoder(1), OptimSettings(), 8, 40)
    learner.save(tmp_path)
    loaded = load_model(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(loaded.parameters(), learner.decoder.parameters(), strict=True))
    assert load_file(tmp_path / "optimiser.safetensors")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda d: cut(d / "optimiser.safetensors"), "cut short"),
        (lambda d: (d / "optimiser.safetensors").write_bytes(b"{}"), "cut short"),
        (lambda d: (d / "optimiser.safetensors").unlink(), "cannot be read"),
        (lambda d: (d / "learner.json").write_text('{"steps": '), "missing or damaged"),
        (lambda d: (d / "learner.json").unlink(), "missing or damaged"),
        (lambda d: cut(d / "model.safetensors"), "cut short"),
    ],
)
def test_a_damaged_checkpoint_is_refused_and_changes_nothing(
    make_decoder: Make, tmp_path: Path, damage: Callable[[Path], object], sentence: str
) -> None:
    saved = Learner(make_decoder(1), OptimSettings(), 8, 40)
    saved.forward_backward(labels(0))
    saved.step()
    saved.save(tmp_path)
    damage(tmp_path)
    learner = Learner(make_decoder(2), OptimSettings(), 8, 40)
    before = everything(learner)
    with pytest.raises(EtudeError, match=sentence):
        learner.restore(tmp_path)
    assert all(torch.equal(x, before[name]) for name, x in everything(learner).items())


def test_a_checkpoint_of_other_settings_is_refused(make_decoder: Make, tmp_path: Path) -> None:
    Learner(make_decoder(1), OptimSettings(), 8, 40).save(tmp_path)
    with pytest.raises(EtudeError, match="other optimiser settings"):
        Learner(make_decoder(1), OptimSettings(matrices="adamw"), 8, 40).restore(tmp_path)
    with pytest.raises(EtudeError, match="another shape"):
        Learner(make_decoder(1, hidden_size=24), OptimSettings(), 8, 40).restore(tmp_path)


def test_published_weights_arrive(make_decoder: Make, tmp_path: Path) -> None:
    learner = Learner(make_decoder(1), OptimSettings(), 8, 40)
    board = WeightBoard.create(tmp_path / "board", learner.decoder)
    learner.publish(board, Version(0, 3))
    other = make_decoder(5)
    board.load_into(other, Version(0, 3))
    assert all(torch.equal(a, b) for a, b in zip(other.parameters(), learner.decoder.parameters(), strict=True))
