"""History as text: each commit its message and its change, from repositories that nobody vouches for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from etude.corpus.document import Document, Rejected
from etude.corpus.sources.table import open_sources
from tests.corpus.test_sources_git import git


def source(root: Path, **settings: Any) -> Any:
    return open_sources([{"use": "commits", "path": str(root), "name": "history", **settings}])[0]


@pytest.fixture
def history(tree: Callable[[dict[str, str | bytes]], Path]) -> Path:
    root = tree({"LICENSE": "MIT License", "a.py": "a = 1\n"})
    git(root, "init", "-q", "-b", "main")
    for number, (name, text) in enumerate(
        [("a.py", "a = 1\n"), ("a.py", "a = 2\n"), ("data.bin", "x"), ("b.py", "caf\xe9 = 1\n"), ("a.py", "a = 3\n")]
    ):
        (root / name).write_bytes(text.encode("latin-1"))
        git(root, "add", "-A")
        git(root, "commit", "-q", "-m", f"Change {number}\n\nBecause of {name}.")
    return root


def test_a_commit_is_its_message_and_its_change_oldest_first(history: Path) -> None:
    found = list(source(history).documents())
    documents = [item for item in found if isinstance(item, Document)]
    assert [item.text.partition("\n")[0] for item in documents] == ["Change 0", "Change 1", "Change 4"]
    assert "-a = 1\n+a = 2\n" in documents[1].text and "Because of a.py." in documents[1].text
    assert "example.org" not in documents[1].text  # nobody's name or address
    assert {(item.repo, item.license) for item in documents} == {("history", "permissive")}
    assert [item.reason for item in found if isinstance(item, Rejected)] == ["no code changed", "not UTF-8"]
    expected = git(history, "diff-tree", "-p", "--no-commit-id", "HEAD")
    assert documents[-1].text == f"Change 4\n\nBecause of a.py.\n\n{expected}\n"


def test_reading_begins_anywhere_and_a_huge_change_is_refused_alone(history: Path) -> None:
    for each in (source(history), source(history, max_file_bytes=300)):
        whole = list(each.documents())
        assert len(whole) == 5
        assert all(list(each.documents_from(start)) == whole[start:] for start in range(6))
    (history / "a.py").write_text("".join(f"x{n} = {n}\n" for n in range(2000)))
    git(history, "commit", "-q", "-a", "-m", "Much")
    last = list(source(history, max_file_bytes=300).documents())[-1]
    assert isinstance(last, Rejected) and last.reason == "too big"
    assert len(list(source(history, newest=2).documents())) == 2


def test_nothing_of_a_hostile_repository_runs(history: Path, tmp_path: Path) -> None:
    trap = tmp_path / "trap.sh"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/sprung\ncat\n")
    trap.chmod(0o755)
    (history / ".git/info").mkdir(exist_ok=True)
    (history / ".git/info/attributes").write_text("*.py diff=evil filter=evil\n")
    (history / ".gitattributes").write_text("*.py diff=evil filter=evil\n")
    with (history / ".git/config").open("a") as config:
        config.write(f'[diff]\n\texternal = {trap}\n[diff "evil"]\n\ttextconv = {trap}\n\tcommand = {trap}\n')
        config.write(f"[core]\n\tfsmonitor = {trap}\n\tpager = {trap}\n[uploadpack]\n\tpackObjectsHook = {trap}\n")
    before = len([item for item in source(history).documents() if isinstance(item, Document)])
    assert before == 3 and not (tmp_path / "sprung").exists()


def test_a_message_cannot_pass_for_another_commit(history: Path) -> None:
    ids = git(history, "rev-list", "--reverse", "HEAD").split()
    (history / "a.py").write_text(f"{ids[0]}\n")
    git(history, "commit", "-q", "-a", "-m", f"x\n\n{ids[0]}\n{ids[1]}")
    documents = [item for item in source(history).documents() if isinstance(item, Document)]
    assert f"+{ids[0]}" in documents[-1].text and ids[0] not in documents[0].text


def test_a_shallow_clone_gives_the_commits_whose_parents_it_has(history: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", "--depth", "3", f"file://{history}", "shallow")
    found = [item.text for item in source(tmp_path / "shallow").documents() if isinstance(item, Document)]
    assert [text.partition("\n")[0] for text in found] == ["Change 4"]  # the oldest would seem to write every file
