"""What the report says of training rollouts, and the same report as Markdown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from etude.bench.report.page import MARKDOWN, write_report
from etude.core import recipe as recipes
from etude.core.run import Run
from etude.forge.katas.task_source import Katas
from etude.policies.scripted import scripted
from etude.rollout.rollout import RolloutSetup, build_setup, run_rollout
from etude.rollout.store import save_rollout


def test_the_report_has_rollouts_tasks_and_verdicts_of_training(
    fake_run: Callable[..., Path], sandboxes: tuple[object, object], hostile: str
) -> None:
    run = fake_run()
    loop, host = sandboxes
    task = next(Katas(Katas.Settings(split="train", levels=[1])).tasks())  # type: ignore[call-arg]
    recipe = recipes.load(None)
    setup: RolloutSetup = build_setup(recipe.harness, recipe.reward, recipe.grader, recipe.audit)
    for number, policy in enumerate(("reference", "null")):
        outcome = loop.run_until_complete(run_rollout(task, scripted(policy, task), host, setup))  # type: ignore[attr-defined]
        save_rollout(outcome, run / "rl" / "trajectories", f"00000{number}-00-0")
    with Run.open(run, recipes.to_dict(recipes.load("nano"))) as opened:
        opened.log("rl.task", 60, task=hostile, passed=0, rollouts=8)
        opened.log("rl.task", 60, task="easy", passed=8, rollouts=8)
        opened.log("rl", 60, reward=0.5, verdict_clean=30, verdict_hack=2)
    text = write_report(run).read_text()
    for wanted in (
        *("What the agent did in training", "2 tasks: 1 never passed, 1 always did.", "Audit of training rollouts"),
        *("Newest training rollouts", "000001-00-0", f"passed: {task.name}", f"failed: {task.name}", "94%"),
        "stopped by finish: the agent said that it was done",
    ):
        assert wanted in text, wanted
    assert "<script>" not in text
    plain = (run / MARKDOWN).read_text()
    for wanted in ("# quickstart", "Reinforcement learning raised pass@1", "| rl (after RL) |", "30 clean, 2 hack"):
        assert wanted in plain, wanted
    assert "2 tasks, 1 never passed" in plain and "<script>" not in plain and "\x1b" not in plain
    rows = [line for line in plain.splitlines() if line.startswith("|")]
    assert rows and all(line.endswith("|") for line in rows)


def test_every_curve_answers_the_pointer(fake_run: Callable[..., Path]) -> None:
    text = write_report(fake_run()).read_text()
    assert text.count('class="hover"') > 400 and "<title>in training, " in text
