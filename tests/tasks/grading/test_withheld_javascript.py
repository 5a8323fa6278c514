"""Tests of JavaScript without their answers: what leaves the source, what is recorded, and how it is compared."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tree_sitter_javascript", reason="the extra etude[languages] is not installed")

from etude.tasks.grading.withheld import javascript_values
from etude.tasks.grading.withheld.compare import comparable, matches, records_match
from etude.tasks.grading.withheld.estimate import estimated_bits
from etude.tasks.grading.withheld.javascript_rewrite import records_by_test, rewrite
from etude.tasks.grading.withheld.sites import Site
from etude.tasks.sandbox_side import node_tests

HEAD = (
    "const test = require('node:test');\nconst assert = require('node:assert');\n"
    "const strict = require('node:assert/strict');\nconst { f } = require('..');\n"
)


def of_one(assertion: str, given: str = "") -> tuple[str, list[Site]]:
    made = rewrite(f"{HEAD}test('a', ({given}) => {{ {assertion} }});\n")
    return made.text.removeprefix(HEAD).strip(), list(made.sites)


@pytest.mark.parametrize(
    ("assertion", "recorded", "operator"),
    [
        ("assert.strictEqual(f(1), 'abc', 'is abc');", "_etude_seen(0, f(1));", "js_same"),
        ("assert.equal(f(1), -12);", "_etude_seen(0, f(1));", "js_alike"),
        ("strict.equal(f(1), [1, { a: null }]);", "_etude_seen(0, f(1));", "js_same"),
        ("assert.deepEqual(new Map([['a', 1]]), f(1));", "_etude_seen(0, f(1));", "js_alike"),
        ("assert.ok(f(1) === `x`);", "_etude_seen(0, f(1));", "js_same"),
        ("assert(f(1));", "_etude_seen(0, !!(f(1)));", "true"),
        ("assert.deepStrictEqual(f(1), f(2));", "_etude_seen(0, f(1), f(2));", "pair"),
        ("assert.throws(() => f(1), TypeError);", "_etude_throws(0, () => f(1));", "raises"),
        ("assert.throws(() => f(1), /no \\w+/i);", "_etude_throws(0, () => f(1));", "raises"),
        ("await assert.rejects(f(1), { message: 'gone' });", "await _etude_rejects(0, f(1));", "raises"),
        ("assert.match(f(1), /^a+$/);", "_etude_seen(0, f(1));", "regex"),
        ("f(1) // gives 12", "f(1)", None),
        ("assert.notStrictEqual(f(1), 3);", "assert.notStrictEqual(f(1), 3);", None),
        ("assert.throws(() => f(1), (e) => e.code === 3);", "assert.throws(() => f(1), (e) => e.code === 3);", None),
    ],
)
def test_the_expected_side_leaves_the_source(assertion: str, recorded: str, operator: str | None) -> None:
    made, sites = of_one(assertion + "\n")
    assert recorded in made
    assert [site.operator for site in sites] == ([operator] if operator else [])
    for gone in ("abc", "12", "no \\w", "gone", "TypeError"):
        assert gone not in made


def test_who_counts_assertions_is_told_of_one() -> None:
    made, _ = of_one("t.plan(1); t.equal(f(1), 'abc');", "t")
    assert made == "test('a', (t) => { t.plan(1); _etude_counted(t, _etude_seen(0, f(1))); });"


def test_expectations_of_chai() -> None:
    head = "const { expect } = require('chai');\n"
    body = "expect(f(1)).to.deep.equal({ a: 'abc' });\n  expect(f(2)).to.be.true;\n  expect(f(3)).to.not.equal(4);\n"
    made = rewrite(f"{head}it('a', () => {{\n  {body}}});\n")
    assert "_etude_seen(0, f(1));" in made.text and "_etude_seen(1, f(2));" in made.text and "abc" not in made.text
    assert "expect(f(3)).to.not.equal(4);" in made.text and len(made.sites) == 2


def test_a_name_that_only_assertions_read_goes_with_them() -> None:
    text = (
        f"{HEAD}const WORDS = ['one', 'two'];\nconst input = 'three';\n"
        "test('a', () => { const wanted = WORDS.concat('four'); assert.deepEqual(f(input), wanted); });\n"
        "test('b', () => { assert.equal(f('x'), input); });\n"
    )
    made = rewrite(text)
    assert "one" not in made.text and "four" not in made.text and "const input = 'three'" in made.text
    assert [site.exposed for site in made.sites] == [False, True]
    assert estimated_bits(text, {"b"}, rewrite) == 0 < estimated_bits(text, {"a"}, rewrite)


def test_numbers_do_not_depend_on_what_stays() -> None:
    text = f"{HEAD}test('a', () => {{ assert.equal(f(1), 3); }});\ntest('b', () => {{ assert.equal(f(2), 4); }});\n"
    assert "_etude_seen(1, f(2))" in rewrite(text).text
    left = rewrite(text, left=frozenset({"a"})).text
    assert "assert.equal(f(1), 3)" in left and "_etude_seen(1, f(2))" in left
    cut = rewrite(text, cut=frozenset({"a"})).text
    assert "f(1)" not in cut and "_etude_seen(1, f(2))" in cut
    assert "assert.equal(f(2), 4)" in rewrite(text, demoted=frozenset({1})).text


def test_hooks_groups_and_tests_with_parts_keep_their_own_assertions() -> None:
    text = (
        "import assert from 'node:assert';\nimport { describe, it, beforeEach } from 'node:test';\n"
        "describe('g', () => {\n  beforeEach(() => { assert.equal(f(0), 0); });\n  assert.ok(f);\n"
        "  const check = (n) => assert.equal(f(n), 'abc' + n);\n  it('a', () => { check(1); });\n});\n"
        "it('whole', (t) => { assert.equal(f(7), 7); t.test('part', () => { assert.equal(f(8), 8); }); });\n"
    )
    made = rewrite(text)
    assert "beforeEach(() => { assert.equal(f(0), 0); });" in made.text and "assert.ok(f);" in made.text
    assert (
        "_etude_begins(0); check(1);" in made.text
        and "const check = (n) => _etude_seen(2, f(n), 'abc' + n)" in made.text
    )
    assert "assert.equal(f(7), 7)" in made.text and "_etude_seen(4, f(8))" in made.text
    assert made.sites[2].owner == "" and made.sites[4].owner == "whole > part"


def test_records_belong_to_the_test_of_their_assertion_or_to_the_one_that_runs() -> None:
    text = f"{HEAD}const check = (n) => assert.equal(f(n), n);\ntest('a', () => {{ check(1); }});\n" + (
        "test('b', () => { check(2); assert.equal(f(3), 'x'); });\n"
    )
    made = rewrite(text)
    said = [[0, 0, 1, 1], [1, 0, 2, 2], [0, 1, "x"], [-1, 0, 5, 5]]
    found = records_by_test(json.dumps(said), made)
    assert found == {"a": [[0, 1, 1]], "b": [[0, 2, 2], [1, "x"]], "": [[0, 5, 5]]}
    for wrong in ("[[0, 7, 1]]", "[[0, -1, 1]]", "[[true, 0, 1]]", '["x"]', "[[0, 0]]"):
        with pytest.raises(ValueError):
            records_by_test(wrong, made)


@pytest.mark.parametrize(
    ("one", "other", "same", "alike"),
    [
        (1, 1, True, True),
        (1, "1", False, True),
        (True, 1, False, True),
        (True, "abc", False, False),
        (None, ["undefined"], False, True),
        (0, ["num", "-0"], False, True),
        (0, "", False, True),
        (0, None, False, False),
        ("1_0", 10, False, False),
        (["list", [1, "2"]], ["list", ["1", 2]], False, True),
        (["dict", [["a", 1]]], ["fields", "Point", [["a", "1"]]], False, True),
        (["dict", [["a", 1]]], ["dict", [["b", 1]]], False, False),
        (["list", []], ["list", [1]], False, False),
    ],
)
def test_equality_is_that_of_javascript(one: Any, other: Any, same: bool, alike: bool) -> None:
    for first, second in ((one, other), (other, one)):
        assert javascript_values.same(first, second) is same
        assert javascript_values.alike(first, second) is alike
        assert matches(Site(0, "a", "js_same"), [0, first], [0, second]) is same
        assert matches(Site(0, "a", "js_alike"), [0, first], [0, second]) is alike


def test_hostile_records_are_wrong_and_end_nothing() -> None:
    site = Site(0, "a", "js_alike")
    deep: Any = 1
    for _ in range(400):
        deep = ["list", [deep]]
    for value in (deep, {}, [], [[]], ["dict"], ["dict", 3], ["fields", "x", [[1]]], ["list", None], [1, 2]):
        assert records_match({0: site}, [[0, value]], [[0, ["dict", [["a", "long"]]]]]) == 0
    assert records_match({0: site}, [[0, 1]] * 3, [[0, 1]]) == 0
    assert not comparable(site, [0, ["list", [["other", "function"]]]])


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not on this machine")
def test_the_reporter_records_values_by_their_assertion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {
        "[1, 'a', null, undefined, -0, NaN, 10n]": [
            *(1, "a", None, ["undefined"], ["num", "-0"], ["num", "NaN"], ["int", "a"]),
        ],
        "[{ b: 1, a: [true] }]": [["dict", [["a", ["list", [True]]], ["b", 1]]]],
        "[new Map([['b', 1], ['a', 2]]), new Set([2, 1])]": [["map", [["a", 2], ["b", 1]]], ["set", [1, 2]]],
        "[new Date(5), /x/g, Buffer.from('a')]": [["when", 5], ["pattern", "x", "g"], ["bytes", "61"]],
        "[new (class Point { x = 1; })()]": [["fields", "Point", [["x", 1]]]],
        "[() => 1, Symbol('a'), [, 1]]": [["other", "function"], ["other", "symbol"], ["other", "array"]],
        "[Object.defineProperty({}, 'a', { enumerable: true, get() { throw 1; } })]": ["other", "unreadable"],
        "'x'.repeat(20000)": "big",
    }
    lines = "".join(f"assert.deepEqual(f({number}), 'never');\n" for number in range(len(values)))
    throws = "assert.throws(() => { throw new RangeError('far'); }, RangeError);\n"
    source = (
        "const test = require('node:test');\nconst assert = require('node:assert');\n"
        f"const f = (n) => [{', '.join(values)}][n];\ntest('a', () => {{\n{lines}{throws}}});\n"
    )
    made = rewrite(source)
    (tmp_path / "a.test.js").write_text(made.text)
    monkeypatch.chdir(tmp_path)
    reporter = Path(node_tests.__file__).with_name("report.cjs")
    monkeypatch.setattr(node_tests, "REPORTER", str(reporter))
    silent = os.open(os.devnull, os.O_RDWR)
    found = node_tests.run_file("node", "a.test.js", [], trace=False, output=silent, recorded=True)
    os.close(silent)
    assert [(name, status) for name, status, *_ in found.tests] == [("a.test.js::a", "passed")], found
    records = records_by_test(json.dumps(found.seen), made)["a"]
    for (_, value), wanted in zip(records[: len(values)], values.values(), strict=True):
        if wanted == "big":
            assert value[0] == "big"
        else:
            assert value == (wanted if wanted[0] == "other" else ["list", wanted])
    assert records[-1] == [len(values), ["list", ["RangeError", "Error", "Object"]], "RangeError: far"]


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not on this machine")
def test_a_rewritten_file_is_still_javascript(tmp_path: Path) -> None:
    """A parenthesis or a call that begins a line must not belong to the line before."""
    text = (
        f"{HEAD}test('a', (t) => {{\n  const x = f\n  t.equal(x(1), 2)\n  assert.equal(x(2), 3)\n  ;[1].map(f)\n}})\n"
    )
    made = tmp_path / "a.js"
    made.write_text(rewrite(text).text)
    assert subprocess.run(["node", "--check", str(made)], capture_output=True).returncode == 0
    assert "const x = f\n  _etude_counted(t, _etude_seen(0, x(1)))\n  _etude_seen(1, x(2))" in made.read_text()
