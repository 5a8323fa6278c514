"""Agents work in the environment of a real repository, and what they leave is graded there."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from etude.forge.environments.environment import Environment, Suite, environment_digest
from etude.policies.table import make_policy
from etude.rollout.rollout import Scored, build_setup, run_rollout
from etude.sandbox.hosts import StoringHost
from etude.tasks.environment.layers import task_layers, task_variables
from etude.tasks.format.config import Installed
from etude.tasks.format.task import Task
from etude.tasks.grade import grade
from etude.tasks.grading.submission import submission_of

Sandboxes = tuple[asyncio.AbstractEventLoop, StoringHost]
MakeTask = Callable[..., Task]


def test_an_agent_finds_the_environments_interpreter_and_can_run_the_visible_tests(
    sandboxes: Sandboxes, repository_task: MakeTask
) -> None:
    loop, host = sandboxes
    task = repository_task()

    async def look() -> tuple[bytes, bytes, bytes]:
        async with await host.start(task_layers(task, host), env=task_variables(task)) as sandbox:
            where = await sandbox.run(["sh", "-c", "command -v python"])
            env = {"PYTHONPATH": "src"}  # a real environment leads to the workspace by itself
            run = await sandbox.run(["python", "-m", "pytest", "-q", "tests"], env=env)
            hidden = await sandbox.run(["grep", "-rl", "test_many", "/workspace", "/opt/env"])
            return where.stdout, run.stdout, hidden.stdout

    where, run, hidden = loop.run_until_complete(look())
    assert where == b"/opt/env/bin/python\n"
    assert b"3 failed, 1 passed, 1 skipped, 1 xfailed" in run
    assert hidden == b""


@pytest.mark.parametrize(("policy", "passed"), [("reference", True), ("null", False)])
def test_an_attempt_at_a_repositorys_task_is_scored(
    policy: str, passed: bool, sandboxes: Sandboxes, repository_task: MakeTask
) -> None:
    loop, host = sandboxes
    task = repository_task()
    outcome = loop.run_until_complete(run_rollout(task, make_policy(policy, task, None, 0), host, build_setup()))
    assert isinstance(outcome, Scored) and outcome.passed is passed


def test_suites_that_import_by_path_and_name_files_alike_are_graded(
    sandboxes: Sandboxes, repository_task: MakeTask, tiny_environment: Environment
) -> None:
    loop, host = sandboxes
    suite = Suite("pytest", ("tests",), ("-o", "addopts=", "--import-mode=importlib"))
    facts: dict[str, Any] = {"suite": suite, "digest": environment_digest(tiny_environment.layer, "", (), suite, {})}
    dataclasses.replace(tiny_environment, **facts).save(host.store.root)
    text = "from shop import Cart, total\n\n\nclass TestCart:\n    class TestFilled:\n        def test_it(self):\n"
    text += "            assert total(Cart().add({0})) == {0}\n"
    tests = {f"tests/{folder}/test_same.py": text.format(number) for number, folder in enumerate("abc", 1)}
    names = [f"{path}::TestCart::TestFilled::test_it" for path in tests]
    task = repository_task(
        tests,
        fail_to_pass=["tests/test_cart.py::test_total"],
        held_out=names,
        environment=Installed(digest=facts["digest"], paths=["src"]),
    )
    for _ in range(2):
        found = loop.run_until_complete(grade(task, host, submission_of(task, dict(task.solution))))
        assert found.passed, (found.reason, found.details)
    null = loop.run_until_complete(grade(task, host, ()))
    assert {null.tests[name] for name in names} == {"failed"}
