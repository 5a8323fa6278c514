"""Tasks are made from a JavaScript repository, pass their gates, and cannot be solved by cheating."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from etude.core.errors import EtudeError
from etude.forge.pipeline.make import make_tasks
from etude.forge.steps.context import MakeRequest
from etude.policies.table import make_policy
from etude.rollout.rollout import Scored, build_setup, run_rollout
from etude.tasks.check import check
from etude.tasks.environment.layers import task_layers, task_variables
from etude.tasks.format.task import Task
from etude.tasks.grade import grade
from etude.tasks.grading.submission import submission_of
from etude.tasks.grading.test_plan import draw
from redteam.grader.javascript_attacks import AT_LOAD, IN_CALLS, TOLD_APART, javascript_attacks
from redteam.grader.run_forgers import with_its_answers
from tests.forge.javascript_repository import FILES, Bench, Shop


@pytest.fixture(scope="session")
def tasks(script_made: Any) -> list[Task]:
    journal, out = script_made
    return [Task.load(out / name) for name in journal.tasks]


def test_a_small_repository_gives_tasks(script_made: Any, tasks: list[Task]) -> None:
    journal, _ = script_made
    assert len(tasks) == 2, journal.rejected
    for task in tasks:
        facts = task.facts
        assert facts.suite == "node" and facts.fail_to_pass and facts.held_out
        asked = [*facts.fail_to_pass, *facts.held_out]
        assert len(facts.held_out) >= 0.3 * len(asked)
        assert not set(asked) & set(facts.pass_to_pass)
        assert "lib/*.js" in facts.allowed_paths
        assert {f"instructions/{name}.md" for name in ("terse", "plain", "detailed")} <= set(task.files)


def test_what_is_missing_throws_and_hidden_tests_are_gone(tasks: list[Task]) -> None:
    for task in tasks:
        for symbol in task.facts.deleted:
            path, _, name = symbol.partition(":")
            left = task.workspace.text(path)
            assert left != FILES[path] and task.solution.text(path) == FILES[path]
            assert "throw new Error('not implemented')" in left or name.rpartition(".")[2] not in left
        for test in task.facts.held_out:
            path, _, name = test.partition("::")
            title = name.rpartition(" > ")[2]
            shown = task.workspace.text(path) if path in task.workspace else ""
            assert f"'{title}'" not in shown and task.tests.text(path) == FILES[path]
        for test in task.facts.fail_to_pass:
            assert test.partition("::")[0] in task.workspace


def test_a_made_task_passes_the_check_that_needs_no_repository(bench: Bench, tasks: list[Task]) -> None:
    report = bench.run(check(tasks[0], bench.host))
    assert report.ok, report.problems
    assert [trial.answer for trial in report.trials if trial.answer.startswith("stub")] == [
        *("stub undefined", "stub null", "stub true", "stub []")
    ]


@pytest.mark.parametrize(("policy", "passed"), [("reference", True), ("null", False), ("stub", False)])
def test_an_attempt_is_scored(bench: Bench, tasks: list[Task], policy: str, passed: bool) -> None:
    task = tasks[0]
    outcome = bench.run(run_rollout(task, make_policy(policy, task, None, 0), bench.host, build_setup()))
    assert isinstance(outcome, Scored) and outcome.passed is passed, outcome


def test_an_agent_can_run_the_visible_tests_and_finds_no_packages_of_the_host(bench: Bench, tasks: list[Task]) -> None:
    task = tasks[0]

    async def look() -> tuple[bytes, bytes]:
        async with await bench.host.start(task_layers(task, bench.host), env=task_variables(task)) as sandbox:
            run = await sandbox.run(["node", "--test", "--test-reporter=tap"])
            npm = await sandbox.run(["ls", "/usr/lib/node_modules"])
            return run.stdout, npm.stdout

    run, npm = bench.run(look())
    assert b"\n# pass " in run and b"\n# fail 0\n" not in run
    assert npm == b""


@pytest.mark.parametrize("name", [*AT_LOAD, *IN_CALLS, TOLD_APART])
def test_no_attack_is_accepted(bench: Bench, tasks: list[Task], name: str) -> None:
    files = javascript_attacks(tasks[0])[name]
    found = bench.run(grade(tasks[0], bench.host, submission_of(tasks[0], files), quick=True))
    assert not found.passed, found


@pytest.mark.parametrize("name", ["a report that is forged", "a bent framework", TOLD_APART])
def test_who_forges_is_known_where_tests_hold_their_answers(bench: Bench, tasks: list[Task], name: str) -> None:
    task = with_its_answers(tasks[0])
    found = bench.run(grade(task, bench.host, submission_of(task, javascript_attacks(task)[name])))
    assert not found.passed and found.kind in ("tampering", "tests")
    assert found.kind == "tampering" or name == TOLD_APART


def test_tests_are_without_their_answers(bench: Bench, tasks: list[Task]) -> None:
    for task in tasks:
        withheld = task.facts.withheld
        assert task.facts.grading == "recorded" and withheld is not None
        assert withheld.bits >= 20 and withheld.unrecorded <= 0.1 * withheld.tests
        plan = draw(task)
        assert len(plan.parts) == 1 and plan.recorded is not None
    # The whole text of a test that was rewritten has nothing of what it expected.
    cart = next(
        text for task in tasks for path, text in draw(task).parts[0].tests.items() if path.endswith("cart.test.js")
    )
    assert "_etude_seen(" in cart and "3 tea 2.50" not in cart and "strictEqual" not in cart.lower()


def test_a_task_of_before_is_refused_with_a_sentence(bench: Bench, tasks: list[Task]) -> None:
    task = with_its_answers(tasks[0])
    old = replace(task, facts=task.facts.model_copy(update={"grading": None}))
    with pytest.raises(EtudeError, match=r"was made when tests held their answers.*make it again"):
        bench.run(grade(old, bench.host, submission_of(old, dict(old.solution))))


def test_one_wrong_value_is_noticed_and_not_told(bench: Bench, tasks: list[Task]) -> None:
    task = next(task for task in tasks if any("lib/cart.js" in each for each in task.facts.deleted))
    wrong = FILES["lib/cart.js"].replace("rows.sort()", "rows").encode()
    found = bench.run(grade(task, bench.host, submission_of(task, {"lib/cart.js": wrong})))
    assert found.kind == "tests" and "test/cart.test.js::sorts lines" in found.details
    assert found.details["test/cart.test.js::sorts lines"].endswith("recorded another value")
    assert found.tests["test/cart.test.js::adds"] == "passed"


def test_what_steers_the_tests_is_not_carried(bench: Bench, tasks: list[Task]) -> None:
    steering = {
        "package.json": b'{"type": "module"}',
        "test/money.test.js": b"",
        "node_modules/x/index.js": b"",
        "lib/.mocharc.js": b"",
        "lib/fast.node": b"",
    }
    changes = submission_of(tasks[0], {**steering, **dict(tasks[0].solution)})
    assert {each.path for each in changes.refused} == set(steering)
    assert bench.run(grade(tasks[0], bench.host, changes)).passed


def test_a_command_that_is_run_again_has_nothing_left_to_do(bench: Bench, script_shop: Shop, script_made: Any) -> None:
    journal, out = script_made
    wanted = MakeRequest(2, out, origins=("deletion",))
    again = bench.run(make_tasks(script_shop.repo, script_shop.environment, bench.host, wanted))
    assert again.tasks == journal.tasks
    lines = [json.loads(line) for line in Path(out / "make.jsonl").read_text().splitlines()]
    assert lines[0]["asked"]["repo"] == "shop" and len(lines) == 1 + len(journal.entries)


def test_what_cannot_be_made_of_scripts_is_said_at_once(bench: Bench, script_shop: Shop, tmp_path: Path) -> None:
    wanted = MakeRequest(3, tmp_path, origins=("deletion", "question"))
    with pytest.raises(EtudeError, match="deletion, bug, commit can be made, not question"):
        bench.run(make_tasks(script_shop.repo, script_shop.environment, bench.host, wanted))
