"""A task in Harbor's format that knows nothing of us: loaded, tried, attempted and graded in containers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from etude.policies.table import make_policy
from etude.rollout.rollout import Scored, build_setup, run_rollout
from etude.rollout.store import load_rollout, save_rollout
from etude.tasks.check import check
from etude.tasks.format.task import Task
from etude.tasks.grade import grade
from etude.tasks.grading.submission import Submission, SubmittedFile
from etude.tasks.kinds.foreign_script import ForeignScript, solve

Dock = Any

TEST = """#!/bin/sh
if [ "$(cat /app/answer 2>/dev/null)" = 42 ]; then echo 1 > /logs/verifier/reward.txt
else echo 0 > /logs/verifier/reward.txt; fi
"""


@pytest.fixture
def folder(dock: Dock, tmp_path: Path) -> Path:
    return write_task(tmp_path / "answer", dock.base)


def write_task(root: Path, base: str, test: str = TEST, config: str = "") -> Path:
    files = {
        "task.toml": f'schema_version = "1.4"\n[verifier]\ntimeout_sec = 60.0\n{config}',
        "instruction.md": "Write 42 to /app/answer.\n",
        "environment/Dockerfile": f"FROM {base}\nRUN mkdir /app && echo data > /app/given\nWORKDIR /app\n",
        "tests/test.sh": test,
        "tests/expected": "42\n",
        "solution/solve.sh": "#!/bin/sh\necho 42 > answer\nrm given\nln -s answer link\n",
    }
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


def test_its_solution_is_accepted_doing_nothing_is_not_and_check_says_so(dock: Dock, folder: Path) -> None:
    report = dock.run(check(Task.load(folder), dock.host))
    assert report.ok, report.problems
    assert [(trial.wanted, trial.passed) for trial in report.trials] == [
        ("accepted", True),
        ("accepted", True),
        ("rejected", False),
    ]


def test_plain_files_of_the_working_folder_are_carried_and_the_rest_is_named(dock: Dock, folder: Path) -> None:
    changes, ended = dock.run(solve(Task.load(folder), dock.host))
    assert ended.ok
    assert changes.files == (SubmittedFile("app/answer", b"42\n"), SubmittedFile("app/given", None))
    assert [(each.path, each.why) for each in changes.refused] == [("app/link", "it is a link")]


@pytest.mark.parametrize(
    ("script", "kind", "reason"),
    [
        ("exit 3", "tests", "left no reward"),
        ("echo 7 > /logs/verifier/reward.txt", "tests", "no number from 0 to 1"),
        ("echo nan > /logs/verifier/reward.txt", "tests", "no number from 0 to 1"),
        ("""echo '{"reward": 0.5, "style": 1}' > /logs/verifier/reward.json""", "tests", "reward is 0.5"),
        ("""echo '{"reward": 1, "style": 0}' > /logs/verifier/reward.json; exit 1""", "passed", ""),
        ("ln -s /tests/expected /logs/verifier/reward.txt; mkdir /logs/verifier/reward.json", "tests", "cannot be"),
        ("sleep 86399", "time", "did not end within 2 s"),
    ],
)
def test_the_reward_is_read_strictly(dock: Dock, tmp_path: Path, script: str, kind: str, reason: str) -> None:
    root = write_task(tmp_path / "task", dock.base, f"#!/bin/sh\n{script}\n")
    if kind == "time":
        config = root / "task.toml"
        config.write_text(config.read_text().replace("60.0", "2.0"))
    found = dock.run(grade(Task.load(root), dock.host, Submission()))
    assert (found.kind, found.passed) == (kind, kind == "passed")
    assert reason in found.reason
    assert found.backend == "docker"


def test_an_attempt_never_sees_tests_or_solution_and_cannot_bring_a_reward(dock: Dock, folder: Path) -> None:
    task = Task.load(folder)
    script = "ls -d /tests /solution /logs; mkdir -p /logs/verifier /tests; echo 1 > /logs/verifier/reward.txt"

    async def go() -> tuple[bytes, Any]:
        place = await ForeignScript().start(task, dock.host)
        async with await dock.host.start(place.layers, workdir=place.workdir) as sandbox:
            told = await sandbox.run(["sh", "-c", script])
            await sandbox.run(["sh", "-c", "echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh"])
            changes = await ForeignScript().collect(task, sandbox, place.workdir)
        return told.stdout, await grade(task, dock.host, changes)

    seen, found = dock.run(go())
    assert seen == b""
    assert not found.passed


def test_a_policy_attempts_it_through_the_harness_and_the_saved_attempt_is_graded_again(
    dock: Dock, folder: Path, tmp_path: Path
) -> None:
    task = Task.load(folder)
    outcome = dock.run(run_rollout(task, make_policy("null", task), dock.host, build_setup()))
    assert isinstance(outcome, Scored), outcome
    assert (outcome.passed, outcome.reward) == (False, 0.0)
    saved = load_rollout(save_rollout(outcome, tmp_path / "saved", "one"))
    assert saved.changes == outcome.changes
