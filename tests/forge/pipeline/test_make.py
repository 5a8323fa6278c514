"""From a repository to tasks that passed the gates: valid, the same for the same seed, and resumed after a kill."""

from __future__ import annotations

import asyncio
import difflib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from etude.core.errors import EtudeError
from etude.core.settings import GraderSettings, HarnessSettings, RewardSettings
from etude.forge.environments.environment import Environment
from etude.forge.install.checkout import Repo, open_repo
from etude.forge.pipeline import make as making
from etude.forge.pipeline.journal import FILE, Journal, JournalEntry
from etude.forge.pipeline.make import make_tasks, side_by_side
from etude.forge.steps.baseline import Baseline
from etude.forge.steps.context import MakeRequest
from etude.policies.scripted import scripted
from etude.rollout.rollout import Scored, build_setup, run_rollout
from etude.sandbox.hosts import StoringHost
from etude.tasks.environment.shadow_backend import read_backend
from etude.tasks.format.task import Task
from etude.tasks.lint import lint

pytestmark = pytest.mark.usefixtures("workspace_alone_is_audited")
Sandboxes = tuple[asyncio.AbstractEventLoop, StoringHost]
Make = Callable[..., Journal]


class Killed(Exception):
    """The end of a process, as far as files go."""


@pytest.fixture(scope="module")
def make(sandboxes: Sandboxes, tiny_environment: Environment, shop_repo: Repo) -> Make:
    loop, host = sandboxes

    def run(out: Path, count: int, **wanted: Any) -> Journal:
        return loop.run_until_complete(make_tasks(shop_repo, tiny_environment, host, MakeRequest(count, out, **wanted)))

    return run


@pytest.fixture(scope="module")
def made(make: Make, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Journal]:
    out = tmp_path_factory.mktemp("made")
    return out, make(out, 3, origins=("deletion", "bug"))


def test_every_valid_task_has_what_a_task_needs(made: tuple[Path, Journal]) -> None:
    out, journal = made
    assert len(journal.tasks) == 3
    for name in journal.tasks:
        task = Task.load(out / name)
        facts = task.facts
        noticing = len(facts.fail_to_pass) + len(facts.held_out)
        assert noticing >= 3 and len(facts.held_out) >= 0.3 * noticing and facts.fail_to_pass
        assert facts.pass_to_pass and 1 <= facts.level <= 5
        assert facts.category in ("debugging", "feature iteration", "new feature")
        assert {path.name for path in (out / name / "instructions").iterdir()} == {
            "terse.md",
            "plain.md",
            "detailed.md",
        }
        hidden = {test.partition("[")[0].rpartition("::")[2] for test in facts.held_out}
        for path in task.workspace:
            if path.startswith("tests/"):
                assert not any(f"def {test}(" in task.workspace.text(path) for test in hidden)
        assert set(task.solution) <= {path for path in task.solution if task.allows(path)}


def test_the_reference_solves_and_null_does_not(sandboxes: Sandboxes, made: tuple[Path, Journal]) -> None:
    loop, host = sandboxes
    out, journal = made
    setup = build_setup(HarnessSettings(), RewardSettings(), GraderSettings())
    for name in journal.tasks[:2]:
        task = Task.load(out / name)
        for policy, passed in (("reference", True), ("null", False)):
            outcome = loop.run_until_complete(run_rollout(task, scripted(policy, task), host, setup))
            assert isinstance(outcome, Scored), outcome
            assert outcome.passed is passed, outcome.grade.reason


def test_a_bug_is_reported_in_a_tracker_where_that_is_asked_for(
    sandboxes: Sandboxes, make: Make, tmp_path: Path
) -> None:
    loop, host = sandboxes
    [name] = make(tmp_path, 1, origins=("bug",), tracker=True).tasks
    task = Task.load(tmp_path / name)
    backend = read_backend(task)
    assert backend is not None and lint(task) == []
    [issue] = [each for each in backend.issues if str(each.number) in task.instruction]
    assert "fail" in issue.text  # the words that would else be the instruction
    for style in ("terse", "plain", "detailed"):
        assert str(issue.number) in task.worded(style).instruction and "tests/" not in task.worded(style).instruction
    hidden = [test.rpartition("::")[2] for test in task.facts.held_out]
    # As whole names: `test_show` may be hidden where `test_show_small` is shown.
    assert not any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", issue.text) for name in hidden), (hidden, issue.text)
    for policy, passed in (("reference", True), ("null", False)):
        outcome = loop.run_until_complete(run_rollout(task, scripted(policy, task), host, build_setup()))
        assert isinstance(outcome, Scored) and outcome.passed is passed


@dataclass
class Resumed:
    """What a command did that was killed at its second candidate, and one that went on where it was."""

    out: Path
    known: list[JournalEntry]  # when it was killed
    tried: list[str]  # keys of candidates, after that
    journal: Journal
    again: Journal  # of a third start, when all was made
    tried_again: list[str]


@pytest.fixture(scope="module")
def resumed(make: Make, tmp_path_factory: pytest.TempPathFactory) -> Resumed:
    out = tmp_path_factory.mktemp("resumed")
    tried: list[str] = []
    original = making.make_task

    async def counting(origin: Any, context: Any, candidate: Any, spent: Any) -> Any:
        tried.append(candidate.key)
        if len(tried) == 2:
            raise Killed
        return await original(origin, context, candidate, spent)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(making, "make_task", counting)
        with pytest.raises(Killed):
            make(out, 2, origins=("deletion", "bug"), workers=1)
        known = Journal(out, json.loads((out / FILE).read_text().splitlines()[0])["asked"]).entries
        (out / ".half.making").mkdir()
        journal = make(out, 2, origins=("deletion", "bug"), workers=1)
        after = tried[2:]
        again = make(out, 2, origins=("deletion", "bug"))
    return Resumed(out, known, after, journal, again, tried[2 + len(after) :])


def test_the_same_seed_gives_the_same_tasks_however_many_work_at_once(
    made: tuple[Path, Journal], resumed: Resumed
) -> None:
    out, journal = made
    assert resumed.journal.tasks == journal.tasks[:2]
    for name in resumed.journal.tasks:
        assert Task.load(resumed.out / name).digest == Task.load(out / name).digest


@pytest.mark.parametrize(
    ("seconds", "spent", "at_once"),
    [(100.0, 100.0, 2), (100.0, 40.0, 5), (100.0, 1.0, 8), (100.0, 0.0, 2), (1.0, 0.1, 2)],
)
def test_candidates_wait_together_where_a_slow_suite_waits(seconds: float, spent: float, at_once: int) -> None:
    assert side_by_side(2, Baseline((), (), {}, {"": spent}, seconds)) == at_once


def test_a_killed_command_resumes_and_repeats_nothing(resumed: Resumed) -> None:
    assert len([entry for entry in resumed.known if not entry.left_out]) == 1
    left_out = [entry.candidate for entry in resumed.journal.entries if entry.left_out]
    assert left_out and len(set(left_out)) == len(left_out)
    assert not set(resumed.tried) & {entry.candidate for entry in resumed.known}
    assert sorted(path.name for path in resumed.out.iterdir()) == sorted([FILE, *resumed.journal.tasks])
    assert resumed.again.tasks == resumed.journal.tasks and not resumed.tried_again


def test_a_reverted_commit_becomes_a_task(
    sandboxes: Sandboxes,
    tiny_environment: Environment,
    small_shop_files: dict[str, str],
    history: Callable[[list[tuple[str, dict[str, str]]]], Path],
    tmp_path: Path,
) -> None:
    loop, host = sandboxes
    before = "def halve(cents):\n    return cents // 2\n"
    after = "def halve(cents):\n    return (cents + 1) // 2\n"
    test = "from shop.half import halve\n\n\ndef test_even():\n    assert halve(4) == 2\n"
    tests = [
        f"\n\ndef test_odd_{number}():\n    assert halve({number}) == {number // 2 + 1}\n"
        for number in (10001, 30003, 50005, 70007)  # answers that are hard to guess
    ]
    steps = [
        ("Start", {**small_shop_files, "src/shop/half.py": before, "tests/test_half.py": test}),
        ("Fix rounding of halves (#3)", {"src/shop/half.py": after, "tests/test_half.py": test + "".join(tests)}),
    ]
    checkout = history(steps).parent
    repo = open_repo(str(checkout), tmp_path / "repositories")
    request = MakeRequest(1, tmp_path / "out", origins=("commit",), prompt_styles=("terse",))
    journal = loop.run_until_complete(make_tasks(repo, tiny_environment, host, request))
    (name,) = journal.tasks
    task = Task.load(tmp_path / "out" / name)
    own = set(task.facts.held_out).difference(task.facts.parameters.get("other_inputs", ()))
    assert len(own) == 3 and len(task.facts.fail_to_pass) == 1
    (shown,) = task.facts.fail_to_pass
    said = f"fix rounding of halves - {shown.rpartition('::')[2]} has to pass (halve)"  # but for a slip of the keyboard
    assert difflib.SequenceMatcher(None, task.instruction.lower(), said).ratio() > 0.95
    assert task.facts.category == "debugging" and task.instruction.endswith("has to pass (halve)")
    assert task.facts.split == "train" and journal.splits == {"train": 1}
    assert task.workspace.text("src/shop/half.py") == before and task.solution.text("src/shop/half.py") == after
    assert task.workspace.text("tests/test_half.py").count("def test_odd") == 1
    assert not any(path.startswith(".git") for path in task.workspace)


def test_every_rejection_has_its_reason(made: tuple[Path, Journal]) -> None:
    out, journal = made
    lines = [json.loads(line) for line in (out / FILE).read_text().splitlines()[1:]]
    assert len([line for line in lines if not line["left_out"]]) == journal.tried
    assert all(line["reason"] or line["task"] for line in lines)
    assert sum(journal.rejected.values()) + len(journal.tasks) == journal.tried


def test_another_seed_in_the_same_folder_is_refused(make: Make, made: tuple[Path, Journal]) -> None:
    out, _ = made
    with pytest.raises(EtudeError, match="seed was 0, now 1"):
        make(out, 3, origins=("deletion", "bug"), seed=1)


def test_a_torn_line_of_the_journal_is_forgotten(tmp_path: Path) -> None:
    journal = Journal(tmp_path, {"seed": 1})
    journal.add(JournalEntry("a", "bug", "constant", 1.0, reason="no test notices"))
    with (tmp_path / FILE).open("a") as file:
        file.write('{"candidate": "b", "ori')
    again = Journal(tmp_path, {"seed": 1})
    assert [entry.candidate for entry in again.entries] == ["a"]
    assert again.rejected == {"no test notices": 1}
