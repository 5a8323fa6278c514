"""Plans for JavaScript tasks: what a forger has to guess, and what counts for nothing as it can be told."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("tree_sitter_javascript", reason="the extra etude[languages] is not installed")

from etude.core.errors import EtudeError
from etude.tasks.format.file_tree import Files
from etude.tasks.grading.javascript_plan import draw_javascript
from etude.tasks.grading.javascript_test_mutations import mutations_of
from etude.tasks.javascript.test_source import read

HEAD = "const test = require('node:test');\nconst assert = require('node:assert');\nconst { f } = require('..');\n"


def task(*bodies: str) -> Any:
    """One visible test, and a held-out one for each body."""
    tests = [f"test('t{number}', () => {{ {body} }});\n" for number, body in enumerate(("f(0);", *bodies))]
    ids = [f"test/a.test.js::t{number}" for number in range(len(tests))]
    facts = SimpleNamespace(suite="node", fail_to_pass=ids[:1], pass_to_pass=[], held_out=ids[1:])
    files = Files({"test/a.test.js": (HEAD + "".join(tests)).encode()})
    return SimpleNamespace(name="made", facts=facts, tests=files)


@pytest.mark.parametrize(
    ("assertion", "leaf"),
    [
        ("assert.ok(f(1) === 'abc')", "'abc'"),
        ("assert.ok((12 == f(1)))", "12"),
        ("assert(f(1) === true)", "true"),
        ("assert.ok(f(1) !== 3)", ""),
        ("assert.ok(f(1) === f(2))", ""),
        ("assert.ok(f(1))", ""),
    ],
)
def test_of_a_comparison_with_a_literal_the_literal_is_changed(assertion: str, leaf: str) -> None:
    file = read(f"{HEAD}test('a', () => {{ {assertion}; }});\n")
    assert file is not None
    assert mutations_of(file, next(file.top.units()))[0].leaf == leaf


@pytest.mark.parametrize(
    "bodies",
    [
        ["assert.ok(f(1));", "assert.ok(f(2) > 1);"],
        ["assert.throws(() => f(1));"],
        ["assert.strictEqual(f(1), f(2));"],
    ],
)
def test_a_task_whose_changed_tests_can_be_told_is_refused(bodies: list[str]) -> None:
    with pytest.raises(EtudeError, match="no held-out test with a literal"):
        draw_javascript(task(*bodies), None, random.Random(1))  # type: ignore[arg-type]


def test_what_can_be_told_saves_no_process() -> None:
    """As many as for one test whose literal changes: of the others nobody has to guess."""
    told = ["assert.ok(f(1));"] * 9
    alone = draw_javascript(task("assert.strictEqual(f(1), 5);"), None, random.Random(1))  # type: ignore[arg-type]
    among = draw_javascript(task("assert.strictEqual(f(1), 5);", *told), None, random.Random(1))  # type: ignore[arg-type]
    assert len(among.parts) == len(alone.parts) > 3
