"""A commit of a JavaScript history is undone in today's tree, and its own tests judge first."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from etude.forge.languages.base import LocatedTest
from etude.forge.origins.commit.instruct import category
from etude.forge.origins.commit.propose import commits, own_tests
from etude.forge.pipeline.make import make_tasks
from etude.forge.steps.context import MakeRequest
from etude.tasks.format.task import Task
from tests.forge.javascript_repository import FILES, Bench, lay_out, script_repository

WORDS, TESTS = FILES["lib/words.js"], FILES["test/words.test.js"]
MONEY, PRICES = FILES["lib/money.js"], FILES["test/money.test.js"]
FIRST = {
    **FILES,
    "lib/words.js": WORDS.partition("exports.initials")[0].rstrip() + "\n",
    "test/words.test.js": TESTS.partition("describe('initials'")[0].replace("slug, initials", "slug"),
    "lib/money.js": (
        MONEY.partition("// Cents")[0] + "/**\n * A price" + MONEY.partition("/**\n * A price")[2]
    ).replace("parsePrice, ", ""),
    "test/money.test.js": PRICES.partition("test('parses whole")[0] + PRICES[PRICES.index("test('shows a price'") :],
}
SLOPPY = FIRST["lib/words.js"].replace(" || []", "")
BEFORE = {
    "lib/words.js": SLOPPY,
    "test/words.test.js": FIRST["test/words.test.js"].replace("it('gives nothing", "it.skip('gives nothing"),
}
STEPS: list[tuple[str, Mapping[str, str]]] = [
    ("Start", {**FIRST, **BEFORE, "dist/shop.js": "var shop = 1;\n"}),
    ("Fix slug of nothing (#7)", FIRST),
    ("Build", {"dist/shop.js": "var shop = 2;\n", "package.json": FILES["package.json"]}),
    ("Add initials of names and read prices", FILES),
]


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A git checkout with one commit for each step."""
    tree = tmp_path_factory.mktemp("history") / "shop"
    tree.mkdir()
    env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}

    def git(*arguments: str) -> None:
        who = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
        subprocess.run(["git", *who, *arguments], cwd=tree, env=env, check=True, capture_output=True)

    git("init", "--quiet")
    for subject, files in STEPS:
        lay_out(tree, dict(files))
        git("add", "--all")
        git("commit", "--quiet", "--message", subject)
    return tree


def test_commits_with_tests_are_undone_newest_first(checkout: Path) -> None:
    repository = script_repository()
    newest, fix = commits(repository, checkout / ".git")
    assert (newest.about, fix.about) == ("Add initials of names and read prices", "Fix slug of nothing")
    assert newest.changes == {path: FIRST[path].encode() for path in ("lib/money.js", "lib/words.js")}
    assert [(piece.name, piece.gone) for piece in newest.pieces] == [("parsePrice", True), ("initials", True)]
    assert fix.changes == {"lib/words.js": WORDS.replace("/g) || [];", "/g);").encode()}
    assert [(piece.name, piece.gone) for piece in fix.pieces] == [("slug", False)]
    assert (category(newest), category(fix)) == ("new feature", "debugging")


def test_a_commit_s_own_tests_are_calls_that_it_added_or_changed(checkout: Path) -> None:
    repository = script_repository()
    newest, fix = commits(repository, checkout / ".git")
    path = "test/words.test.js"
    names = {each.name for each in own_tests(repository, checkout / ".git", newest.how) if each.path == path}
    assert names == {"initials", "initials > *", "initials > ignores gaps"}
    assert LocatedTest(path, "slug > gives nothing for nothing") in own_tests(repository, checkout / ".git", fix.how)
    assert LocatedTest(path, "slug > joins words") not in own_tests(repository, checkout / ".git", fix.how)


def test_a_commit_becomes_a_task(bench: Bench, checkout: Path, tmp_path: Path) -> None:
    repo, installed = bench.install(checkout)
    assert installed.environment is not None and repo.history is not None, installed.reason
    wanted = MakeRequest(1, tmp_path, origins=("commit",))
    journal = bench.run(make_tasks(repo, installed.environment, bench.host, wanted))
    assert len(journal.tasks) == 1, journal.rejected
    task = Task.load(tmp_path / journal.tasks[0])
    assert task.facts.category == "new feature"
    assert task.facts.deleted == ["lib/money.js:parsePrice", "lib/words.js:initials"]
    asked = [*task.facts.held_out, *task.facts.fail_to_pass]
    assert len(task.facts.held_out) > 2 and all("initials" in test or "parses" in test for test in asked)
    assert "nitials of names" in task.files.text("instructions/plain.md")
    assert "initials" not in task.workspace.text("lib/words.js")
