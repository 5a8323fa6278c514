"""Bugs in JavaScript are small edits at places of the parser, never end a loop's end, and make tasks like Python's."""

from __future__ import annotations

import difflib
import random
from itertools import islice

import pytest

from etude.forge.languages.javascript.mutations import KINDS, mutations
from etude.forge.languages.javascript.source import JavaScriptFile
from etude.forge.origins.bug.propose import bugs
from etude.forge.pipeline.make import make_tasks
from etude.forge.steps.context import MakeRequest
from etude.policies.table import make_policy
from etude.rollout.rollout import Scored, build_setup, run_rollout
from etude.tasks.check import check
from etude.tasks.format.task import Task
from etude.tasks.grade import grade
from etude.tasks.grading.submission import submission_of
from redteam.grader.javascript_attacks import javascript_attacks
from tests.forge.javascript_repository import FILES, Bench, Shop, script_repository


def changed(body: str) -> set[str]:
    """Every way in which a function's one statement can be wrong."""
    found = JavaScriptFile("m.js", f"function f(a, b) {{\n  {body}\n  return a;\n}}\n".encode())
    edits = [each.edit for each in mutations(found, found.definitions["f"])]
    texts = [found.edited([edit]).decode() for edit in edits]
    return {text.removeprefix("function f(a, b) {\n").removesuffix("  return a;\n}\n").strip() for text in texts}


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("a = b < 3;", {"a = b <= 3;", "a = b < 4;", "a = b < 2;"}),
        ("a = a === b;", {"a = a !== b;"}),
        ("a = a in b;", {"a = !(a in b);"}),
        ("a = a + b;", {"a = a - b;"}),
        ("a = a % b;", {"a = a / b;"}),
        ("a = 'x' + (a + b);", set()),
        ("a = a + b + `c`;", set()),
        ("a = b || {};", {"a = b && {};"}),
        ("a = g(a, b);", {"a = g(b, a);"}),
        ("a = new G(a, b, c);", {"a = new G(b, a, c);"}),
        ("a = b.slice(1);", {"a = b.slice(0, 1);", "a = b.slice(2);", "a = b.slice(0);"}),
        ("a = b.slice(c, d);", {"a = b.slice(d, c);"}),
        ("a.push(b);", {""}),
        ("a.b = b; // kept with it", {""}),
        ("a += b;", {""}),
        ("delete a.b;", {""}),
        ("a = true;", {"a = false;"}),
        ("a = void 0;", set()),
        ("a = 0x10 + 1.5;", {"a = 0x10 - 1.5;"}),
        ("if (a) return b;", {"", "if (!a) return b;"}),
        ("if (!a) { throw b; }", {"", "if (a) { throw b; }"}),
        (
            "if (a) { return b; } else { g(); }",
            {"if (!a) { return b; } else { g(); }", "if (a) { return b; } else {  }"},
        ),
        ("a = a ? b : c;", {"a = !a ? b : c;"}),
        (
            "for (var i = 0; i < b; i++) g(i);",
            {"for (var i = 1; i < b; i++) g(i);", "for (var i = 0; i <= b; i++) g(i);"},
        ),
        (
            "for (const x of b) { if (x) break; }",
            {
                "for (const x of b) { if (x) continue; }",
                "for (const x of b) { if (!x) break; }",
                "for (const x of b) {  }",
            },
        ),
        ("switch (a) { case b: break; }", set()),
    ],
)
def test_kinds_of_mistakes(body: str, wanted: set[str]) -> None:
    assert changed(body) == wanted


@pytest.mark.parametrize(
    "body",
    [
        "while (a < 10) { a += 1; }",
        "do { a.pop(); } while (a.length > 0);",
        "for (;;) { break; }",
        "for (var i = 0; i !== b; i++) { i += 2; }",
        "for (var i = 0; i < 10; i++) { i -= 1; }".replace("i < 10", "next(i)"),
        "while ((a = b.exec(c)) !== null) { continue; }",
    ],
)
def test_what_decides_whether_a_loop_ends_is_left_alone(body: str) -> None:
    assert changed(body) == set()


def test_a_counting_loop_keeps_its_step() -> None:
    texts = changed("for (let i = b.length - 1; i >= 0; i--) { i--; b[i] = 5; }")
    assert texts and all("i--) { i--;" in text and "i - " not in text for text in texts)


def test_every_mistake_leaves_javascript_and_all_else_as_it_was() -> None:
    seen = set()
    for path in ("lib/money.js", "lib/words.js", "lib/cart.js"):
        script = JavaScriptFile(path, FILES[path].encode())
        for definition in script.definitions.values():
            for each in mutations(script, definition):
                seen.add(each.kind)
                after = script.edited([each.edit])
                assert JavaScriptFile.read(path, after) is not None, (each.kind, definition.name)
                assert after.startswith(script.data[: each.edit.start]) and after.endswith(script.data[each.edit.end :])
    assert len(seen) > len(KINDS) // 2


def test_candidates_follow_the_seed_and_change_little() -> None:
    repository = script_repository()
    made = list(islice(bugs(repository, random.Random(1)), 8))
    assert made and [each.key for each in made] == [each.key for each in islice(bugs(repository, random.Random(1)), 8)]
    assert len({each.key for each in made}) == len(made)
    for each in made:
        assert each.origin == "bug" and 1 <= each.lines <= 4 and each.expected <= set(repository.green)
        for path, data in each.changes.items():
            assert data is not None
            before, after = repository.files.text(path).splitlines(), data.decode().splitlines()
            assert sum(line.startswith("+ ") for line in difflib.ndiff(before, after)) <= 4


@pytest.fixture(scope="session")
def bug(bench: Bench, script_shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> Task:
    out = tmp_path_factory.mktemp("bugs")
    journal = bench.run(
        make_tasks(script_shop.repo, script_shop.environment, bench.host, MakeRequest(1, out, origins=("bug",)))
    )
    assert journal.tasks, journal.rejected
    return Task.load(out / journal.tasks[0])


def test_a_bug_becomes_a_task_that_passes_its_check(bench: Bench, bug: Task) -> None:
    assert bug.facts.category == "debugging" and bug.facts.held_out and bug.facts.fail_to_pass
    for path in bug.solution:
        assert bug.solution.text(path) == FILES[path] != bug.workspace.text(path)
        assert "not implemented" not in bug.workspace.text(path)
    assert "fail" in bug.files.text("instructions/plain.md").lower()
    report = bench.run(check(bug, bench.host))
    assert report.ok, report.problems


@pytest.mark.parametrize(("policy", "passed"), [("reference", True), ("null", False)])
def test_an_attempt_at_a_bug_is_scored(bench: Bench, bug: Task, policy: str, passed: bool) -> None:
    outcome = bench.run(run_rollout(bug, make_policy(policy, bug, None, 0), bench.host, build_setup()))
    assert isinstance(outcome, Scored) and outcome.passed is passed, outcome


def test_no_cheat_is_accepted_for_a_bug(bench: Bench, bug: Task) -> None:
    tried = javascript_attacks(bug)
    assert len(tried) == 22
    for name, files in tried.items():
        assert not bench.run(grade(bug, bench.host, submission_of(bug, files), quick=True)).passed, name
