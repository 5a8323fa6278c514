"""A run directory as a whole quickstart would leave it: real tasks, invented but plausible curves and rollouts.

`python tests/bench/conftest.py FOLDER` makes one and writes its report, to look at.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from etude.bench.base.model_under_test import ModelUnderTest
from etude.bench.result import BenchResult, Counts, Shown, TaskRow, TaskSet, Turn, save_result
from etude.core import recipe as recipes
from etude.core.policy import Assistant
from etude.core.run import Run
from etude.forge.katas.task_source import Katas
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder
from etude.model.packed_forward import Packed
from etude.policies.scripted import reference, stub
from etude.rollout.trained_tasks import TrainedTasks, task_identity
from etude.tasks.format.task import Task
from etude.tokens.tokenizer import Tokenizer

HOSTILE = "</pre></style><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m\u202e & \"quoted\" 'too'"


def make_run(path: Path, *, stages: str = "corpus pretrain demos sft rl", arms: bool = True, text: str = "") -> Path:
    """A finished run up to the last of `stages`. `text` is put wherever a file or a model can speak."""
    recipe = recipes.load("nano", [f"about={json.dumps(text)}"] if text else [])
    done = stages.split()
    with Run.open(path, recipes.to_dict(recipe)) as run:
        rng = np.random.default_rng(7)
        if "corpus" in done:
            run.finish("corpus", seconds=21.4, documents=1412)
        if "pretrain" in done:
            _losses(run, "pretrain", 300, 6.9, 2.35, rng)
            run.finish("pretrain", seconds=142.0)
        if "demos" in done:
            run.finish("demos", seconds=31.8, demonstrations=1000)
        if "sft" in done:
            _losses(run, "sft", 180, 2.1, 0.31, rng)
            run.finish("sft", seconds=96.5)
            run.finish("bench-sft", seconds=38.0)
            save_result(make_result("sft", 0.31, text=text), path / "bench" / "sft.json")
        if "rl" in done:
            listed = TrainedTasks(path)
            for task in islice(Katas(Katas.Settings(split="train")).tasks(), 12):
                listed.add(task, "rl")
            _learning(run, 60, rng)
            run.finish("rl", seconds=421.0, text=text)
            run.finish("bench-rl", seconds=41.3)
            save_result(make_result("rl", 0.52, text=text), path / "bench" / "rl.json")
            if arms:
                save_result(make_result("sft-more", 0.37, text=text), path / "bench" / "sft-more.json")
    return path


def _losses(run: Run, stage: str, steps: int, start: float, end: float, rng: np.random.Generator) -> None:
    for step in range(1, steps + 1):
        loss = end + (start - end) * math.exp(-step / (steps / 6)) + rng.normal(0, 0.05)
        run.log(stage, step, loss=loss, grad_norm=1.0, lr=1e-3, tokens_per_second=21_000)
        if stage == "pretrain" and step % 100 == 0:
            run.log(stage, step, held_out_loss=loss + 0.12, held_out_bits_per_byte=1.4)


def _learning(run: Run, steps: int, rng: np.random.Generator) -> None:
    for step in range(1, steps + 1):
        done = step / steps
        rate = 0.3 + 0.24 * done + rng.normal(0, 0.045)
        busy = 0.78 + rng.normal(0, 0.03)
        values: dict[str, Any] = {
            "reward": rate - 0.05,
            "reward_tests": rate,
            "reward_effort": -0.2 - 0.05 * done + rng.normal(0, 0.01),
            "pass_rate": rate,
            "groups": 8,
            "zero_variance": int(rng.integers(1, 4)),
            "rollouts": 64,
            "sampled_tokens": 64 * int(67 - 9 * done),
            "rollout_tokens": 192 - 14 * done + rng.normal(0, 2.5),
            "turns": 3.1 - 0.3 * done + rng.normal(0, 0.08),
            "tool_errors": max(0.0, 0.4 * (1 - done) + rng.normal(0, 0.04)),
            "staleness_mean": min(2.0, step) * 0.55 + rng.normal(0, 0.05),
            "staleness_max": min(2, step - 1),
            "drift_mean": 0.012 * (1 + done) + abs(rng.normal(0, 0.002)),
            "drift_p99": 0.19 * (1 + done) + abs(rng.normal(0, 0.03)),
            "grad_norm": 0.8 + abs(rng.normal(0, 0.15)),
            "probe_mean": 10 ** rng.normal(-6.5, 0.08),
            "probe_max": 10 ** rng.normal(-5.2, 0.15),
            "seconds": 6.9 + rng.normal(0, 0.4),
            "learner_busy": busy,
            "engine_busy": 0.88 + rng.normal(0, 0.02),
            "wait_data": 1 - busy - 0.04,
            "wait_learner": 0.05 + abs(rng.normal(0, 0.01)),
            "cpu_learner": busy,
            "cpu_engine": 0.88,
            "cpu_sandboxes": 0.24 + rng.normal(0, 0.02),
            "void": int(step in (7, 31)),
            "note": "text is no curve",
        }
        run.log("rl", step, **values)
        if step % 10 == 0 or step == 1:
            run.log("rl.eval", step, pass_rate=0.31 + 0.21 * done + rng.normal(0, 0.02))
    run.log("rl", steps + 1, reward=math.nan)


def make_result(name: str, rate: float, *, count: int = 100, samples: int = 4, text: str = "") -> BenchResult:
    """A benchmark of real katas where difficulties belong to the task, so that two results are paired as real ones."""
    rows: list[TaskRow] = []
    sets: list[tuple[TaskSet, int]] = [("held_out", count), ("unseen", 20)]
    for which, size in sets:
        source = Katas(Katas.Settings(split=which))
        for place, task in enumerate(islice(source.tasks(), size)):
            hard = np.random.default_rng(place).normal(0, 1.6)
            level = math.log(rate / (1 - rate)) - (0.9 if which == "unseen" else 0.0)
            rng = np.random.default_rng([place, *name.encode()])
            passed = [bool(each) for each in rng.random(samples) < 1 / (1 + math.exp(hard - 1.4 * level))]
            tokens = [int(each) for each in rng.normal(88 if name == "sft" else 77, 12, samples).clip(10)]
            shown = make_shown(task, passed[0], tokens[0], text)
            family = task.facts.family
            rows.append(
                TaskRow(
                    *(task.name, task.digest, which, family, task.facts.level, list(passed), list(tokens), shown),
                    identity=task_identity(task),
                )
            )
    counts: dict[TaskSet, Counts] = {}
    for which, size in sets:
        rollouts = size * samples
        stops = {"finish": rollouts - 9, "tokens": 4, "malformed": 2, "turns": 3}
        errors = {"InvalidArguments": 11, "UnexpectedEnvironment": 37 if name == "sft" else 14}
        counts[which] = Counts(
            rollouts, rollouts * 3, 28 if name == "sft" else 9, 6, rollouts * 3, 40, errors, {}, stops
        )
    return BenchResult(name + text, samples, 1, 1.0, "local", 38.4, rows, counts, void=1, retried=2)


def make_shown(task: Task, passed: bool, tokens: int, text: str) -> Shown:
    """The reference or a bluff, as a model would have said it."""
    script: list[Assistant] = reference(task, 3) if passed else stub(task)
    turns = [
        Turn("system", "Change the code in this folder as the user asks." + text),
        Turn("user", task.instruction + text),
    ]
    for said in script:
        calls = [(call.name, {key: value + text for key, value in call.arguments.items()}) for call in said.calls]
        turns.append(Turn("assistant", said.final, said.thinking + text, calls))
        turns += [_answer(task, call.name, dict(call.arguments), text) for call in said.calls if call.name != "finish"]
    return Shown(turns, passed, "finish", "" if passed else "2 of 5 tests failed" + text, tokens)


def _answer(task: Task, name: str, arguments: dict[str, str], text: str) -> Turn:
    path = arguments.get("path", "")
    if name == "read" and path in task.workspace:
        return Turn("tool", task.workspace.text(path) + text, name=name)
    return Turn("tool", f"{name} done{text}", name=name + text, error="" if name != "read" else "UnexpectedEnvironment")


@pytest.fixture
def fake_run(tmp_path: Path) -> Callable[..., Path]:
    def make(name: str = "quickstart", **options: Any) -> Path:
        return make_run(tmp_path / name, **options)

    return make


@pytest.fixture
def hostile() -> str:
    return HOSTILE


@pytest.fixture(scope="session")
def plain_tokenizer() -> Tokenizer:
    """Bytes and little more."""
    return Tokenizer.train(["def area_limit(page):\n    return page + 1\n=== end\nassert BRIGHT_RIVER == 1\n"] * 9, 330)


@pytest.fixture
def make_tested(plain_tokenizer: Tokenizer) -> Callable[..., ModelUnderTest]:
    """A tiny random model to be evaluated."""

    def make(seed: int = 0, positions: int = 1024) -> ModelUnderTest:
        size = plain_tokenizer.vocab_size
        config = ModelConfig(size, 48, 96, 2, 4, 2, 12, max_position_embeddings=positions)
        return ModelUnderTest(Decoder(config, seed), plain_tokenizer, batch_tokens=512)

    return make


@pytest.fixture
def teach() -> Callable[..., None]:
    """Trains a tested on sequences for a second or two: plain next-token loss, all of them at every step."""

    def train(tested: ModelUnderTest, sequences: Sequence[Sequence[int]], steps: int = 60) -> None:
        decoder = tested.decoder
        optimiser = torch.optim.AdamW(decoder.parameters(), lr=5e-3)
        for _ in range(steps):
            packed = Packed(decoder, [np.array(ids) for ids in sequences])
            ends = np.cumsum(packed.lengths) - 1
            rows = torch.tensor(np.delete(np.arange(len(packed.tokens_T)), ends))
            logits = decoder.logits(packed.hidden()[0][rows])
            loss = torch.nn.functional.cross_entropy(logits, packed.tokens_T[rows + 1])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()

    return train


if __name__ == "__main__":
    from etude.bench.report.page import write_report
    from etude.bench.run_results import write_results

    target = Path(sys.argv[1])
    make_run(target)
    write_results(target)
    sys.stdout.write(f"{write_report(target)}\n")
