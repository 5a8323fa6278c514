"""Stages that end by their seconds: how many steps fit, and a run that stops, is finished and is not begun again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from etude.core.progress import LastStep, last_step
from etude.core.run import Run
from etude.core.run_files import read_facts, read_metrics
from etude.core.settings import PretrainSettings, RunSettings
from etude.learn.loop import TimeBudget
from etude.learn.pretrain import pretrain
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder
from etude.tokens.tokenizer import Tokenizer
from tests.learn.lines import Lines

TEXT = Path(__file__).read_text()
SETTINGS = PretrainSettings(steps=50, batch_tokens=60, micro_tokens=60, sequence=30, eval_every=0, seconds=1e-6)


def test_the_last_step_is_the_last_that_fits() -> None:
    assert last_step(10, 100, left=20.0, each=2.0) == 20
    assert last_step(10, 15, left=20.0, each=2.0) == 15  # never more than were planned
    assert last_step(10, 100, left=0.5, each=2.0) == 11  # some time is left: one more
    assert last_step(10, 100, left=0.0, each=2.0) == 10
    assert last_step(1, 100, left=20.0, each=0.0) == 100  # after the first step nothing is known


def test_the_last_step_follows_the_speed_behind_the_first() -> None:
    last = LastStep(100.0, 1000)
    assert last.after(0, 40.0) == 1000  # the first one prepares what all need, and is not timed
    assert last.after(1, 42.0) == 1 + 29 and last.after(12, 52.0) == 12 + 48
    assert LastStep(100.0, 1000, each=2.0).after(10, 40.0) == 10 + 30  # goes on from an earlier command
    assert LastStep(0.0, 1000, each=2.0).after(10, 40.0) == 1000  # no seconds are no limit


def test_a_stage_that_continues_knows_its_last_step_before_its_first(tmp_path: Path) -> None:
    """Else its rate would jump back to that of all planned steps."""
    with Run.open(tmp_path / "run", {}) as run:
        for step in range(1, 5):
            run.log("pretrain", step, seconds=1e6 * step)
        learner: Any = SimpleNamespace(steps=4, total_steps=1000)
        budget = TimeBudget(1e7, learner, run, "pretrain")
        assert learner.total_steps == 10
        learner.steps = 5  # the first step here says nothing of the others
        budget.fit()
        assert learner.total_steps in (10, 11)  # it took next to none of the time
        new: Any = SimpleNamespace(steps=0, total_steps=1000)
        TimeBudget(1e7, new, run, "sft")
        assert new.total_steps == 1000


def test_time_shorter_than_a_hundredth_of_a_second_is_time_too(tmp_path: Path) -> None:
    with Run.open(tmp_path / "run", {}) as run:
        learner: Any = SimpleNamespace(steps=0, total_steps=50)
        budget = TimeBudget(1e-9, learner, run, "pretrain")
        learner.steps = 1
        budget.fit()
        assert learner.total_steps == 1


def test_a_stage_out_of_time_is_finished_with_the_steps_it_had(tmp_path: Path) -> None:
    Tokenizer.train([TEXT], 300).save(tmp_path / "tokenizer")
    tokenizer = Tokenizer.load(tmp_path / "tokenizer")
    decoder = Decoder(ModelConfig(tokenizer.vocab_size, 16, 24, 1, 2, 1, 8), seed=1)
    with Run.open(tmp_path / "run", {}) as run:
        last = pretrain(
            run, decoder, Lines(tokenizer, TEXT), None, SETTINGS, RunSettings(threads=1), tmp_path / "tokenizer"
        )
    facts = read_facts(tmp_path / "run")["stages"]["pretrain"]
    assert last.name == "pretrain-0000001"
    assert facts["facts"]["steps"] == 1
    assert facts["facts"]["seconds"] > 0
    assert [row["step"] for row in read_metrics(tmp_path / "run") if "seconds" in row] == [1]


def test_seconds_of_earlier_commands_count(tmp_path: Path) -> None:
    Tokenizer.train([TEXT], 300).save(tmp_path / "tokenizer")
    tokenizer = Tokenizer.load(tmp_path / "tokenizer")
    settings = replace(SETTINGS, seconds=1e9, steps=6)
    for stop_after, expected in ((2, 2), (None, 2)):
        decoder = Decoder(ModelConfig(tokenizer.vocab_size, 16, 24, 1, 2, 1, 8), seed=1)
        with Run.open(tmp_path / "run", {}) as run:

            class Stopping(Lines):
                taken = 0

                def take(self, tokens: int) -> list:
                    self.taken += 1
                    run.stopping = self.taken == stop_after  # noqa: B023
                    return super().take(tokens)

            last = pretrain(
                run, decoder, Stopping(tokenizer, TEXT), None, settings, RunSettings(threads=1), tmp_path / "tokenizer"
            )
        assert run.step_of(last) == expected
        if stop_after:  # as if these two steps had taken longer than the whole stage may
            file = tmp_path / "run" / "metrics.jsonl"
            file.write_text(file.read_text().replace('"seconds": ', '"seconds": 9999999999'))
