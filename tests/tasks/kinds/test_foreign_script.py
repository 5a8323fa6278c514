"""Rewards of other people's scripts, and who may run them: what needs no engine."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from etude.core.errors import EtudeError
from etude.policies.scripted import reference
from etude.sandbox.hosts import open_host
from etude.tasks.check import check_directory
from etude.tasks.format.task import Task
from etude.tasks.grade import grade
from etude.tasks.kinds.foreign_script import BadReward, ForeignScript, read_rewards
from etude.tasks.kinds.table import kind_of


@pytest.mark.parametrize(
    ("as_json", "as_text", "rewards"),
    [
        (None, b"1", {"reward": 1.0}),
        (None, b" 0.25\n", {"reward": 0.25}),
        (None, b"1.0", {"reward": 1.0}),
        (b"1", None, {"reward": 1.0}),
        (b'{"f2p": 1, "style": 0.5}', b"0", {"f2p": 1.0, "style": 0.5}),
    ],
)
def test_a_reward_is_a_number_and_json_goes_first(
    as_json: bytes | None, as_text: bytes | None, rewards: dict[str, float]
) -> None:
    assert read_rewards(as_json, as_text) == rewards


@pytest.mark.parametrize(
    "text", [b"", b"yes", b"-0.1", b"1.5", b"nan", b"inf", b"1e0", b"0x1", b"1 1", b"\xff", b"1_0"]
)
def test_a_text_that_is_no_number_from_0_to_1_is_no_reward(text: bytes) -> None:
    with pytest.raises(BadReward, match="no number from 0 to 1"):
        read_rewards(None, text)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"[1]",
        b"true",
        b'{"a": true}',
        b'{"a": "1"}',
        b'{"a": NaN}',
        b'{"a": 1e999}',
        b'{"a": 2}',
        b'{"a": {}}',
        b"[" * 100_000,
    ],
)
def test_json_that_is_no_table_of_such_numbers_is_no_reward(text: bytes) -> None:
    with pytest.raises(BadReward):
        read_rewards(text, b"1")


def test_no_file_is_no_reward() -> None:
    with pytest.raises(BadReward, match="left no reward"):
        read_rewards(None, None)


def test_a_foreign_task_has_no_reference_and_on_another_backend_is_told_which_one_it_needs(tmp_path: Path) -> None:
    root = tmp_path / "task"
    for path, text in {
        "task.toml": 'schema_version = "1.4"\n',
        "instruction.md": "Do it.\n",
        "environment/Dockerfile": "FROM scratch\n",
        "tests/test.sh": "#!/bin/sh\n",
        "solution/solve.sh": "#!/bin/sh\n",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    task = Task.load(root)
    assert isinstance(kind_of(task), ForeignScript)
    with pytest.raises(
        EtudeError, match=r"name another --policy, or let `etude tasks check` run its solution/solve\.sh"
    ):
        reference(task)

    async def go() -> None:
        async with await open_host("plain", tmp_path / "store") as host:
            with pytest.raises(EtudeError, match="--sandbox docker"):
                await grade(task, host, ())
            report = await check_directory(root, host)
            assert any("--sandbox docker" in problem for problem in report.problems)

    asyncio.run(go())
