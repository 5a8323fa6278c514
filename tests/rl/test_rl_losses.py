"""What each algorithm trains, from rollouts to the gradient of the weights: against its paper's formula in float64, one
token at a time, and against `trl` where it has the same loss.
"""

from __future__ import annotations

import asyncio
import copy
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from etude.core import recipe as recipes
from etude.core.errors import EtudeError
from etude.core.rl_settings import RLSettings
from etude.core.settings import OptimSettings
from etude.learn.learner import Learner
from etude.learn.streams import Floats, Item, Sampled
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder
from etude.rl.algorithms.base import BatchShape, StepView
from etude.rl.algorithms.table import build_algorithm, check_algorithm
from etude.rl.batches import Prepared, chosen_correction, prepare
from etude.rl.groups import Rollout, RolloutGroup, Slot, Trace

VOCAB, TEMPERATURE = 37, 0.9
SHAPE = BatchShape(groups=2, group=4, longest=30, limit=24)
REWARDS = [[1.0, 0.0, 0.25, -0.5], [0.5, 0.5, 1.0, 0.0]]


def attend(layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
    share = q_THD.shape[1] // k_TKD.shape[1]
    k_THD, v_THD = (x.repeat_interleave(share, dim=1) for x in (k_TKD, v_TKD))
    scores = torch.einsum("thd,shd->hts", q_THD, k_THD) / math.sqrt(q_THD.shape[2])
    hidden = torch.full(scores.shape[1:], -math.inf, dtype=scores.dtype).triu(1)
    return torch.einsum("hts,shd->thd", (scores + hidden).softmax(-1), v_THD)


def logprobs(decoder: Decoder, ids: np.ndarray) -> Tensor:
    """Of each token from the second on, in the decoder's own precision."""
    ids_T = torch.from_numpy(ids.astype(np.int64))
    logits = decoder.logits(decoder(ids_T, torch.arange(len(ids_T)), attend)) / TEMPERATURE
    return logits.log_softmax(-1)[:-1].gather(-1, ids_T[1:, None])[:, 0]


def decoder_of(seed: int) -> Decoder:
    config = ModelConfig(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
    )
    decoder = Decoder(config, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in decoder.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 0.3, generator=generator)
    return decoder


class Home:
    """Two groups of rollouts, sampled by weights a little away from those that are trained, and a frozen model."""

    def __init__(self) -> None:
        rng = np.random.default_rng(5)
        self.live, self.frozen = decoder_of(1), decoder_of(2)
        self.exact, self.exact_frozen = copy.deepcopy(self.live).double(), copy.deepcopy(self.frozen).double()
        self.groups = []
        for number, rewards in enumerate(REWARDS):
            rollouts = []
            for place, reward in enumerate(rewards):
                traces = []
                for length in (8 + 2 * place, 6) if place % 2 else (9 + place,):
                    ids_T = rng.integers(0, VOCAB, length).astype(np.int32)
                    sampled_T = np.arange(length) >= 3
                    with torch.no_grad():
                        now = np.concatenate([[0.0], logprobs(self.exact, ids_T).numpy()])
                    old_T = np.where(sampled_T, now + rng.normal(0, 0.3, length), 0).astype(np.float32)
                    traces.append(Trace(ids_T, sampled_T, old_T, np.zeros((length, 2), np.int32)))
                rollouts.append(
                    Rollout(reward, {}, False, "final", 1, 0, 0, 9, TEMPERATURE, 0.1, tuple(traces), source="katas")
                )
            self.groups.append(RolloutGroup(number, 0, [Slot("ready", rollout=each) for each in rollouts]))

    def prepared(self, settings: RLSettings) -> tuple[Prepared, Learner]:
        learner = Learner(copy.deepcopy(self.live), OptimSettings(), 10, 512, frozen=copy.deepcopy(self.frozen))

        class Scores:
            async def score(self, items: Sequence[Item], weights: str = "live") -> list[Floats]:
                return learner.score(items, weights)

        algorithm = build_algorithm(settings.algorithm)
        return asyncio.run(prepare(self.groups, algorithm, SHAPE, settings, Scores())), learner


@pytest.fixture(scope="module")
def home() -> Home:
    return Home()


Token = Callable[[float, Tensor, Tensor, Tensor], Tensor]  # advantage, log p, ratio, ratio of its segment -> term


def clip(low: float, high: float) -> Callable[[float, Tensor], Tensor]:
    return lambda advantage, ratio: -torch.minimum(ratio * advantage, ratio.clamp(low, high) * advantage)


def truncated(low: float, high: float) -> Token:
    return lambda a, logp, ratio, _: -ratio.detach().clamp(low, high) * a * logp


def masked(low: float, high: float) -> Token:
    return lambda a, logp, ratio, _: -(ratio.detach() if low <= float(ratio.detach()) <= high else 0.0) * a * logp


def grpo_advantages(rewards: Sequence[float]) -> list[float]:
    r = np.array(rewards, np.float64)
    return list((r - r.mean()) / (r.std() + 1e-4))


def mean_centred(rewards: Sequence[float]) -> list[float]:
    return list(np.array(rewards) - np.mean(rewards))


def overlong(rewards: Sequence[float], lengths: Sequence[int]) -> list[float]:
    """A buffer of a fifth of the limit of 24 tokens."""
    return [r - min(1.0, max(0.0, length - 19.2) / 4.8) for r, length in zip(rewards, lengths, strict=True)]


CONSTANT = 1 / (2 * 4 * 30)
PAPERS: dict[str, tuple[dict[str, Any], Callable[..., list[float]], Callable[..., float], Token]] = {
    "dr_grpo": (
        {"correction_high": 1.2},
        lambda r, n: mean_centred(r),
        lambda n, i: CONSTANT,
        truncated(0, 1.2),
    ),
    "rloo": (
        {"correction": "mask", "correction_low": 0.8, "correction_high": 1.2},
        lambda r, n: [x - (sum(r) - x) / 3 for x in r],
        lambda n, i: CONSTANT,
        masked(0.8, 1.2),
    ),
    "grpo": (
        {"correction": "clip", "correction_low": 0.8, "correction_high": 1.2},
        lambda r, n: grpo_advantages(r),
        lambda n, i: 1 / (2 * 4 * n[i]),
        lambda a, logp, ratio, _: clip(0.8, 1.2)(a, ratio),
    ),
    "dapo": (
        {"correction": "auto"},
        lambda r, n: grpo_advantages(overlong(r, n)),
        lambda n, i: 1 / (2 * sum(n)),
        lambda a, logp, ratio, _: clip(0.8, 1.28)(a, ratio),
    ),
    "gspo": (
        {"correction": "auto", "algorithm": {"use": "gspo", "low": 0.1, "high": 0.2}},
        lambda r, n: grpo_advantages(r),
        lambda n, i: 1 / (2 * 4 * n[i]),
        lambda a, logp, _, segment: clip(0.9, 1.2)(a, segment * torch.exp(logp - logp.detach())),
    ),
    "cispo": (
        {"correction": "auto", "algorithm": {"use": "cispo", "high": 1.3}},
        lambda r, n: grpo_advantages(r),
        lambda n, i: 1 / (2 * sum(n)),
        truncated(0, 1.3),
    ),
    "single_rollout": (
        {"correction": "none"},
        lambda r, n: [x - np.mean(REWARDS) for x in r],
        lambda n, i: CONSTANT,
        lambda a, logp, *_: -a * logp,
    ),
}


def brute_force(
    home: Home, advantages: Callable[..., list[float]], weight: Callable[..., float], term: Token, kl: str = ""
) -> Tensor:
    """The loss as it is written, token by token."""
    total = torch.zeros((), dtype=torch.float64)
    for group in home.groups:
        rollouts = group.rollouts
        lengths = [each.sampled_tokens for each in rollouts]
        found = advantages([each.reward for each in rollouts], lengths)
        for place, each in enumerate(rollouts):
            for trace in each.traces:
                logp_T = logprobs(home.exact, trace.ids_T)
                at = [t for t in range(1, len(trace.ids_T)) if trace.sampled_T[t]]
                ratios = [torch.exp(logp_T[t - 1] - float(trace.logprob_T[t])) for t in at]
                segment = torch.exp(sum(torch.log(ratio.detach()) for ratio in ratios) / len(ratios))
                for t, ratio in zip(at, ratios, strict=True):
                    total = total + weight(lengths, place) * term(found[place], logp_T[t - 1], ratio, segment)
                if kl:
                    with torch.no_grad():
                        frozen_T = logprobs(home.exact_frozen, trace.ids_T)
                    for t in at:
                        log_r = frozen_T[t - 1] - logp_T[t - 1]
                        total = total + 0.3 * CONSTANT * (log_r**2 / 2 if kl == "k2" else torch.exp(log_r) - 1 - log_r)
    return total


def check_gradients(home: Home, learner: Learner, loss: Tensor) -> None:
    wanted = torch.autograd.grad(loss, list(home.exact.parameters()), allow_unused=True)
    largest = max(float(g.abs().max()) for g in wanted if g is not None)
    for (name, parameter), gradient in zip(learner.decoder.named_parameters(), wanted, strict=True):
        if gradient is not None:
            assert parameter.grad is not None, name
            np.testing.assert_allclose(parameter.grad.double(), gradient, atol=2e-5 * largest, rtol=2e-4, err_msg=name)


@pytest.mark.parametrize("use", PAPERS)
def test_gradients_are_those_of_the_papers(home: Home, use: str) -> None:
    settings, advantages, weight, term = PAPERS[use]
    prepared, learner = home.prepared(RLSettings(**({"algorithm": {"use": use}, "group": 4} | settings)))
    learner.forward_backward(prepared.batch)
    check_gradients(home, learner, brute_force(home, advantages, weight, term))


@pytest.mark.parametrize("kl", ["k2", "k3"])
def test_kl_as_a_stream_is_the_gradient_of_its_estimator_whatever_the_algorithm(home: Home, kl: str) -> None:
    settings = RLSettings(algorithm={"use": "grpo"}, correction="none", kl=0.3, kl_estimator=kl)  # type: ignore[arg-type]
    prepared, learner = home.prepared(settings)
    learner.forward_backward(prepared.batch)
    _, advantages, weight, _ = PAPERS["grpo"]
    check_gradients(home, learner, brute_force(home, advantages, weight, lambda a, logp, *_: -a * logp, kl))


def test_the_variance_of_each_estimator_is_told(home: Home) -> None:
    prepared, _ = home.prepared(RLSettings(kl=0.1))
    log_r = []
    for group in home.groups:
        for trace in (trace for each in group.rollouts for trace in each.traces):
            with torch.no_grad():
                frozen = np.concatenate([[0.0], logprobs(home.exact_frozen, trace.ids_T).numpy()])
            log_r.append((frozen - trace.logprob_T)[trace.sampled_T])
    x = np.concatenate(log_r)
    wanted = {"k1": -x, "k2": x**2 / 2, "k3": np.exp(x) - 1 - x}
    for name, values in wanted.items():
        assert prepared.diagnostics[f"reference_{name}"] == pytest.approx(values.mean(), rel=1e-4)
        assert prepared.diagnostics[f"reference_{name}_variance"] == pytest.approx(values.var(), rel=1e-4)


@pytest.mark.parametrize("kind", ["truncate", "mask", "clip"])
def test_a_rollout_has_one_ratio_over_all_of_its_segments(home: Home, kind: Any) -> None:
    low, high = 0.95, 1.05
    settings = RLSettings(correction=kind, correction_level="rollout", correction_low=low, correction_high=high)
    prepared, learner = home.prepared(settings)
    learner.forward_backward(prepared.batch)
    total = torch.zeros((), dtype=torch.float64)
    for group in home.groups:
        found = mean_centred([each.reward for each in group.rollouts])
        for advantage, each in zip(found, group.rollouts, strict=True):
            logps, olds = [], []
            for trace in each.traces:
                logps.append(logprobs(home.exact, trace.ids_T)[torch.from_numpy(trace.sampled_T[1:])])
                olds.append(torch.from_numpy(trace.logprob_T[trace.sampled_T]).double())
            logp, old = torch.cat(logps), torch.cat(olds)
            ratio = torch.exp((logp.detach() - old).mean())
            if kind == "clip":
                terms = clip(low, high)(advantage, ratio * torch.exp(logp - logp.detach()))
            else:
                inside = float(ratio) if low <= float(ratio) <= high else 0.0
                terms = -(ratio.clamp(low, high) if kind == "truncate" else inside) * advantage * logp
            total = total + CONSTANT * terms.sum()
    check_gradients(home, learner, total)


@pytest.mark.parametrize("replay", [True, False])
def test_ratios_of_whole_rollouts_are_of_tokens_routed_as_they_are_trained(replay: bool) -> None:
    scored: list[Item] = []

    class Hears:
        async def score(self, items: Sequence[Item], weights: str = "live") -> list[Floats]:
            scored.extend(items)
            return [np.zeros(len(item.tokens_T), np.float32) for item in items]

    experts = np.arange(8, dtype=np.int16).reshape(4, 1, 2)
    version_T2 = np.zeros((4, 2), np.int32)
    trace = Trace(np.arange(4, dtype=np.int32), np.arange(4) > 1, np.zeros(4, np.float32), version_T2, experts)
    rollouts = [Rollout(each, {}, True, "final", 1, 0, 0, 4, 1.0, 0.1, (trace,)) for each in (0.0, 1.0)]
    group = RolloutGroup(0, 0, [Slot("ready", each) for each in rollouts])
    settings = RLSettings(correction_level="rollout", replay=replay, plausible=0.25)
    algorithm = build_algorithm({"use": "dr_grpo"})
    prepared = asyncio.run(prepare([group], algorithm, BatchShape(1, 2, 10, 10), settings, Hears()))
    for item in (*scored, *prepared.batch.items):
        assert (item.experts_TBK is experts) == replay and item.plausible == 0.25
    assert len(scored) == len(prepared.batch.items) == 2


@pytest.mark.parametrize(
    ("use", "trl_name", "level", "bounds"),
    [
        ("dr_grpo", "dr_grpo", "token", (0.2, 0.2)),
        ("grpo", "grpo", "token", (0.2, 0.2)),
        ("dapo", "dapo", "token", (0.2, 0.28)),
        ("gspo", "grpo", "sequence", (3e-4, 4e-4)),
        ("cispo", "cispo", "token", (0.0, 5.0)),
        ("k3", "grpo", "token", (0.2, 0.2)),
    ],
)
def test_losses_are_those_of_trl(home: Home, use: str, trl_name: str, level: str, bounds: tuple[float, float]) -> None:
    """Its own loss is called with our rollouts of one segment: the gradient of each log-probability has to be ours."""
    trl = pytest.importorskip("trl.trainer.grpo_trainer", reason="trl is for tests only")
    group = RolloutGroup(0, 0, [slot for slot in home.groups[0].slots if len(slot.rollout.traces) == 1])  # type: ignore[union-attr]
    rollouts = group.rollouts
    count, width = len(rollouts), max(len(each.traces[0].ids_T) for each in rollouts) - 3
    logp_BT, old_BT, ref_BT, mask_BT = (torch.zeros(count, width, dtype=torch.float64) for _ in range(4))
    for row, each in enumerate(rollouts):
        (trace,) = each.traces
        with torch.no_grad():
            now, frozen = logprobs(home.exact, trace.ids_T)[2:], logprobs(home.exact_frozen, trace.ids_T)[2:]
        logp_BT[row, : len(now)], ref_BT[row, : len(now)] = now, frozen
        old_BT[row, : len(now)] = torch.from_numpy(trace.logprob_T[3:])
        mask_BT[row, : len(now)] = 1
    logp_BT.requires_grad_()
    plain = {"correction": "clip", "correction_low": 1 - bounds[0], "correction_high": 1 + bounds[1]}
    own = {"correction": "auto"} if use in ("dapo", "gspo", "cispo") else plain
    algorithm: dict[str, Any] = {"use": "grpo" if use == "k3" else use}
    if use == "dapo":
        algorithm["overlong"] = 0.0  # a reward of its own in trl's examples, and no part of the loss
    settings = RLSettings(algorithm=algorithm, **own, **({"kl": 0.3, "kl_estimator": "k3"} if use == "k3" else {}))
    built = build_algorithm(settings.algorithm)
    advantages = built.advantages([each.reward for each in rollouts])
    stub = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (logp_BT, torch.zeros_like(logp_BT), None),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level=level,
        loss_type=trl_name,
        epsilon_low=bounds[0],
        epsilon_high=bounds[1],
        beta=0.3 if use == "k3" else 0.0,
        use_vllm=False,
        max_completion_length=30,
        current_gradient_accumulation_steps=1,
        _entropy_bonus_enabled=False,
        model=SimpleNamespace(training=True),
        args=SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1),
        accelerator=SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x),
        _metrics=defaultdict(lambda: defaultdict(list)),
    )
    inputs = {
        "prompt_ids": torch.zeros(count, 1, dtype=torch.long),
        "prompt_mask": torch.ones(count, 1),
        "completion_ids": torch.zeros(count, width, dtype=torch.long),
        "completion_mask": mask_BT,
        "advantages": torch.tensor(advantages, dtype=torch.float64),
        "old_per_token_logps": old_BT,
        "ref_per_token_logps": ref_BT,
        "num_items_in_batch": mask_BT.sum(),
    }
    loss = trl.GRPOTrainer._compute_loss(stub, None, inputs)
    (wanted_BT,) = torch.autograd.grad(loss, logp_BT)
    # ours, with the learner's own terms
    from etude.learn.loss import policy_term

    shape = StepView(groups=1, group=count, longest=30)
    correction, _ = chosen_correction(built, settings)
    leaf_BT = logp_BT.detach().requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for row, items in enumerate(built.items(rollouts, [each.reward for each in rollouts], shape)):
        (stream,) = items[0].streams
        assert isinstance(stream.target, Sampled)
        count_T = len(stream.weight_T) - 3
        now, old = leaf_BT[row, :count_T], old_BT[row, :count_T]
        log_ratio = now - old
        if correction.level == "sequence":
            log_ratio = log_ratio.detach().mean() + now - now.detach()
        weight_T, advantage_T = (torch.from_numpy(x[3:]).double() for x in (stream.weight_T, stream.target.advantage_T))
        total = total + (weight_T * policy_term(correction, advantage_T, now, log_ratio.exp())).sum()
        if use == "k3":
            from etude.rl.reference import stream as kl_stream

            log_r = (ref_BT[row, :count_T] - now).detach().numpy()
            ones = np.ones(count_T, np.float32)
            extra = kl_stream("k3", log_r, ones, old.numpy().astype(np.float32), 0.3 / (count * count_T))
            assert isinstance(extra.target, Sampled)
            total = total - (torch.from_numpy(extra.weight_T * extra.target.advantage_T).double() * now).sum()
    (found_BT,) = torch.autograd.grad(total, leaf_BT)
    np.testing.assert_allclose(found_BT, wanted_BT, rtol=2e-5, atol=1e-9)


def test_pairs_that_would_train_something_else_are_refused() -> None:
    for settings, said in [
        ({"algorithm": {"use": "grpo"}, "kl": 0.1}, "pure KL of unit variance"),
        ({"algorithm": {"use": "gspo"}, "correction": "truncate"}, 'set rl.correction = "auto"'),
        ({"algorithm": {"use": "dapo"}, "correction_high": 1.3}, "correction_high would change nothing"),
        ({"group": 1}, "use single_rollout"),
        ({"correction_low": 3.0}, "from 3 to 2"),
        ({"algorithm": {"use": "cispo", "low": 6}}, "from 6 to 5"),
    ]:
        wanted = RLSettings(**settings)  # type: ignore[arg-type]
        with pytest.raises(EtudeError, match=said):
            check_algorithm(build_algorithm(wanted.algorithm), wanted)
    for fine in (
        {"algorithm": {"use": "grpo"}, "kl": 0.1, "kl_estimator": "k2"},
        {"algorithm": {"use": "single_rollout"}, "group": 1},
        {"kl": 0.1},
    ):
        wanted = RLSettings(**fine)  # type: ignore[arg-type]
        check_algorithm(build_algorithm(wanted.algorithm), wanted)


@pytest.mark.parametrize("use", ["dapo", "gspo", "cispo"])
def test_an_algorithm_that_brings_its_own_correction_needs_no_setting_beside_it(use: str) -> None:
    wanted = recipes.load("nano", [f"rl.algorithm.use={use}"]).rl
    algorithm = build_algorithm(wanted.algorithm)
    check_algorithm(algorithm, wanted)
    assert chosen_correction(algorithm, wanted) == (algorithm.correction(), False)
    plain = recipes.load("nano").rl
    kind = chosen_correction(build_algorithm(plain.algorithm), plain)[0]
    assert (kind.kind, kind.level, kind.high) == ("truncate", "token", 2.0)


def test_the_baseline_of_single_rollouts_is_what_came_before_and_goes_on_after_a_resume(home: Home) -> None:
    algorithm = build_algorithm({"use": "single_rollout", "decay": 0.5})
    rollouts = [group.rollouts for group in home.groups]
    seen = []
    for step, rewards in enumerate([[[1.0] * 4, [0.0] * 4], [[1.0] * 4, [1.0] * 4], [[0.0] * 4, [0.0] * 4]]):
        if step == 2:  # from a checkpoint, as JSON has it
            state = algorithm.state()
            algorithm = build_algorithm({"use": "single_rollout", "decay": 0.5})
            algorithm.load_state(state)
        algorithm.observe(rollouts, rewards, StepView(2, 4, 30, 24, step))
        (stream,) = algorithm.items(rollouts[0], rewards[0], SHAPE)[0][0].streams
        assert isinstance(stream.target, Sampled)
        seen.append(float(stream.target.advantage_T.max() or stream.target.advantage_T.min()))
    assert seen == pytest.approx([1 - 0.5, 1 - 0.5, 0 - 0.75])


ALGORITHM = '''
"""Advantages against the best reward that a task's source ever had, with a correction of its own."""

from etude.learn.streams import Correction
from etude.rl.algorithms.base import Algorithm, policy_gradient


class Best(Algorithm):
    single = True
    best = 0.0

    def observe(self, groups, rewards, view):
        self.best = max(self.best, *(reward for group in rewards for reward in group))

    def items(self, rollouts, rewards, plan):
        share = min(1.0, (plan.step + 1) / 10)
        return [policy_gradient(r, share * (x - self.best), 1e-3) for r, x in zip(rollouts, rewards)]

    def state(self):
        return {"best": self.best}

    def load_state(self, state):
        self.best = state.get("best", 0.0)

    def correction(self):
        return Correction("mask", "token", 0.5, 2.0)
'''


def test_an_algorithm_with_state_and_a_correction_is_one_short_file(home: Home, tmp_path: Any) -> None:
    assert len(ALGORITHM.strip().splitlines()) < 60
    (tmp_path / "mine.py").write_text(ALGORITHM)
    settings = RLSettings(algorithm={"use": f"{tmp_path}/mine.py:Best"}, correction="auto")
    prepared, _ = home.prepared(settings)
    assert (prepared.batch.correction.kind, prepared.batch.correction.high) == ("mask", 2.0)
    target = prepared.batch.items[0].streams[0].target
    assert isinstance(target, Sampled) and target.advantage_T.min() == pytest.approx(0.1 * (0.0 - 1.0))
