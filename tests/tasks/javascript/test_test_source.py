"""Tests of JavaScript are found in their files, and changed so that right code fails them."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tree_sitter_javascript", reason="the extra etude[languages] is not installed")

from etude.core.errors import EtudeError
from etude.tasks.grading.javascript_plan import draw_canaries
from etude.tasks.grading.javascript_test_mutations import mutate, mutations_of
from etude.tasks.javascript import parsing
from etude.tasks.javascript.test_source import TestFile, read
from etude.tasks.sandbox_side.node_tests import id_of, plain_name

HEAD = "const test = require('node:test');\nconst assert = require('node:assert');\n"
ASSERTIONS = {
    "equal": "assert.strictEqual(1 + 2, 3);",
    "text": "assert.equal('a' + 'b', 'ab');",
    "turned": "assert.equal(4, [2, 2].reduce((a, b) => a + b));",
    "list": "assert.deepStrictEqual([1, 2].concat(3), [1, 2, 3]);",
    "object": "assert.deepEqual({ a: [true] }, { a: [true] });",
    "variable": "const want = 3; assert.equal(1 + 2, want);",
    "empty": "assert.deepEqual([].concat(), []);",
    "truth": "assert.ok(1 < 2);",
    "bare": "assert(1 < 2);",
    "throws": "assert.throws(() => { throw new TypeError('x'); }, TypeError);",
    "quiet": "assert.doesNotThrow(function () {});",
    "subscript": "assert['throws'](function () { throw new Error('x'); });",
    "nothing": "const a = 1;",
    "leaving": "if (1 < 2) { return; }\n  assert.equal(1, 1);",
}


def node(text: str, folder: Path) -> int:
    (folder / "a.test.js").write_text(text)
    return subprocess.run(["node", "a.test.js"], cwd=folder, capture_output=True, timeout=60).returncode


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not on this machine")
@pytest.mark.parametrize("name", ASSERTIONS)
def test_every_change_of_a_passing_test_makes_it_fail(name: str, tmp_path: Path) -> None:
    source = f"{HEAD}test('it', () => {{\n  {ASSERTIONS[name]}\n}});\n"
    assert node(source, tmp_path) == 0
    file = TestFile(source)
    (unit,) = file.top.units()
    found = mutations_of(file, unit)
    assert len(found) >= (1 if name in ("nothing", "leaving") else 2)
    for number, change in enumerate(found):
        text = mutate(source, [change], random.Random(number))
        assert text != source and node(text, tmp_path) == 1, text


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not on this machine")
def test_canaries_come_out_as_they_must(tmp_path: Path) -> None:
    source = f"{HEAD}test('it', () => {{\n  assert.ok(true);\n}});\n"
    code, must_fail, must_pass = draw_canaries("a.test.js", TestFile(source), random.Random(0))
    (tmp_path / "a.test.js").write_text(source + code)
    done = subprocess.run(
        ["node", "--test-reporter=tap", "a.test.js"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    told = {line.partition(" - ")[2]: line.split()[0] for line in done.stdout.splitlines() if "ok " in line[:7]}
    names = {test: test.partition("::")[2] for test in (*must_fail, *must_pass)}
    assert len(must_fail) == 2 and [told[names[each]] for each in must_fail] == ["not", "not"]
    assert [told[names[each]] for each in must_pass] == ["ok"]


@pytest.mark.parametrize(
    ("source", "body"),
    [
        (
            "const test = require('tape');\ntest('a', (t) => { t.plan(1); t.equal(1, 1); });\n",
            "function (t) { t.equal(",
        ),
        (
            "const { test } = require('node:test');\ntest('a', (t) => { t.plan(1); t.assert.ok(1); });\n",
            "t.assert.equal(",
        ),
        ("describe('a', () => { it('b', () => { x.should.equal(1); }); });\n", "function () { (function () { throw"),
    ],
)
def test_canaries_are_written_as_the_tests_around_them(source: str, body: str) -> None:
    code, must_fail, must_pass = draw_canaries("test/a.js", TestFile(source), random.Random(0))
    assert body in code and ("t.end();" in code) == ("tape" in source)
    assert len(must_fail) == 2 and len(must_pass) == 1 and read(source + code) is not None


def test_nothing_is_added_to_a_test_that_counts_its_assertions() -> None:
    file = TestFile("const test = require('tape');\ntest('a', (t) => { t.plan(1); f(() => t.equal(1, 1)); });\n")
    assert mutations_of(file, next(file.top.units())) == ()


EXPECTATIONS = """
describe('all', function () {
  it('a', function () { expect(sum(1)).to.equal(2); });
  it('b', function () { sum(1).should.equal(2); });
  it('c', function () { expect(function () { sum(); }).to.throw(Error); });
  it('d', function () { expect(sum(1)).to.not.equal(2); });
  it('e', () => expect(1).toBe(1));
});
"""


def test_expectations_of_other_libraries_are_changed_as_well() -> None:
    file = TestFile(EXPECTATIONS)
    changed = {
        unit.name: [mutate(EXPECTATIONS, [each], random.Random(1)) for each in mutations_of(file, unit)[:-1]]
        for unit in file.top.units()
        if not unit.parts
    }
    assert {name: len(texts) for name, texts in changed.items()} == {"a": 1, "b": 1, "c": 1, "d": 0, "e": 0}
    assert ".to.equal(2)" not in changed["a"][0] and "expect((function () {})).to.throw" in changed["c"][0]


NESTED = """
const tape = require('tape');
tape('outer', (t) => {
  t.test('one', (st) => { st.end(); });
  cases.forEach((each) => {
    t.test(each.name, (st) => { st.equal(each.a, each.b); st.end(); });
  });
});
tape('twice', (t) => t.end());
tape('twice', (t) => t.end());
describe(`made ${1}`, () => { it('x', () => {}); });
"""


def test_tests_are_found_by_their_names_however_they_are_nested() -> None:
    file = TestFile(NESTED)
    paths = [unit.path for unit in file.top.units()]
    assert paths == ["outer", "outer > one", "outer > *", "twice", "twice", "*", "* > x"]
    homes = {"outer > one": "outer > one", "outer > made at run time": "outer > *", "twice[2]": "twice"}
    homes |= {"made 1 > x": "* > x", "outer": "outer"}
    assert {name: file.home(name).path for name in homes} == homes
    assert len(file.all_at("twice")) == 2
    assert [unit.repeated for unit in file.top.units()][1:3] == [False, True]


def test_names_are_made_plain() -> None:
    assert plain_name(" a[0]\n  is::b ") == "a(0) is:b"
    assert id_of("test/a.js", ["x", "y  z"]) == "test/a.js::x > y z"


def test_a_missing_parser_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    parsing._parser.cache_clear()
    monkeypatch.setitem(sys.modules, "tree_sitter_javascript", None)
    with pytest.raises(EtudeError, match=r"pip install 'etude\[languages\]'"):
        parsing.require_parser()


def test_what_is_no_script_is_not_read() -> None:
    assert read("this is { no script") is None
