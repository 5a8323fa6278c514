"""JavaScript is read as functions, cut by place, and everything else stays as it was."""

from __future__ import annotations

import random

import pytest

from etude.forge.languages.base import COPIED, LocatedTest, stretches
from etude.forge.languages.javascript.mutations import mutations
from etude.forge.languages.javascript.repository import JavaScriptRepository
from etude.forge.languages.javascript.source import JavaScriptFile
from etude.forge.origins.deletion.propose import delete, deletions
from etude.forge.steps.choose_functions import FunctionSet
from etude.tasks.grading.javascript_test_mutations import mutations_of
from etude.tasks.javascript.test_source import read
from tests.forge.javascript_repository import FILES, script_repository


@pytest.fixture
def repository() -> JavaScriptRepository:
    return script_repository()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("function a() { return 1; }\nasync function* b() {}", ["a", "b"]),
        ("const a = () => 1, b = function () {};\nlet c = 3;", ["a", "b"]),
        ("exports.a = function () {};\nmodule.exports.b = (x) => x;", ["a", "b"]),
        ("module.exports = function () { function inner() {} };", ["module.exports"]),
        ("module.exports = function named() {};", ["named"]),
        ("module.exports = { a() {}, b: function () {}, 'c': () => 1, d: 4 };", ["a", "b", "c"]),
        ("class A { constructor() {} get b() { return 1; } static c() {} #d() {} e = () => 1; }", "A.constructor A.b"),
        ("Foo.prototype.bar = function () {};", ["Foo.bar"]),
        ("export function a() {}\nexport default function () {}\nexport const b = () => 2;", ["a", "default", "b"]),
        ("(function () { 'use strict'; function a() {} root.b = function () {}; }());", ["a", "b"]),
        ("!function (f) { f(); }(function () { function a() {} });", ["a"]),
        ("this is no script {", []),
    ],
)
def test_functions_have_the_names_that_people_call_them_by(text: str, names: list[str] | str) -> None:
    script = JavaScriptFile.read("a.js", text.encode())
    found = list(script.definitions) if script is not None else []
    assert found[:2] == names.split() if isinstance(names, str) else found == names


def test_a_body_goes_and_all_else_stays_byte_for_byte() -> None:
    script = JavaScriptFile("lib/money.js", FILES["lib/money.js"].encode())
    found = script.definitions["showPrice"]
    assert found.doc == "A price as text: whole units, a mark, two digits."
    assert found.signature == "const showPrice = function showPrice(cents, mark = '.')"
    after = script.edited([script.without_body(found)]).decode()
    before, behind = (
        FILES["lib/money.js"].split("  const units")[0],
        "};\n\nmodule.exports = { parsePrice, showPrice };\n",
    )
    assert after == f"{before}  throw new Error('not implemented');\n{behind}"


def test_arrows_without_a_block_and_functions_on_one_line_lose_their_bodies_too() -> None:
    script = JavaScriptFile(
        "a.js", b"const a = (x) => x + 1;\nfunction b(y) { return y; }\n// \xc3\xa4\nconst c = () => ({});\n"
    )
    edits = [script.without_body(each) for each in script.definitions.values()]
    throw = "{ throw new Error('not implemented'); }"
    want = f"const a = (x) => {throw};\nfunction b(y) {throw}\n// ä\nconst c = () => {throw};\n"
    assert script.edited(edits).decode() == want


def test_a_zero_byte_in_a_string_is_javascript() -> None:
    data = b"const a = '\x00';\nfunction b() { if (a) { return '\x00'; } return 2; }\n"
    script = JavaScriptFile("a.js", data)
    assert script.source(script.definitions["b"]).encode() in data
    assert script.edited([script.without_body(script.definitions["b"])]).startswith(
        b"const a = '\x00';\nfunction b() {"
    )
    assert mutations(script, script.definitions["b"]) == []
    file = read("test('a', () => {\n  assert.equal(a, '\x00');\n});\ntest('b', () => {\n  assert.ok(b());\n});\n")
    assert file is not None and [unit.path for unit in file.top.units()] == ["a", "b"]
    assert [bool(mutations_of(file, unit)) for unit in file.top.units()] == [False, True]


def test_places_of_the_engine_get_names_also_behind_letters_of_several_bytes() -> None:
    text = "const smile = '😀ä';\nfunction a() { return [1].map(() => 2); }\n"
    script = JavaScriptFile("a.js", text.encode())
    units = text.encode("utf-16-le")
    start = units.index("() => 2".encode("utf-16-le")) // 2
    found = script.around(start, start + len("() => 2"))
    assert found is not None and found.name == "a"
    assert script.around(0, 5) is None


def test_traces_are_told_by_names(repository: JavaScriptRepository) -> None:
    assert repository.traces["test/words.test.js::slug > joins words"] == {"lib/words.js:slug"}
    assert repository.traces["test/words.test.js::initials > of x"] == {"lib/words.js:initials"}
    assert repository.reach["lib/words.js:slug"].bit_count() == 3


def chosen(repository: JavaScriptRepository, *names: str) -> FunctionSet:
    return FunctionSet("function", tuple(repository.symbols[name] for name in names), 0)


def test_a_function_goes_whole_where_only_its_export_mentions_it(repository: JavaScriptRepository) -> None:
    made = delete(repository, chosen(repository, "lib/money.js:parsePrice"), whole=True)
    assert made is not None and [piece.gone for piece in made.pieces] == [True]
    after = (made.changes["lib/money.js"] or b"").decode()
    assert "parsePrice" not in after and "Cents of a price" not in after
    assert "module.exports = { showPrice };" in after


def test_what_something_else_mentions_loses_its_body_alone(repository: JavaScriptRepository) -> None:
    made = delete(repository, chosen(repository, "lib/money.js:showPrice"), whole=True)
    assert made is not None and [piece.gone for piece in made.pieces] == [False]
    assert made.how == "bodies"


def test_methods_and_exported_functions_go_whole_or_lose_their_bodies(repository: JavaScriptRepository) -> None:
    made = delete(repository, chosen(repository, "lib/words.js:slug", "lib/cart.js:Cart.remove"), whole=True)
    assert made is not None and made.how == "slice"
    assert (made.changes["lib/words.js"] or b"").decode() == "'use strict';\n\nexports.initials" + WORDS_REST
    assert {piece.name: piece.gone for piece in made.pieces} == {"slug": True, "Cart.remove": True}
    assert JavaScriptFile.read("lib/cart.js", made.changes["lib/cart.js"] or b"") is not None


WORDS_REST = FILES["lib/words.js"].partition("exports.initials")[2]


def test_tests_belong_to_the_calls_that_they_are_written_in(repository: JavaScriptRepository) -> None:
    path = "test/words.test.js"
    assert repository.place(f"{path}::slug > joins words") == LocatedTest(path, "slug > joins words")
    assert repository.place(f"{path}::initials > of x") == LocatedTest(path, "initials > *")
    assert repository.place(f"{path}::initials > ignores gaps") == LocatedTest(path, "initials > ignores gaps")
    assert repository.title(f"{path}::slug > joins words") == '"joins words"'
    assert repository.title(f"{path}::slug > empty[2]") == "empty"


def test_hidden_tests_leave_their_files_and_whole_files_go_with_their_last_test(
    repository: JavaScriptRepository,
) -> None:
    path = "test/words.test.js"
    hidden = [LocatedTest(path, "slug > joins words"), LocatedTest(path, "initials > *")]
    assert all(map(repository.is_movable, hidden))
    text = (dict(repository.without_tests(hidden))[path] or b"").decode()
    assert "joins words" not in text and "of ${name}" not in text
    assert "keeps numbers" in text and "ignores gaps" in text and JavaScriptFile.read(path, text.encode()) is not None
    money = [place for place in repository.places if place.path == "test/money.test.js"]
    assert dict(repository.without_tests(money)) == {"test/money.test.js": None}


def test_tests_that_hold_the_answer_are_found(repository: JavaScriptRepository) -> None:
    made = delete(repository, chosen(repository, "lib/words.js:slug"), whole=False)
    assert made is not None
    copied = set().union(*(stretches(piece.source, COPIED) for piece in made.pieces))
    assert list(repository.tests_with(copied)) == []


def test_the_same_seed_gives_the_same_candidates(repository: JavaScriptRepository) -> None:
    keys = [[each.key for each in deletions(repository, random.Random(seed))] for seed in (3, 3)]
    assert keys[0] == keys[1]


def test_names_that_tests_take_from_the_project_are_told(repository: JavaScriptRepository) -> None:
    assert repository.used_names(["test/words.test.js::slug > joins words"]) == ["from `../lib/words`: `slug`"]
    assert {"slug", "assert", "strictEqual"} <= repository.mentioned(["test/words.test.js::slug > joins words"])
