"""Every setting of reinforcement learning: the section [rl] of a recipe, its optimiser and its textual feedback.

Written as those of the other sections are (`settings`), and without third-party imports either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from etude.core.settings import LoraSettings, OptimSettings, setting


@dataclass(frozen=True)
class RLOptimSettings(OptimSettings):
    """The optimiser of reinforcement learning: the biases that even out the load are outside of its objective."""

    balance: float = setting(0.0, "how far a step moves the biases that even out the load of experts", least=0)


@dataclass(frozen=True)
class FeedbackSettings:
    """Targeted textual feedback: a turn learns from itself with a hint above it."""

    behaviours: list[dict[str, Any]] = setting(
        [], "where hints stand: components such as { use = 'tool_errors', classes = ['text_not_found'] }; empty is off"
    )
    context: Literal["turn", "errors", "solution"] = setting(
        "turn",
        "what the teacher reads: hints above their turns; or, above the whole rollout, its errors or the reference",
    )
    weight: float = setting(1.0, "of the divergence, beside the algorithm's loss of the same normaliser", least=0)
    direction: Literal["forward", "reverse", "jsd"] = setting(
        "forward", "forward is KL(hinted || plain); jsd is between the two"
    )
    beta: float = setting(0.5, "jsd: the hinted side's share of the mixture", least=0.01, most=0.99)
    support: Literal["full", "top", "sampled"] = setting(
        "full", "of the divergence: the vocabulary, the student's likeliest and the rest, or the sampled token alone"
    )
    top: int = setting(20, "tokens of support = 'top'", least=1)
    teacher: Literal["live", "ema", "frozen"] = setting(
        "frozen", "whose weights read the hint: those of the start, an average (rl.optim.ema), or those that learn"
    )
    trust: float = setting(0.0, "share of the live weights' logits mixed into the teacher's", least=0, most=1)
    clip: float = setting(0.0, "most that one token's divergence counts, nats; 0 is no bound", least=0)
    ratio: float = setting(
        2.0, "most that p(learner) / p(sampler) multiplies a token's divergence; 0 leaves the ratio out", least=0
    )
    warmup: int = setting(0, "steps over which the weight rises", least=0)
    hold: int = setting(0, "steps before the weight begins to fall, with decay", least=0)
    decay: int = setting(0, "steps over which the weight falls to 0; 0 keeps it", least=0)
    filter: bool = setting(True, "leave hints out that do not make the turn's tokens less likely in the mean")
    cap: int = setting(2, "hinted turns of one rollout: of every kind the first, then the second", least=1)
    routing: Literal["free", "replay"] = setting(
        "free", "experts of the hinted turn: chosen by the teacher, or those that the engine chose without the hint"
    )


@dataclass(frozen=True)
class RLSettings:
    """Asynchronous reinforcement learning on groups of rollouts."""

    model: str = setting("", "checkpoint to start from; empty takes this run's supervised fine-tuning")
    tasks: dict[str, Any] = setting({"use": "katas", "split": "train"}, "task source; every task is used once")
    first_task: int = setting(0, "tasks of the source left out at its beginning: those that were demonstrated", least=0)
    steps: int = setting(60, "optimiser steps; 0: `etude run` goes from fine-tuning to the report", least=0)
    seconds: float = setting(
        0.0,
        "stop after this wall time, with which a schedule that decays ends, or at the last step; 0 is no limit",
        least=0,
    )
    groups: int = setting(8, "groups in one optimiser step", least=1)
    group: int = setting(8, "rollouts of one task", least=1)
    concurrency: int = setting(64, "rollouts in flight", least=1)
    staleness: int = setting(2, "most steps between the version that began a rollout and the one it trains", least=0)
    algorithm: dict[str, Any] = setting(
        {"use": "dr_grpo"},
        "dr_grpo, grpo, rloo, dapo, gspo, cispo, single_rollout, sdpo, sdft, opsd or ./mine.py:Mine",
    )
    correction: Literal["auto", "none", "truncate", "mask", "clip"] = setting(
        "auto", "what is done about tokens that older weights sampled; auto: what the algorithm says, or truncate"
    )
    correction_level: Literal["token", "sequence", "rollout"] = setting(
        "token", "ratios of single tokens, of segments or of whole rollouts (the last two are geometric means)"
    )
    correction_low: float = setting(0.0, "lower bound of the importance ratio", least=0)
    correction_high: float = setting(2.0, "upper bound of the importance ratio", least=0)
    kl: float = setting(0.0, "weight of the KL divergence from the starting model; 0 is off", least=0)
    kl_estimator: Literal["k1", "k2", "k3"] = setting(
        "k1", "k1 is taken from the reward; k2 (reverse KL) and k3 (forward KL) are a stream for each token"
    )
    normaliser: int = setting(
        220, "tokens that stand for a rollout's length in the loss: a constant, whatever the limits are", least=1
    )
    not_finite: int = setting(3, "steps in a row with a gradient that is not finite before the run stops", least=1)
    # Healthy runs stay below 0.05. One with twice the rate that its size bears went from 0.02 to 0.5 in twelve steps,
    # and from 40% of its tasks to none (docs/log/2026-11.md).
    drift_k3: float = setting(
        0.5, "k3 of learner and sampler on what is trained: above it for three steps the run stops; 0 never", least=0
    )
    feedback: FeedbackSettings = setting(FeedbackSettings(), "targeted textual feedback, beside the algorithm")
    monitor: list[dict[str, Any]] = setting(
        [{"use": "tool_errors"}, {"use": "questions"}, {"use": "thinking_in_comments"}],
        "behaviours whose rates are logged; those of rewards and feedback always are",
    )
    overlong: Literal["keep", "mask"] = setting(
        "keep", "rollouts stopped by a limit: trained like others, or not at all"
    )
    temperature: float = setting(1.0, "of the sampler; the learner applies the same", least=0.01)
    eval_every: int = setting(20, "steps between evaluations on held-out tasks; 0 turns them off", least=0)
    eval_tasks: int = setting(32, "held-out tasks of one evaluation", least=1)
    eval_samples: int = setting(1, "rollouts of each", least=1)
    save_every: int = setting(20, "steps between checkpoints", least=1)
    keep_trajectories: int = setting(200, "newest rollouts kept readable on disk once they are trained", least=0)
    ready_bytes: int = setting(
        1 << 30,
        "bytes of finished rollouts that wait for the learner in memory; others wait on the disk",
        least=0,
    )
    replay: bool = setting(True, "the learner routes tokens to the experts that the engine chose (models with experts)")
    plausible: float = setting(
        0.5,
        "a replayed expert must score at least so many times the router's own last choice, or that one's next is taken",
        least=0,
        most=1,
    )
    probe_tokens: int = setting(512, "tokens at each publish on which learner and engine are compared", least=64)
    # Over 102 publishes of a CPU run the mean was 7.3e-7 at worst and the maximum 4.7e-5 (docs/log/2026-11.md).
    probe_mean: float = setting(1e-5, "largest mean difference of log-probabilities before the run stops", least=0)
    probe_max: float = setting(1e-3, "largest single difference before the run stops", least=0)
    probe_p99: float = setting(
        0.0, "largest 99th percentile of the differences before the run stops; 0 takes ten times probe_mean", least=0
    )
    probe_k3: float = setting(
        0.0,
        "largest mean k3 of engine and learner before the run stops; 0 takes 5 times probe_mean squared",
        least=0,
    )
    probe_real_tokens: int = setting(
        1024, "tokens of real rollouts scored at each step for the same comparison; 0 turns it off", least=0
    )
    start_seconds: float = setting(120.0, "wait for engine and learner to start", least=1)
    engine_seconds: float = setting(60.0, "wait for the engine's answer to anything but a sample", least=1)
    learner_seconds: float = setting(
        600.0, "wait for the learner to finish one verb, such as a step's gradients", least=1
    )
    slack_seconds: float = setting(
        120.0, "beyond the longest that a turn, all tools and a grade may take before a quiet run is an error", least=0
    )
    retries: int = setting(2, "times a rollout that the machinery spoiled is tried again", least=0)
    micro_tokens: int = setting(4096, "tokens in one forward and backward", least=2)
    concurrent: bool = setting(True, "sample and learn at once; off alternates, both threads for each phase")
    # 250 s from the same model (42.5%) on held-out tasks: 3e-4 gave 58%, 6e-4 41%, 1.2e-3 10%, 2.5e-3 0%.
    optim: RLOptimSettings = setting(
        RLOptimSettings(matrices="adamw", lr=3e-4, schedule="constant", weight_decay=0.0), "optimiser"
    )
    lora: LoraSettings = setting(LoraSettings(), "low-rank adapters")

    @property
    def rate_by_clock(self) -> bool:
        """Whether the learning rate decays towards the end of the seconds: a step that is repeated has another rate."""
        return bool(self.seconds) and self.optim.schedule != "constant"
