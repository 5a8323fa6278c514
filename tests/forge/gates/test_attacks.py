"""Cheats: each one really fools a careless grader, and none of them is a solution."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from _pytest import runner

from etude.core.errors import EtudeError
from etude.forge.gates.attacks.oracles import ALL_SIGNS
from etude.forge.gates.attacks.outside_the_workspace import OUTSIDE
from etude.forge.gates.attacks.table import ATTACKS, attack_script
from etude.forge.katas.task_source import katas
from etude.tasks.format.task import Task

# What an exit code of the suite, run in the workspace that the agent left, is fooled by.
FOOL_UNITTEST = [
    "exit-at-import",
    "exit-in-call",
    "fake-output",
    "exit-by-alarm",
    "exit-at-exit",
    "patched-sys-exit",
    "forked-exit",
    "equal-to-all",
    "equal-text",
    "when-tested",
    "patched-assert",
    "patched-assert-code",
    "patched-base-assert",
    "patched-result",
    "patched-successful",
    "patched-run",
    "patched-live-results",
    "late-thread",
    "skip-at-import",
    "skip-in-call",
    "failure-as-skip",
    "special-case",
    "read-from-caller",
    "read-from-files",
    "forged-channel-and-exit",
    "bytecode-only",
    "poisoned-cache",
    "patched-from-init",
    "edited-tests",
    "deleted-tests",
    "skipped-tests",
    "dropped-by-load-tests",
    "sitecustomize",
    "shadowed-unittest",
    "shadowed-stdlib",
]
FOOL_PYTEST = [
    "patched-pytest",
    "conftest-reports-passed",
    "conftest-skips",
    "conftest-drops",
    "ini-deselects",
    "ini-plugin",
    "pyproject-plugin",
    "tox-plugin",
    "installed-plugin",
    "shadowed-pytest",
]
# Accepted by graders with other holes: a timeout or a missing report that counts as passed, a forged file or verdict.
OTHER = [
    "sys-exit-at-import",
    "sys-exit-in-call",
    "forged-reports",
    "forged-channel",
    "hang",
    "usercustomize",
]


@pytest.fixture(scope="module")
def task() -> Task:
    return next(katas("train", 1, seed=4, levels=[3]))


def leave(task: Task, name: str, folder: Path) -> None:
    """The workspace with a cheat's files in it."""
    task.workspace.write(folder)
    made = ATTACKS[name](task)
    assert isinstance(made, dict)
    for path, data in made.items():
        target = folder / path
        if data is None:
            target.unlink()
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)


def accepts(folder: Path, suite: Sequence[str], **env: str) -> bool:
    """A careless grader."""
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder), **env}
    done = subprocess.run([sys.executable, "-m", *suite], cwd=folder, env=env, capture_output=True, timeout=60)
    no_tests = suite[0] == "unittest" and done.returncode == 5  # said since Python 3.12, where 0 was said before
    return done.returncode == 0 or no_tests


def test_all_families_of_cheats_are_there():
    assert len(ATTACKS) >= 36
    assert {*FOOL_UNITTEST, *FOOL_PYTEST, *OTHER, *OUTSIDE} == set(ATTACKS)


def test_a_careless_grader_accepts_the_cheats_and_not_the_workspace_alone(task, tmp_path):
    task.workspace.write(tmp_path / "plain")
    assert not accepts(tmp_path / "plain", ["unittest"])
    for name in FOOL_UNITTEST:
        leave(task, name, tmp_path / name)
        assert accepts(tmp_path / name, ["unittest"]), name


@pytest.mark.parametrize("name", FOOL_PYTEST)
def test_a_careless_grader_accepts_the_cheats_for_pytest(name, task, tmp_path):
    leave(task, name, tmp_path)
    faster = {} if name == "installed-plugin" else {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    assert accepts(tmp_path, ["pytest", "-q", "-p", "no:cacheprovider"], **faster)


def test_cheats_leave_the_deleted_functions_unsolved(run_all):
    """Carried over honestly and run in plain sight, no cheat that is only code computes the right answers."""
    few = list(katas("held_out", 12, seed=3))
    honest = ["patched-assert", "special-case", "forged-channel", "skip-in-call", "patched-from-init", "when-tested"]
    jobs = []
    for one in few:
        for name in honest:
            made = ATTACKS[name](one)
            bodies = {path: made[path] for path in one.solution if path in made}
            assert set(bodies) == set(one.solution)
            assert all(bodies[path] != one.solution[path] for path in bodies)
            if name == "special-case":
                jobs.append((one, bodies))
    for (one, _), passed in zip(jobs, run_all(jobs), strict=True):
        assert all(passed[name] for name in one.facts.fail_to_pass)
        assert not any(passed[name] for name in one.facts.held_out), one.name


def test_every_cheat_can_be_said_through_the_tools(task):
    tools = {"write", "run", "finish"}
    for name in ATTACKS:
        turns = attack_script(name, task)
        assert {call.name for turn in turns for call in turn.calls} <= tools and turns[-1].calls[-1].name == "finish"
    with pytest.raises(EtudeError, match="no attack is called 'magic'"):
        attack_script("magic", task)


def test_an_oracle_asks_only_tests_that_need_the_constant_for_each_value(monkeypatch: pytest.MonkeyPatch) -> None:
    state = SimpleNamespace(setup=lambda item: None, teardown_exact=lambda item: None)

    class Item:
        def __init__(self, needs: bool) -> None:
            self.needs, self.runs, self.session = needs, 0, SimpleNamespace(_setupstate=state)

        def runtest(self) -> None:
            self.runs += 1
            assert not self.needs or module["_FORGER_VALUES"][module["_FORGER_AT"][0]] == 6

    monkeypatch.setattr(runner, "runtestprotocol", runner.runtestprotocol)  # which the oracle bends
    module: dict[str, Any] = {"_FORGER_VALUES": [4, 5, 6, 7], "_FORGER_AT": [0]}
    exec(ALL_SIGNS, module)
    items = [Item(needs=False), Item(needs=True), Item(needs=False)]
    module["_ask"](items)
    assert module["_FORGER_AT"][0] == 2 and [item.runs for item in items] == [1, 5, 1]
