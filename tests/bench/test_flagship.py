"""The flagship's script goes on with the second way of a step that failed, in this command or the next."""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from benchmarks.flagship import Flagship
from benchmarks.flagship_rate import lower_rate
from benchmarks.flagship_state import rl_seconds
from etude.core import recipe as recipes
from etude.core.run import Run


def flagship(work: Path, until: float = 1e9) -> Flagship:
    return Flagship(
        argparse.Namespace(
            work=work, out=work / "out", until=until, size="tiny", ladder=None, held_out=None, demos=None, overrides=[]
        )
    )


def test_a_second_way_without_time_waits_for_the_next_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def etude(self: Flagship, name: str, words: Sequence[str], most: float) -> tuple[str, float]:
        ran.append(words[0])
        if words[0] == "first":
            self.until = 0.0  # it took all that the command had
            return "failed", 1.0
        return "done", 1.0

    monkeypatch.setattr(Flagship, "etude", etude)
    ways = [["first"], ["second"]]
    assert not flagship(tmp_path).step("pretrain", ways, 100, 60)
    assert flagship(tmp_path).step("pretrain", ways, 100, 60)
    assert ran == ["first", "second"]


@pytest.mark.parametrize("code", ["raise SystemExit(1)", "pass"])
def test_demonstrations_that_fail_are_made_without_the_ladder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    ran: list[str] = []

    def etude(self: Flagship, name: str, words: Sequence[str], most: float) -> tuple[str, float]:
        ran.append(words[-1])
        return "done", 1.0

    monkeypatch.setattr(Flagship, "etude", etude)
    run = flagship(tmp_path)
    run.beside["demos"] = subprocess.Popen([sys.executable, "-c", code]), 0.0
    assert run.join_demos() and run.state.ok("demos")
    assert ran == ([] if code == "pass" else ["--fresh"])


def ladder_task(folder: Path, split: str) -> None:
    """The least that is read of a task of the ladder."""
    folder.mkdir(parents=True)
    (folder / "task.toml").write_text(f'version = "1.0"\n\n[metadata.etude]\nrung = 1\nsplit = "{split}"\n')
    (folder / "instruction.md").write_text("fix it\n")


def test_a_ladder_that_is_made_meanwhile_is_learnt_from_apart_and_its_packages_are_never_read(tmp_path: Path) -> None:
    run = flagship(tmp_path)
    run.ladder, run.held_out = tmp_path / "ladder", ["never_seen"]
    assert run.ladder_there("held_out") == 0 and "'ladder'" not in str(run.task_words("rl"))
    ladder_task(run.ladder / "never-seen" / "a", "held_out")
    ladder_task(run.ladder / "other" / "b", "train")
    ladder_task(run.ladder / "other" / ".c.making", "train")
    assert run.ladder_there("held_out") == run.ladder_there("train") == 1
    (demos,), (rl,) = run.task_words("demos"), run.task_words("rl")
    assert 'use = "ladder"' in rl and 'use = "ladder"' not in demos
    for words in (demos, rl, run.words()[-1]):
        assert 'without = ["never_seen"]' in words
    run.demo_file.parent.mkdir()
    run.demo_file.write_text("katas\n")
    assert run.learnt_file == run.demo_file
    (tmp_path / "demos-ladder").mkdir()
    (tmp_path / "demos-ladder" / "demos.jsonl").write_text("ladder\n")
    assert run.learnt_file.read_text() == "katas\nladder\n"


def test_reinforcement_learning_takes_what_the_evaluations_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Flagship, "left", 480.0)
    run = flagship(tmp_path)
    run.tiny, run.settings = False, recipes.load("flagship")
    run.state.note("eval-sft-katas", 40.0, status="done")
    run.state.note("eval-sft-ladder", 100.0, status="done")
    assert run.rl_budget() == pytest.approx(480 - 1.15 * 140 - 30 - run.limits.start / 2)


class Looks(threading.Event):
    """Looks at a clock that does not wait: before each of them something happens."""

    def __init__(self, before: Sequence[Callable[[], object]]) -> None:
        super().__init__()
        self.before = iter(before)

    def wait(self, timeout: float | None = None) -> bool:
        happens = next(self.before, None)
        if happens is not None:
            happens()
        return happens is None


def test_the_learning_rate_falls_by_the_clock_of_the_run_not_of_the_command(tmp_path: Path) -> None:
    """A run that has not begun has no folder, and one that a command stopped has no facts of its stage."""
    folder, said = tmp_path / "rl", list[str]()
    with Run.open(folder, {}) as run:

        def trained(seconds: float) -> None:
            run.log("rl", 1, seconds=seconds)
            run.log("rl.eval", 1, seconds=50.0)  # beside training
            with run.checkpoint("rl", 1) as saved:
                (saved / "file").touch()

        steps = [partial(trained, seconds) for seconds in (64.0, 2.0, 10.0, 5.0, 12.0)]
        lower_rate(lambda: tmp_path / "none", 1.0, 100.0, Looks([lambda: None]), said.append)
        lower_rate(lambda: folder, 1.0, 100.0, Looks(steps), said.append)
    assert said == [f"rl: learning rate {factor}" for factor in (0.5, 0.25, 0.1)]
    assert rl_seconds(folder) == 93.0
    lower_rate(lambda: folder, 1.0, 100.0, Looks([lambda: None]), said.append)  # the next command goes on
    assert said[3:] == ["rl: learning rate 0.1"]
    assert (folder / "live.toml").read_text() == "[rl.optim]\nlr = 0.1\n"
