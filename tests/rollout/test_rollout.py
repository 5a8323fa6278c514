"""One attempt from sandbox to reward: outcomes, whose failure is whose, saving and grading again."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import importlib.util
import io
import json
import os
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from etude.core.errors import EtudeError
from etude.core.policy import Assistant, Call, Sample, Version
from etude.core.settings import AgentLimits, GraderSettings, HarnessSettings, RewardSettings
from etude.forge.katas.task_source import katas
from etude.harness.loop import Event
from etude.policies.scripted import Scripted, reference
from etude.policies.table import make_policy
from etude.rollout.rollout import RETRIED, GradeCache, Outcome, RolloutSetup, Scored, Void, build_setup, run_rollout
from etude.rollout.store import load_rollout, regrade, save_rollout, saved_rollouts
from etude.rollout.view import RolloutView, printable
from etude.sandbox.base import SandboxFailure
from etude.sandbox.hosts import StoringHost, open_host
from etude.tasks.format.task import Task
from etude.tasks.grading.grader import GraderFailure
from etude.tasks.grading.submission import Refused, Submission, SubmittedFile
from etude.tasks.grading.verdict import Grade
from etude.tokens.native import Native
from etude.tokens.tokenizer import Tokenizer


class Grounds:
    def __init__(self, loop: asyncio.AbstractEventLoop, host: StoringHost) -> None:
        self.run, self.host = loop.run_until_complete, host

    def run_rollout(self, task: Task, policy: Any, setup: RolloutSetup | None = None, **options: Any) -> Outcome:
        host = options.pop("host", self.host)
        return self.run(run_rollout(task, policy, host, setup or build_setup(), **options))


@pytest.fixture(scope="module")
def grounds(sandboxes: tuple[asyncio.AbstractEventLoop, StoringHost]) -> Grounds:
    return Grounds(*sandboxes)


@pytest.fixture(scope="module")
def task() -> Task:
    return next(katas("train", 1, seed=8))


def test_scripted_policies_come_out_as_they_should(grounds: Grounds) -> None:
    for task in katas("unseen", 2, seed=1):
        outcome = grounds.run_rollout(task, make_policy("reference", task), policy_name="reference")
        assert isinstance(outcome, Scored)
        assert (outcome.passed, outcome.reward, outcome.parts) == (True, 1.0, {"tests": 1.0})
        assert (outcome.trajectory.task, outcome.trajectory.policy) == (task.name, "reference")
        for name in ("null", "stub", "cheat:equal-to-all", "cheat:daemon", "cheat:linked-solution"):
            outcome = grounds.run_rollout(task, make_policy(name, task))
            assert isinstance(outcome, Scored)
            assert (outcome.passed, outcome.reward) == (False, 0.0)


def test_the_weaker_backend_is_stamped_into_every_grade(task: Task, tmp_path: Path) -> None:
    async def play() -> list[Outcome]:
        async with await open_host("plain", tmp_path) as host:
            policies = [make_policy(name, task) for name in ("reference", "null")]
            return [await run_rollout(task, policy, host, build_setup()) for policy in policies]

    outcomes = asyncio.run(play())
    assert [isinstance(outcome, Scored) and outcome.passed for outcome in outcomes] == [True, False]
    assert all(isinstance(outcome, Scored) and outcome.grade.backend == "plain" for outcome in outcomes)


def test_with_a_tokenizer_the_trajectory_has_tokens(grounds: Grounds, task: Task) -> None:
    dialect = Native(Tokenizer.train([task.instruction, *map(task.workspace.text, task.workspace)], 400))
    reward = RewardSettings(parts=[{"use": "tests"}, {"use": "effort", "weight": 0.5}])
    setup = build_setup(reward=reward, dialect=dialect)
    setup = dataclasses.replace(setup, sampling=dataclasses.replace(setup.sampling, max_tokens=2000))
    outcome = grounds.run_rollout(task, make_policy("reference", task, dialect), setup)
    assert isinstance(outcome, Scored)
    assert outcome.passed
    assert outcome.trajectory.segments[0].ids
    assert outcome.trajectory.effort.exact
    assert outcome.reward == pytest.approx(1 + 0.5 * outcome.parts["effort"])
    assert outcome.parts["effort"] < 0


def test_policies_by_name(task: Task) -> None:
    assert isinstance(make_policy("null", task), Scripted)
    with pytest.raises(EtudeError, match="no scripted policy is called 'magic'"):
        make_policy("magic", task)
    with pytest.raises(EtudeError, match="no attack is called"):
        make_policy("cheat:magic", task)
    with pytest.raises(EtudeError, match="needs the tokenizer"):
        make_policy("http://127.0.0.1:1", task)
    dialect = Native(Tokenizer.train(["a b c"], 300))
    assert make_policy("unix:/tmp/x", task, dialect).address == "unix:/tmp/x"  # type: ignore[attr-defined]


# Whose failure it is


class Says:
    def __init__(self, sample: Any) -> None:
        self._sample = sample

    async def sample(self, context: Any, sampling: Any) -> Sample:
        if isinstance(self._sample, Exception):
            raise self._sample
        return self._sample if self._sample else await asyncio.Event().wait()  # type: ignore[func-returns-value]


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        (ConnectionResetError("gone"), "ConnectionResetError: gone"),
        (Sample("", "abort"), "aborted"),
        (None, "no sample came within 0.05 s"),
    ],
)
def test_a_policy_that_fails_makes_the_attempt_void(grounds: Grounds, task: Task, sample: Any, words: str) -> None:
    setup = build_setup(HarnessSettings(limits=AgentLimits(sample_seconds=0.05)))
    outcome = grounds.run_rollout(task, Says(sample), setup)
    assert isinstance(outcome, Void)
    # Tried again with the same seed, an answer that is long would be long again.
    assert (outcome.cause, outcome.retry) == ("policy", sample is not None)
    assert words in outcome.message
    assert outcome.trajectory is not None
    assert outcome.trajectory.task == task.name


def test_a_sample_slower_than_its_limit_is_an_overlong_score(grounds: Grounds, task: Task) -> None:
    dialect = Native(Tokenizer.train(["a b c"], 300))
    ids = tuple(dialect.encode("a b c a b c"))
    late = Sample("", "length", ids, (-1.0,) * len(ids), (Version(0, 0),) * len(ids), late=True)
    outcome = grounds.run_rollout(task, Says(late), build_setup(dialect=dialect))
    assert isinstance(outcome, Scored)
    assert outcome.trajectory.stop == "tokens" and outcome.trajectory.sampled_tokens == len(ids)


def test_what_the_model_does_badly_is_a_score(grounds: Grounds, task: Task) -> None:
    for sample in (Sample("<call>{", "stop"), Sample("I give up.", "stop"), Sample("x" * 50, "length")):
        outcome = grounds.run_rollout(task, Says(sample))
        assert isinstance(outcome, Scored)
        assert outcome.reward == 0
    path = next(iter(task.solution))
    spoiled = [Assistant(calls=(Call("run", {"command": f"rm -rf {path}; ln -s / {path}"}), Call("finish")))]
    outcome = grounds.run_rollout(task, Scripted(spoiled))
    assert isinstance(outcome, Scored)
    assert outcome.changes.refused[0].path == path


class Failing:
    """A host that fails from its n-th start on, at `times` of them, or whose store is full."""

    def __init__(self, host: StoringHost, failure: Exception, start: int, times: int = 1000) -> None:
        self._host, self._failure, self._starts = host, failure, range(start, start + times) if start else range(0)
        self._started = 0
        self.preload, self.capabilities = host.preload, host.capabilities

    @property
    def store(self) -> Any:
        if isinstance(self._failure, OSError):
            raise self._failure
        return self._host.store

    async def start(self, *given: Any, **named: Any) -> Any:
        self._started += 1
        if self._started in self._starts:
            raise self._failure
        return await self._host.start(*given, **named)


@pytest.mark.parametrize("start", [1, 2])
@pytest.mark.parametrize("cause", list(RETRIED))
def test_a_sandbox_that_fails_makes_the_attempt_void(grounds: Grounds, task: Task, cause: Any, start: int) -> None:
    host = Failing(grounds.host, SandboxFailure(cause, "injected"), start)
    outcome = grounds.run_rollout(task, make_policy("reference", task), host=host)
    assert isinstance(outcome, Void)
    assert (outcome.cause, outcome.retry, outcome.message) == ("sandbox", RETRIED[cause], "injected")
    assert (outcome.trajectory is not None) == (start == 2)


def test_a_grade_that_fails_is_made_again_and_nothing_is_sampled_again(grounds: Grounds, task: Task) -> None:
    for times, solved in ((1, True), (2, True)):
        host = Failing(grounds.host, SandboxFailure("start", "injected"), 2, times)
        outcome = grounds.run_rollout(task, make_policy("reference", task), host=host)
        assert isinstance(outcome, Scored) and outcome.passed == solved


class Dying:
    """A host whose first sandbox dies when the agent uses it."""

    def __init__(self, host: StoringHost, broken: bool) -> None:
        self._host, self._broken, self._started = host, broken, 0
        self.preload, self.capabilities, self.store = host.preload, host.capabilities, host.store

    async def start(self, *given: Any, **named: Any) -> Any:
        self._started += 1
        if self._started > 1 and self._broken:
            raise SandboxFailure("start", "the machine is broken")
        sandbox = await self._host.start(*given, **named)
        if self._started == 1:
            sandbox.give_up(SandboxFailure("died", "sandbox 1 ended unexpectedly"))  # type: ignore[attr-defined]
        return sandbox


@pytest.mark.parametrize("broken", [False, True])
def test_a_sandbox_that_dies_is_a_score_unless_its_host_is_broken(grounds: Grounds, task: Task, broken: bool) -> None:
    outcome = grounds.run_rollout(task, make_policy("reference", task), host=Dying(grounds.host, broken))
    assert outcome.trajectory is not None and outcome.trajectory.turns and outcome.trajectory.task == task.name
    if broken:
        assert isinstance(outcome, Void) and (outcome.cause, outcome.retry) == ("sandbox", True)
    else:
        assert isinstance(outcome, Scored) and outcome.reward == 0
        assert outcome.grade.kind == "crash" and "ended unexpectedly" in outcome.grade.reason


def test_a_full_disk_makes_the_attempt_void(grounds: Grounds, task: Task, tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    outcome = grounds.run_rollout(task, make_policy("reference", task), host=Failing(grounds.host, full, 0))
    assert isinstance(outcome, Void)
    assert (outcome.cause, outcome.retry) == ("sandbox", False)
    assert "No space left" in outcome.message

    def save(outcome: Outcome) -> None:
        raise full

    outcome = grounds.run_rollout(task, make_policy("reference", task), save=save)
    assert isinstance(outcome, Void)
    assert (outcome.cause, outcome.retry) == ("harness", False)


def test_faults_of_every_kind_become_voids_and_no_reward() -> None:
    path = Path(__file__).parents[2] / "benchmarks" / "rollout_faults.py"
    spec = importlib.util.spec_from_file_location("rollout_faults", path)
    assert spec is not None and spec.loader is not None
    faults = importlib.util.module_from_spec(spec)
    sys.modules["rollout_faults"] = faults
    try:
        spec.loader.exec_module(faults)
        result = asyncio.run(faults.measure(40, 2, seed=1))
    finally:
        del sys.modules["rollout_faults"]
    assert result["ok"], result["wrong"]
    assert result["rewarded"] == 0
    assert result["faults"] > 20


# Saving and grading again


def test_attempts_are_saved_and_graded_again_without_a_model(grounds: Grounds, task: Task, tmp_path: Path) -> None:
    on_disk = tmp_path / "task"
    task.save(on_disk)
    for number, mine in enumerate((task, Task.load(on_disk))):
        for name in ("reference", "stub"):
            outcome = grounds.run_rollout(
                mine,
                make_policy(name, mine),
                save=lambda outcome, name=name, number=number: save_rollout(
                    outcome, tmp_path / "out", f"{name}{number}"
                ),  # type: ignore[misc]
            )
            assert isinstance(outcome, Scored)
            kept = load_rollout(tmp_path / "out" / f"{name}{number}")
            assert kept.trajectory == outcome.trajectory
            assert kept.changes == outcome.changes
            assert (kept.passed, kept.reward, kept.void) == (name == "reference", outcome.reward, "")
            assert 0 < kept.starting == outcome.starting < outcome.seconds

    async def again() -> list[Any]:
        reward = RewardSettings(parts=[{"use": "tests", "weight": 3}])
        return [each async for each in regrade(tmp_path / "out", grounds.host, build_setup(reward=reward))]

    found = grounds.run(again())
    assert [(each.before.path.name, each.changed, each.after.reward) for each in found] == [
        ("reference0", False, 3.0),
        ("reference1", False, 3.0),
        ("stub0", False, 0.0),
        ("stub1", False, 0.0),
    ]
    assert len(list((tmp_path / "out" / "tasks").iterdir())) == 1  # the one that had no directory, once


def test_an_attempt_at_a_task_that_was_asked_in_other_words_is_read_again(
    grounds: Grounds, task: Task, tmp_path: Path
) -> None:
    on_disk = tmp_path / "task"
    task.save(on_disk)
    (on_disk / "instructions").mkdir()
    (on_disk / "instructions" / "detailed.md").write_text("fix it\n")
    asked = Task.load(on_disk).worded("detailed")
    assert (asked.instruction, asked.facts.prompt_style) == ("fix it\n", "detailed")
    saved = save_rollout(grounds.run_rollout(asked, make_policy("null", asked)), tmp_path / "out", "one")
    assert load_rollout(saved).task.instruction == "fix it\n"
    (on_disk / "instructions" / "detailed.md").write_text("fix that\n")
    with pytest.raises(EtudeError, match="has changed since"):
        load_rollout(saved)
    (on_disk / "instructions" / "detailed.md").unlink()
    with pytest.raises(EtudeError, match=r"no instructions/detailed\.md"):
        load_rollout(saved)


def test_voids_are_saved_and_left_out_of_grading_again(grounds: Grounds, task: Task, tmp_path: Path) -> None:
    for trajectory in (None, "seen"):
        outcome = grounds.run_rollout(task, Says(ConnectionResetError("gone")))
        assert isinstance(outcome, Void)
        if trajectory is None:
            outcome = dataclasses.replace(outcome, trajectory=None)
        save_rollout(outcome, tmp_path, f"void-{trajectory}")
    assert [load_rollout(path).void for path in saved_rollouts(tmp_path)] == ["policy", "policy"]

    async def again() -> list[Any]:
        return [each async for each in regrade(tmp_path, grounds.host, build_setup())]

    assert grounds.run(again()) == []


def test_a_saved_attempt_that_was_changed_is_refused(grounds: Grounds, task: Task, tmp_path: Path) -> None:
    outcome = grounds.run_rollout(task, make_policy("null", task))
    saved = save_rollout(outcome, tmp_path, "one")
    with pytest.raises(EtudeError, match="exists already"):
        save_rollout(outcome, tmp_path, "one")
    facts = json.loads((saved / "outcome.json").read_text())
    for change, words in (
        ({"reward": "much"}, "reward"),
        ({"task": facts["task"] | {"digest": "../../etc"}}, "no digest"),
        ({"task": facts["task"] | {"digest": "00"}}, "there is no task directory"),
        ({"format": 2}, "format"),
    ):
        (saved / "outcome.json").write_text(json.dumps(facts | change))
        with pytest.raises(EtudeError, match=words):
            load_rollout(saved)
    (saved / "outcome.json").write_text(json.dumps(facts))
    (saved / "carried" / "a.py").symlink_to("../outcome.json")
    with pytest.raises(EtudeError, match="link"):
        load_rollout(saved)
    (saved / "carried" / "a.py").unlink()
    instruction = tmp_path / "tasks" / facts["task"]["digest"] / "instruction.md"
    instruction.write_text("Something else.")
    with pytest.raises(EtudeError, match="has changed since"):
        load_rollout(saved)
    with pytest.raises(EtudeError, match="is no saved rollout"):
        load_rollout(tmp_path)


# Watching


def test_the_view_shows_an_attempt_and_lets_nothing_reach_the_terminal(grounds: Grounds, task: Task) -> None:
    screen = io.StringIO()
    view = RolloutView(Console(file=screen, width=100, force_terminal=False))
    kinds: list[str] = []

    def both(event: Event) -> None:
        kinds.append(event.kind)
        view.on_event(event)

    evil = Assistant("thinking \x1b]0;owned\x07", calls=(Call("run", {"command": "printf '\\033[2Jhi'; seq 100"}),))
    outcome = grounds.run_rollout(task, Scripted([evil, *reference(task)]), on_event=both)
    view.show_outcome(outcome)
    view.show_outcome(Void(task, "sandbox", True, "it \x1b[31m died"))
    text = screen.getvalue()
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "more lines]" in text
    assert "solved; reward 1 (tests 1)" in text
    assert "void: sandbox: it \\x1b[31m died (try again)" in text
    assert {"message", "sampling", "calling", "stop"} <= set(kinds)
    assert printable("a\tb\n\udc80\u202e") == "a\tb\n\\udc80\\u202e"


def test_equal_attempts_are_judged_once_and_a_failure_is_nobodys_grade(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Submission] = []

    async def slow(task: Task, host: object, changes: Submission, settings: object, answer: str) -> Grade:
        calls.append(changes)
        await asyncio.sleep(0)
        if changes.refused:
            raise GraderFailure("report", "the machinery broke")
        return Grade(bool(changes.files), "tests", "")

    monkeypatch.setattr("etude.rollout.rollout.grade", slow)
    first, second = katas("train", 2, levels=[1])
    good, broken = Submission((SubmittedFile("a.py", b"x"),)), Submission(refused=(Refused("b.py", "too large"),))
    judged, host = GradeCache(most=2), cast(Any, None)

    async def ask(task: Task, changes: Submission) -> Grade:
        return await judged.grade(task, host, changes, GraderSettings())

    async def work() -> None:
        together = await asyncio.gather(
            *(ask(first, good) for _ in range(5)), ask(second, good), ask(first, Submission())
        )
        assert [grade.passed for grade in together] == [True] * 6 + [False]
        assert len(calls) == 3 and (judged.asked, judged.reused) == (7, 4)
        for _ in range(2):
            with pytest.raises(GraderFailure):
                await ask(second, broken)
        assert calls.count(broken) == 2
        await ask(first, good)  # pushed out by newer ones meanwhile
        assert calls.count(good) == 3

    asyncio.run(work())


def test_large_submissions_are_not_remembered_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """128 submissions of 32 MB would be 4 GB in the process that grades all rollouts."""

    async def quick(task: Task, host: object, changes: Submission, settings: object, answer: str) -> Grade:
        return Grade(False, "tests", "")

    monkeypatch.setattr("etude.rollout.rollout.grade", quick)
    monkeypatch.setattr("etude.rollout.rollout.MOST_HELD", 10_000)
    task, judged, host = next(katas("train", 1, levels=[1])), GradeCache(), cast(Any, None)
    large = [Submission((SubmittedFile(f"{name}.py", b"x" * 4_000),)) for name in "abcdef"]
    many = Submission(refused=tuple(Refused(f"{number}", "not allowed") for number in range(300)))

    async def work() -> None:
        for changes in (*large, many, Submission()):
            await judged.grade(task, host, changes, GraderSettings())
        assert [changes for _, changes, _ in judged._grades] == [Submission()]
        for changes in large:
            await judged.grade(task, host, changes, GraderSettings())
        assert [changes for _, changes, _ in judged._grades] == large[-2:]

    asyncio.run(work())
