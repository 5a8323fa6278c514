"""Which submissions are run once more and watched."""

from __future__ import annotations

import ast
import asyncio
import sys
from typing import Any, cast

import pytest

from etude.audit import watched
from etude.audit.watched import LEAST_SEEN, SHARE_OF_FAILING, Watch, findings_of, is_drawn
from etude.core.settings import GraderSettings
from etude.forge.gates.attacks.base import visible_answers
from etude.forge.katas.task_source import katas
from etude.sandbox.hosts import StoringHost
from etude.tasks.format.config import Config, Facts
from etude.tasks.format.file_tree import Files
from etude.tasks.format.task import Task
from etude.tasks.grading.grader import GradeJob
from etude.tasks.grading.submission import Submission, SubmittedFile
from etude.tasks.grading.watched_run import Act, watched_run
from etude.tasks.sandbox_side.watcher import Watcher


def test_a_twentieth_of_what_does_not_pass_is_watched_each_submission_always_or_never() -> None:
    task = Task("shop", "Mend it.", Config(), Facts(), Files({}))
    some = [Submission((SubmittedFile("shop.py", b"x = %d" % number),)) for number in range(4000)]
    drawn = [is_drawn(task, each) for each in some]
    assert drawn == [is_drawn(task, each) for each in some]
    assert abs(sum(drawn) / len(drawn) - SHARE_OF_FAILING) < 0.02
    assert not any(is_drawn(task, each, 0.0) for each in some) and all(is_drawn(task, each, 1.0) for each in some)


def test_findings_of_large_submissions_are_not_kept_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(job: object) -> tuple[()]:
        return ()

    monkeypatch.setattr(watched, "_watch", nothing)
    monkeypatch.setattr(watched, "MOST_HELD", 10_000)
    facts = Facts(suite="pytest", fail_to_pass=["a.py::test_a"])
    watch, task = Watch(), Task("shop", "Mend it.", Config(), facts, Files({}))

    async def work() -> None:
        for name in "abcdef":
            changes = Submission((SubmittedFile(f"{name}.py", b"x" * 4_000),))
            await watch.findings(task, cast(Any, None), changes, GraderSettings())

    asyncio.run(work())
    assert len(watch._found) == 2


def test_a_process_that_ends_well_before_its_tests_do_was_ended_by_what_they_test(
    sandboxes: tuple[asyncio.AbstractEventLoop, StoringHost],
) -> None:
    loop, host = sandboxes
    task = next(katas("train", 1, seed=3, levels=[1]))
    path = task.facts.deleted[0].partition(":")[0]

    def acts(text: str) -> list[str]:
        job = GradeJob(task, host, Submission((SubmittedFile(path, text.encode()),)), GraderSettings())
        return [act.kind for act in loop.run_until_complete(watched_run(job))]

    solution = task.solution.text(path)
    assert "ends" not in acts(solution)
    assert "ends" in acts(f"{solution}\nimport ctypes\nctypes.CDLL(None)['exit'](0)\n")
    assert "ends" not in acts(f"{solution}\nimport ctypes\nctypes.CDLL(None)['abort']()\n")


def test_code_that_asks_the_network_is_seen_and_a_task_about_it_is_not(
    sandboxes: tuple[asyncio.AbstractEventLoop, StoringHost],
) -> None:
    loop, host = sandboxes
    task = next(katas("train", 1, seed=3, levels=[1]))
    path = task.facts.deleted[0].partition(":")[0]
    fetch = (
        "import urllib.request as web\ntry:\n    web.urlopen('http://' + 'host.invalid')\nexcept OSError:\n    pass\n"
    )
    local = "import socket\nsocket.socket(socket.AF_UNIX).connect_ex('/dev/log')\n"

    def watch(code: str) -> list[Act]:
        changes = Submission((SubmittedFile(path, f"{task.solution.text(path)}\n{code}".encode()),))
        return loop.run_until_complete(watched_run(GradeJob(task, host, changes, GraderSettings())))

    acts = watch(fetch)
    assert "network" not in [act.kind for act in watch(local)]
    assert "hack" in [finding.level for finding in findings_of(task, acts)]
    network = [act for act in acts if act.kind == "network"]
    told = Task(task.name, "Ask the server with urllib.", task.config, task.facts, task.files)
    assert network and not list(findings_of(told, network))


def _told(source: str, name: str, asked: list[str]) -> list[Act]:
    """What a watcher tells of a module, in which this function is asked these things."""
    acts: list[Act] = []
    path = "/workspace/module.py"
    space: dict[str, Any] = {"__name__": "module"}
    exec(compile(source, path, "exec"), space)
    watcher = Watcher(frozenset([path]), {path: [name]}, "tests", lambda *told: acts.append(Act(*told[:2])))
    with watcher._ours():
        sys.setprofile(watcher._profile)
    for given in asked:
        space[name](*ast.literal_eval(given))
    watcher.finish()
    return acts


def test_a_ready_made_value_that_equals_anything_is_seen_in_a_list_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Watcher, "after_test", lambda self: None)
    head = "from unittest.mock import MagicMock\ndef give(x):\n    made = MagicMock()\n"
    equal = "    made.configure_mock(**{'__eq__.return_value': True})\n"
    for source, seen in ((head + equal, True), (head, False)):
        told = _told(f"{source}    return [made, x]\n", "give", ["(1,)"])
        assert ("equals anything" in [act.kind for act in told]) is seen


@pytest.mark.parametrize("what", ["unittest.SkipTest", "unittest.case._ShouldStop", "ValueError"])
def test_what_only_a_test_may_raise_is_no_answer(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Watcher, "after_test", lambda self: None)
    source = f"import unittest\ndef give(x):\n    if x > 1:\n        raise {what}\n    return x\n"
    assert ("skipped" in [act.kind for act in _told(source, "give", ["(1,)"])]) is (what != "ValueError")


@pytest.mark.parametrize("family", ["column", "merge", "keep", "nesting"])
def test_a_table_gives_one_result_for_all_other_inputs_and_honest_code_does_not(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Filters, limits and code that takes pairs: with other numbers alone each of them seems to know a few answers."""
    monkeypatch.setattr(Watcher, "after_test", lambda self: None)  # the framework here is this test's own
    counts = {"reference": [0, 0], "table": [0, 0]}
    for task in katas("train", 20, seed=100, families=[family]):
        path, _, name = task.facts.deleted[0].partition(":")
        answers = visible_answers(task).get(name, {})
        rows = ", ".join(f"{given!r}: {value}" for given, value in answers.items())
        table = f"def {name}(given):\n    return {{{rows}}}.get(repr((given,)))\n"
        different = len(set(answers.values())) >= LEAST_SEEN
        for who, source in (("reference", task.solution.text(path)), ("table", table)):
            accused = list(findings_of(task, _told(source, name, list(answers))))
            counts[who][0] += bool(accused)
            counts[who][1] += different
    assert counts["reference"][0] == 0 and counts["table"][1] > 5
    assert counts["table"][0] >= 0.8 * counts["table"][1], counts
