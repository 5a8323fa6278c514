"""Services beside the repository: what they answer, what of their file is refused, and that a task needs them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from etude.core.errors import EtudeError
from etude.core.policy import Assistant, Call, ToolResult
from etude.core.settings import DemosSettings, HarnessSettings
from etude.forge.curriculum.sources import open_source
from etude.forge.katas.reported_katas import CATEGORY
from etude.harness.failures import ToolError
from etude.pipeline.demonstrations import make_demos
from etude.policies.scripted import Scripted, reference, scripted
from etude.rollout.rollout import Scored, Void, build_setup, run_rollout
from etude.tasks.check import check
from etude.tasks.environment.shadow_backend import FILE, Issue, LogLine, Sample, ShadowBackend, read_backend
from etude.tasks.format.file_tree import Files
from etude.tasks.format.task import Task
from etude.tasks.lint import lint

BACKEND = ShadowBackend(
    issues=[
        Issue(number=7, title="Totals are wrong", text="A cart of two adds one."),
        Issue(number=9, title="Colours", text="More of them.", state="closed"),
    ],
    logs=[LogLine(time=f"2026-01-01T00:{n:02}:00Z", text=f"ERROR cart {n}" if n % 2 else "INFO ok") for n in range(60)],
    metrics=[Sample(time="2026-01-01T00:00:00Z", name="errors.cart", value=3.5)],
)


def test_each_service_answers_with_its_records() -> None:
    ask = BACKEND.ask
    assert ask("issues", "#7") == "#7 (open) Totals are wrong\n\nA cart of two adds one."
    assert ask("issues", "") == "#9 (closed) Colours\n#7 (open) Totals are wrong"
    assert ask("issues", "the total of a cart") == "#7 (open) Totals are wrong"
    assert ask("issues", "zebra") == "[nothing]"
    lines = ask("logs", "error CART").split("\n")
    assert lines[0] == "[10 earlier]" and lines[-1] == "2026-01-01T00:59:00Z ERROR cart 59" and len(lines) == 21
    assert ask("metrics", "") == ask("metrics", "errors") == "errors.cart"
    assert ask("metrics", "errors.cart") == "2026-01-01T00:00:00Z 3.5"
    with pytest.raises(ToolError, match="there are issues, logs, metrics"):
        ask("mail", "")
    with pytest.raises(ToolError, match="there is no issue 8"):
        ask("issues", "8")


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"[]",
        b'{"mail": []}',
        b'{"issues": [{"number": 0, "title": "x"}]}',
        b'{"logs": [{"time": "\\u001b", "text": ""}]}',
    ],
)
def test_a_file_that_is_not_as_it_should_be_is_refused_by_name(data: bytes) -> None:
    task = Task("one", "x", files=Files({FILE: data}))
    with pytest.raises(EtudeError, match=r"environment/services\.json"):
        read_backend(task)
    assert [finding.rule for finding in lint(task) if finding.rule == "invalid-services"] == ["invalid-services"]
    assert read_backend(Task("one", "x")) is None


@pytest.fixture(scope="module")
def reported() -> Task:
    return next(open_source({"use": "reported_katas", "levels": [1]}).tasks(4))


def issue_of(task: Task) -> Issue:
    backend, name = read_backend(task), task.facts.deleted[0].partition(":")[2]
    assert backend is not None
    return next(issue for issue in backend.issues if name in issue.text)


def test_what_a_reported_kata_asks_for_is_said_by_its_services_alone() -> None:
    source = open_source({"use": "reported_katas", "levels": [1, 2], "count": 12})
    tasks = list(source.tasks())
    assert len({task.digest for task in tasks}) == 12
    assert [task.digest for task in source.tasks(10)] == [task.digest for task in tasks[10:]]
    for task in tasks:
        assert lint(task) == [] and task.facts.category == CATEGORY and not task.facts.fail_to_pass
        name = task.facts.deleted[0].partition(":")[2]
        said = issue_of(task).text.split(". ", 1)[1].split("\n\n")[0]
        seen = "\n".join(task.workspace.text(path) for path in task.workspace) + task.instruction
        assert said not in seen and f"{name}(" not in seen.replace(f"def {name}(", "")
        assert json.loads(task.files[FILE])["metrics"] and str(issue_of(task).number) in task.instruction


def test_a_reported_kata_is_fit(sandboxes: Any, reported: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etude.tasks.kinds.base.HASH_SEEDS", 1)
    monkeypatch.setattr("etude.tasks.kinds.base.STUBS", ("None",))
    loop, host = sandboxes
    report = loop.run_until_complete(check(reported, host))
    assert report.ok, (report.findings, [str(trial) for trial in report.trials])


def test_the_reference_asks_for_the_issue_before_it_knows_what_to_do(sandboxes: Any, reported: Task) -> None:
    first, *others = reference(reported, seed=1)
    assert first.calls == (Call("service", {"name": "issues", "query": str(issue_of(reported).number)}),)
    without = replace(reported, files=reported.files.replaced({FILE: None}))
    assert next(turn.calls for turn in reference(without, seed=1)) != first.calls and others
    loop, host = sandboxes
    settings = DemosSettings(count=2, tasks={"use": "reported_katas"})
    tools = [{"use": name} for name in ("read", "edit", "write", "list", "grep", "run", "service", "finish")]
    made = loop.run_until_complete(make_demos(settings, 0, host, build_setup(HarnessSettings(tools=tools)), list))
    assert len(made.conversations) == 2
    for conversation in made.conversations:
        answer = next(message for message in conversation if isinstance(message, ToolResult))
        assert answer.name == "service" and answer.text.startswith("#")
    with pytest.raises(EtudeError, match=r"is told by an issue tracker, .* add . use = 'service' . to harness.tools"):
        loop.run_until_complete(make_demos(settings, 0, host, build_setup(), list))


def test_an_agent_reads_the_issue_and_does_what_it_says(sandboxes: Any, reported: Task) -> None:
    loop, host = sandboxes
    tools = [{"use": name} for name in ("read", "write", "service", "finish")]
    setup = build_setup(HarnessSettings(tools=tools))
    path = reported.facts.deleted[0].partition(":")[0]
    turns = [
        Assistant(calls=(Call("service", {"name": "issues", "query": str(issue_of(reported).number)}),)),
        Assistant(calls=(Call("write", {"path": path, "text": reported.solution.text(path)}),)),
        Assistant(calls=(Call("finish", {}),)),
    ]
    outcome = loop.run_until_complete(run_rollout(reported, Scripted(turns), host, setup))
    assert isinstance(outcome, Scored) and outcome.passed, outcome
    results = [m for m in outcome.trajectory.messages if isinstance(m, ToolResult)]
    assert issue_of(reported).text in results[0].text
    null = loop.run_until_complete(run_rollout(reported, scripted("null", reported), host, setup))
    assert isinstance(null, Scored) and not null.passed
    bare = replace(reported, files=reported.files.replaced({FILE: None}))
    asked = loop.run_until_complete(run_rollout(bare, Scripted([turns[0], turns[2]]), host, setup))
    assert isinstance(asked, Scored)
    assert [entry.error for entry in asked.trajectory.entries if entry.error] == ["Unavailable"]
    # A file that is not as it should be is the task's fault: it costs one rollout, not the run that it is part of.
    broken = replace(reported, files=reported.files.replaced({FILE: b"{"}))
    void = loop.run_until_complete(run_rollout(broken, Scripted([]), host, setup))
    assert isinstance(void, Void) and void.cause == "harness" and not void.retry and FILE in str(void)
