"""Pretraining that begins with a checkpoint somebody brings: against a plain loop around `transformers`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from etude.core.run import Run
from etude.core.run_files import read_metrics
from etude.core.settings import ComputeSettings, OptimSettings, PretrainSettings, RunSettings
from etude.learn.pretrain import pretrain
from etude.model.checkpoint.directory import load_model
from tests.model.test_shapes import COMMON, written_by_transformers

STEPS, LR = 20, 1e-3
WARMUP = 4  # steps
OPTIM = OptimSettings(
    matrices="adamw", lr=LR, schedule="constant", warmup=WARMUP / STEPS, weight_decay=0.0, balance=0.0
)
MACHINE = RunSettings(threads=1, compute=ComputeSettings(precision="float32"))


class Drawn:
    """Three sequences of different lengths for every step."""

    def __init__(self) -> None:
        self.step = 0

    def take(self, tokens: int) -> Sequence[np.ndarray]:
        self.step += 1
        random = np.random.default_rng(self.step)
        # Few different tokens, so that there is something to learn in 20 steps.
        return [random.integers(0, COMMON["vocab_size"] // 4, length) for length in (40, 33, 23)]

    def position(self) -> dict[str, Any]:
        return {"step": self.step}

    def seek(self, position: Mapping[str, Any]) -> None:
        self.step = position["step"]


def by_transformers(model: Any) -> list[float]:
    """The same training in a few lines: AdamW, clipped gradients, warm-up."""
    model.train()
    optimiser = torch.optim.AdamW(model.parameters(), betas=OPTIM.betas, eps=OPTIM.eps, weight_decay=0.0)
    losses, documents = [], Drawn()
    for step in range(STEPS):
        sequences = [torch.tensor(ids) for ids in documents.take(0)]
        predicted = sum(len(ids) - 1 for ids in sequences)
        optimiser.zero_grad()
        total = 0.0
        for ids in sequences:
            logits = model(ids[None]).logits[0, :-1]
            loss = torch.nn.functional.cross_entropy(logits, ids[1:], reduction="sum") / predicted
            loss.backward()
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(model.parameters(), OPTIM.clip)
        optimiser.param_groups[0]["lr"] = LR * min(1.0, (step + 1) / (WARMUP + 1))
        optimiser.step()
        losses.append(total)
    return losses


@pytest.mark.parametrize("name", ["qwen2", "qwen3 tied", "qwen3_moe", "deepseek_v3", "kimi_k2"])
def test_losses_are_those_of_a_plain_loop_around_transformers(
    name: str, tmp_path: Path, template_models: dict[str, Path]
) -> None:
    theirs = written_by_transformers(name, tmp_path / "model")
    settings = PretrainSettings(
        steps=STEPS, batch_tokens=96, micro_tokens=64, eval_every=0, save_every=STEPS, optim=OPTIM
    )
    with Run.open(tmp_path / "run", {}) as run:
        decoder = load_model(tmp_path / "model")
        pretrain(run, decoder, Drawn(), None, settings, MACHINE, template_models["qwen3"])
    ours = [row["loss"] for row in read_metrics(tmp_path / "run") if "loss" in row]
    wanted = by_transformers(theirs)
    assert wanted[-1] < wanted[0] - 0.1  # it learns
    assert np.abs(np.subtract(ours, wanted)).max() < 1e-4
