"""Tests without their answers: what goes, what is recorded, and how the grader compares it."""

from __future__ import annotations

import dataclasses
import json
import re
import resource
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from etude.core.errors import EtudeError
from etude.core.settings import GraderSettings
from etude.tasks.format.task import Task
from etude.tasks.grading.grader import GradeJob
from etude.tasks.grading.submission import submission_of
from etude.tasks.grading.withheld import compare, record
from etude.tasks.grading.withheld.answers import FILE, Answers, answers_of
from etude.tasks.grading.withheld.bits import of_text, of_value, worth
from etude.tasks.grading.withheld.compare import comparable, matches, records_match
from etude.tasks.grading.withheld.estimate import UNSPELLED, estimated_bits
from etude.tasks.grading.withheld.record import SEEDS, _Decisions, _leave, find_answers, with_answers
from etude.tasks.grading.withheld.rewrite import rewrite
from etude.tasks.grading.withheld.sites import PINNED, Site
from etude.tasks.sandbox_side.recorder import Recorder

MakeTask = Callable[..., Task]

SOURCE = '''
import pytest
from datetime import datetime
from shop import parse, Cart

GOLD = {"a": 4711}


def check(text, want):
    got = parse(text)
    assert got == want


def test_literals():
    """Says 815 in words."""
    expected = ["kilo", 99]
    assert parse("k 9") == expected
    assert not parse("x") and parse("y") > 31  # about 37
    assert parse("g") == GOLD
    assert parse("w") == datetime(2011, 2, 3)


def test_raising():
    with pytest.raises(KeyError, match="missing word"):
        parse("")
    pytest.raises(LookupError, parse, "b")


@pytest.mark.parametrize("text, want", [("one", 1001), ("two", 2002)])
def test_table(text, want):
    assert parse(text) == want


def test_helper():
    check("five", 5005)


class TestCart:
    def test_both(self):
        cart = Cart()
        self.assertEqual(cart.total(), 612)
        self.assertIn("bread", cart.names())
        assert cart == Cart()
'''


def test_expected_values_leave_the_source() -> None:
    made = rewrite(SOURCE)
    compile(made.text, "test", "exec")
    answers = ("kilo", "99", "31", "4711", "2011", "missing word", "KeyError", "LookupError", "1001", "2002", "5005")
    for answer in (*answers, "612", "bread", "815", "37"):
        assert answer not in made.text, answer
    for question in ("'k 9'", "'one'", "'two'", "'five'", "cart.total()"):
        assert question in made.text, question
    operators = [(site.owner, site.operator) for site in made.sites]
    assert ("check", "eq") in operators and ("test_literals", "gt") in operators
    assert operators[-1] == ("TestCart.test_both", "pair")  # both come from the tested code
    assert not any(site.exposed for site in made.sites)
    again = rewrite(SOURCE, left=frozenset({"test_table"}))
    assert "1001" in again.text and "99" not in again.text


def test_what_a_function_of_another_package_compares_leaves_too() -> None:
    made = rewrite(
        "from nose.tools import eq_, in_, assert_equal\n\ndef test_it():\n    eq_(parse('a'), 'ninety')\n"
        "    in_('eighty', parse('b'))\n    assert_equal('seventy', parse('c'), 'said')\n"
        "    near(parse('d'), 'sixty')\n"
    )
    assert not any(answer in made.text for answer in ("ninety", "eighty", "seventy")) and "sixty" in made.text
    assert [site.operator for site in made.sites] == ["eq", "has", "eq"]


def test_a_value_that_the_test_needs_elsewhere_stays_and_is_worth_nothing() -> None:
    made = rewrite("def test_it():\n    word = 'same'\n    assert parse(word) == word\n")
    assert "'same'" in made.text and made.sites[0].exposed


def test_the_answers_in_a_table_that_another_test_has_too_are_worth_nothing() -> None:
    head = "import pytest\nCASES = [('one', 1001), ('two', 2002)]\n"
    there = "@pytest.mark.parametrize('a, b', CASES)\ndef test_there(a, b):\n    assert f(a) == b\n"
    back = "@pytest.mark.parametrize('a, b', CASES)\ndef test_back(a, b):\n    assert g(b) == a\n"
    assert "1001" not in rewrite(head + there).text and not rewrite(head + there).sites[0].exposed
    both = rewrite(head + there + back)
    assert all(site.exposed for site in both.sites)


def test_what_a_class_of_the_tests_spells_leaves_too() -> None:
    made = rewrite(
        """
from unittest.mock import call
from shop import parse, Price
from .base import Result as R


def test_results():
    assert parse("a") == R(out="ninety", code=90)
    wanted = R(out="eighty", code=shop.ERROR)
    assert R("seventy") == parse("b")
    assert parse("c") == wanted
    assert till.add.mock_calls == [call("sixty", by=6060)]


def test_prices():
    assert Price("5.00") == Price("5")
    got = list(parse("f"))
    wanted = ["forty"]
    assert wanted == tuple(got)
    message = "fifty"
    assert message in str(parse("d"))
    with raises(ValueError, match=message):
        parse("e")
"""
    )
    for answer in ("ninety", "90", "eighty", "seventy", "sixty", "6060", "fifty", "forty"):
        assert answer not in made.text, answer
    assert {site.operator for site in made.sites[:4]} == {"eq"}
    # Where both sides build something, both are asked for.
    assert [site.operator for site in made.sites[4:]] == ["pair", "eq", "has", "raises"]
    assert "tuple(got))" in made.text


def test_two_helpers_of_one_name_are_not_mixed_up() -> None:
    text = """
def test_one():
    def y(got, want):
        assert got == want
    y(f(1), 77)

def test_two():
    def y(got, want):
        assert got == want
        print(want)
    y(f(1), 88)
"""
    made = rewrite(text)
    assert "77" not in made.text and "88" in made.text


def recorded(value: Any) -> Any:
    recorder = Recorder()
    recorder.seen(0, value)
    return json.loads(recorder.take())[0]


@pytest.mark.parametrize(
    ("operator", "expected", "right", "wrong"),
    [
        ("eq", [1, 2], [1.0, 2], (1, 2)),
        ("eq", {"a": {1, 2}}, {"a": frozenset([2, 1])}, {"a": [1, 2]}),
        ("ne", 3, 4, 3.0),
        ("is", None, None, 0),
        ("is", True, True, 1),
        ("lt", 5, 4, 5),
        ("in", ("a", "b"), "b", "ab"),
        ("has", "a", "bar", range(10**15)),
        ("starts", "ab", "abc", "cab"),
        ("approx", 0.3, 0.1 + 0.2, 0.31),
        ("approx", {"a": [1.0]}, {"a": [1.0000001]}, {"a": 1.0}),
        ("almost", 1.0, 1.00000001, 1.1),
        ("same_items", [1, 2, 2], [2, 1, 2], [1, 1, 2]),
        ("regex", "^a+$", "aaa", "aab"),
        ("regex_not", "^a+$", "aab", "aaa"),
        ("finds", "aAa", re.compile("^a+$", re.IGNORECASE), re.compile("^a+$")),
        ("finds_not", "b", "a", "("),  # what is no pattern finds nothing, and does not find nothing
        ("true", True, True, False),
    ],
)
def test_operators_mean_outside_what_they_mean_inside(operator: Any, expected: Any, right: Any, wrong: Any) -> None:
    site = Site(0, "test", operator, expected)
    reference = [0, "something else"]
    assert matches(site, recorded(right), reference) and not matches(site, recorded(wrong), reference)


def test_what_decides_itself_whether_it_is_equal_has_no_plain_form() -> None:
    class Anything(int):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = int.__hash__

    site = Site(0, "test", "eq", 5)
    for value in (Anything(5), [Anything(5)], object(), float("nan")):
        assert not matches(site, recorded(value), [0, 4])
    assert matches(Site(0, "test", "eq", PINNED), recorded({1: "x" * 50_000}), recorded({1: "x" * 50_000}))
    for hostile in (
        [0, ["decimal", "1e999999999"]],
        [0, ["set", [["list", []]]]],
        [0, {}],
        [0, ["date", [1]]],
        [0, [[]]],
    ):
        assert not matches(site, hostile, [0, 4])


def test_of_a_test_that_no_process_gets_only_the_name_is_left() -> None:
    whole, made = (
        rewrite(SOURCE, left=frozenset(["test_table"])),
        rewrite(SOURCE, left=frozenset(["test_table"]), cut=frozenset(["test_table", "TestCart.test_both"])),
    )
    assert "1001" in whole.text and "1001" not in made.text and "cart.total" not in made.text
    assert "def test_table(text, want):\n    pass" in made.text
    # The others keep their numbers.
    assert [site.number for site in made.sites] == [site.number for site in whole.sites]


def test_what_answers_are_worth_is_guessed_before_anything_runs() -> None:
    assert estimated_bits(SOURCE, ["test_literals"]) == 3 * UNSPELLED
    assert estimated_bits(SOURCE, ["TestCart.test_both"]) > 10  # "bread" among names is worth less than alone
    assert estimated_bits("def test_a():\n    assert f(1)\n    assert g() is not None\n", ["test_a"]) == 0
    assert estimated_bits("def test_a(", ["test_a"]) == 0


def test_objects_are_recorded_by_their_fields() -> None:
    @dataclasses.dataclass
    class Point:
        x: float
        note: str = dataclasses.field(default="", compare=False)

    @dataclasses.dataclass
    class Angle:
        degrees: int

        def __eq__(self, other: object) -> bool:
            return True

    site = Site(0, "test", "eq", PINNED)
    assert matches(site, recorded([Point(1.0, "a")]), recorded([Point(1, "b")]))
    assert not matches(site, recorded(Point(1.0)), recorded(Point(2.0)))
    assert not matches(site, recorded((1.0,)), recorded(Point(1.0)))
    assert matches(site, recorded(mock.call(1, a=[2])), recorded(mock.call(1, a=[2])))
    assert not matches(site, recorded(mock.call(1, a=[2])), recorded(mock.call(1, a=[3])))
    # A class that compares in its own way stays without a plain form, also in a field.
    for value in (Angle(5), Point(Angle(5))):  # type: ignore[arg-type]
        assert not matches(site, recorded(value), [0, 4]) and not comparable(site, recorded(value))


def test_bits_count_what_cannot_be_guessed() -> None:
    assert of_value(4711, "f(1)") > 10 and of_value(4711, "f(4711)") == 1
    assert of_text("an unlikely message", "") > 20 and of_text("ab", "'ab cd'") == 1


def test_bits_leave_out_what_one_record_can_guess_many_times() -> None:
    def site(operator: str, expected: object = PINNED, **options: object) -> Site:
        return Site(0, "", operator, expected, options=tuple(options.items()))  # type: ignore[arg-type]

    out = [0, "Total: 12 zebras"]
    assert worth([(site("eq"), out, "")]) > 20 and worth([(site("has", "zebras"), out, "")]) < 8
    raised = [
        [0, ["list", [f"builtins.{name}", "builtins.Exception"]], ""] for name in ("KeyError", "ValueError", "OSError")
    ]
    # One exception of the tested code's can be of all three classes.
    assert worth([(site("raises", classes=("E",)), record, "") for record in 4 * raised]) == 0


@pytest.mark.parametrize(
    ("site", "reference", "word"),
    [
        (Site(0, "", "has", "zebra"), [0, "one zebra"], "a {} too"),
        (Site(0, "", "regex", "ze+bra"), [0, "one zebra"], "a {} too"),
        (
            Site(0, "", "raises", options=(("classes", ("E",)), ("match", "zebra"))),
            [0, ["list", ["b.E"]], "no zebra"],
            "a {} is not there",
        ),
    ],
)
def test_a_record_that_holds_every_word_has_none(site: Site, reference: list[Any], word: str) -> None:
    def told(text: str) -> list[Any]:
        return [*reference[:-1], text]

    assert matches(site, told(word.format("zebra")), reference)
    assert not matches(site, told(" ".join(f"word{number}" for number in range(2000)) + " zebra"), reference)


def test_a_long_message_is_no_fault_where_a_test_asks_for_none() -> None:
    site = Site(0, "", "raises", options=(("classes", ("E",)),))
    assert matches(site, [0, ["list", ["b.E"]], "a long report " * 100], [0, ["list", ["b.E"]], "no"])


def test_a_search_without_end_costs_a_second() -> None:
    started = resource.getrusage(resource.RUSAGE_CHILDREN)
    site = Site(0, "", "finds", "a" * 60)
    assert not matches(site, [0, "(a|aa)+$b"], [0, "a+"]) and not matches(site, [0, "(a|aa)+$b"], [0, "a+b"])
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert ended.ru_utime - started.ru_utime < 3  # processor time, of two searches that are one


def test_a_search_that_a_busy_machine_cut_short_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    site, reference = Site(0, "", "finds", "a zebra there"), [0, "zebra"]
    with monkeypatch.context() as busy:
        busy.setattr(compare, "SEARCH_SECONDS", 0.0)
        assert not matches(site, [0, "ze+bra"], reference)
    assert matches(site, [0, "ze+bra"], reference)


@pytest.fixture(scope="module")
def recorded_task(grounds: Any, repository_task: MakeTask) -> Task:
    hidden = (
        "\n\n@pytest.mark.parametrize('price, want', [(4100, 4177), (52, 129)])\ndef test_sum(cart, price, want):\n"
    )
    hidden += "    assert total(cart.add(price).add(77)) == want\n"
    plain = repository_task()
    tests = {"tests/test_cart.py": plain.tests.text("tests/test_cart.py") + hidden}
    ids = ["tests/test_cart.py::test_sum[4100-4177]", "tests/test_cart.py::test_sum[52-129]"]
    task = repository_task(tests, held_out=[*plain.facts.held_out, *ids])
    job = GradeJob(task, grounds.host, submission_of(task, task.reference), GraderSettings())
    made: Task = grounds.run(with_answers(job))
    return made


def test_a_task_is_graded_by_what_its_tests_record(
    grounds: Any, recorded_task: Task, shop_files: dict[str, str]
) -> None:
    task = recorded_task
    assert task.facts.grading == "recorded" and task.facts.withheld is not None
    assert task.facts.withheld.bits > 20 and task.facts.withheld.unrecorded == 0
    answers = answers_of(task)
    assert answers is not None and answers.ids["tests/test_cart.py::test_sum[52-129]"].endswith("[row1]")
    found = grounds.grade(task)
    assert found.passed and set(found.tests.values()) == {"passed"}, (found.reason, found.details)
    cart = "src/shop/cart.py"
    wrong = shop_files[cart].replace("return sum(cart.items)", "return sum(cart.items) + (len(cart.items) > 8)")
    found = grounds.grade(task, {cart: wrong.encode()})
    assert not found.passed
    # A grade may be read by whoever is graded: it says where, not what was expected.
    assert "18" not in json.dumps(found.details)
    assert grounds.grade(task, {}).kind == "tests"


def test_tests_run_with_their_answers_only_where_ids_hold_values(
    grounds: Any, repository_task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, seeds = record._run, []

    async def counted(job: GradeJob, plan: Any, submission: Any, seed: int) -> Any:
        seeds.append(seed)
        return await original(job, plan, submission, seed)

    monkeypatch.setattr(record, "_run", counted)
    task = repository_task(fail_to_pass=["tests/test_cart.py::test_total"])
    job = GradeJob(task, grounds.host, submission_of(task, task.reference), GraderSettings())
    answers, _ = grounds.run(find_answers(job))
    assert seeds == list(SEEDS) and not answers.ids
    seeds.clear()
    own = "\n\ndef test_text(cart):\n    assert open(__file__).read().count('== 177') > 1\n"
    own += "    assert total(cart.add(100).add(77)) == 177\n"
    tests = {"tests/test_cart.py": task.tests.text("tests/test_cart.py") + own}
    task = repository_task(tests, fail_to_pass=["tests/test_cart.py::test_text"])
    answers, _ = grounds.run(find_answers(dataclasses.replace(job, task=task)))
    assert "test_text" in answers.left["tests/test_cart.py"]
    # The count is asked for, then whether it is large, which without the answers it is not: one run tells that.
    assert seeds == [*SEEDS, SEEDS[0], *SEEDS]


def test_a_value_that_another_right_solution_does_not_share_is_not_asked_for(
    grounds: Any, repository_task: MakeTask, shop_files: dict[str, str]
) -> None:
    cart = "src/shop/cart.py"
    # The expected side is the code's own: which number it is, is nobody's business.
    hidden = "\n\ndef test_mark():\n    assert total.mark == pytest.approx(total.mark)\n    assert total.mark > 2\n"
    reference, other = (f"{shop_files[cart]}\n\ntotal.mark = {mark}\n" for mark in (41, 97))
    plain = repository_task()
    tests = {"tests/test_cart.py": plain.tests.text("tests/test_cart.py") + hidden}
    held_out = [*plain.facts.held_out, "tests/test_cart.py::test_mark"]
    task = repository_task(tests, {cart: reference}, held_out=held_out)
    job = GradeJob(task, grounds.host, submission_of(task, task.reference), GraderSettings())
    files: dict[str, bytes | None] = {cart: other.encode()}
    pinned: Task = grounds.run(with_answers(job))
    assert not grounds.grade(pinned, files).passed
    shared: Task = grounds.run(with_answers(job, [submission_of(task, files)]))
    found = shared.facts.withheld
    assert found is not None and found.solutions == 1 and found.unshared == round(1 / found.assertions, 4)
    assert grounds.grade(shared, files).passed
    assert not grounds.grade(shared, {cart: other.replace("97", "1").encode()}).passed


def test_the_answers_are_not_in_the_sandbox(grounds: Any, recorded_task: Task, shop_files: dict[str, str]) -> None:
    cart = "src/shop/cart.py"
    spy = """
import os
_FOUND = []
for folder, _, names in (each for top in ("/workspace", "/tests", "/tmp") for each in os.walk(top)):
    for name in names if "site-packages" not in folder else ():  # the host's, where a test environment lies in /tmp
        path = os.path.join(folder, name)
        if not os.path.isfile(path) or os.path.getsize(path) > 100_000:
            continue
        try:
            text = open(path, errors="ignore").read()
        except OSError:
            continue
        if name == "answers.json" or "4177" in text:
            _FOUND.append(os.path.join(folder, name))


def unused():
    return _FOUND


_total = total


def total(cart):
    if _FOUND:
        raise RuntimeError(str(_FOUND))
    return _total(cart)
"""
    text = shop_files[cart] + spy.replace('"4177"', '"41" + "77"')
    found = grounds.grade(recorded_task, {cart: text.encode()})
    assert found.passed, (found.reason, found.details)


def test_a_made_task_of_an_earlier_plan_is_refused(
    grounds: Any, repository_task: MakeTask, recorded_task: Task
) -> None:
    old = repository_task(provenance="shop 1; make 2; deletion-0123456789ab")
    with pytest.raises(EtudeError, match="make it again"):
        grounds.grade(old)
    answers = json.loads(recorded_task.tests[FILE])
    files = recorded_task.files.replaced({f"tests/{FILE}": json.dumps(answers | {"plan": 0}).encode()})
    with pytest.raises(EtudeError, match="grading plan 0"):
        grounds.grade(dataclasses.replace(recorded_task, files=files))


def test_the_recorder_is_bounded() -> None:
    recorder = Recorder()
    for _ in range(100):
        recorder.seen(0, "x" * 10_000)
    assert len(recorder.take()) < 250_000
    recorder.seen(1, "y" * 100_000)
    assert json.loads(recorder.take())[0][1][0] == "big"


def test_records_of_any_depth_are_wrong_and_nothing_else() -> None:
    answers = Answers(records={"t::test": [[0, 1]]}, homes={"t::test": "t"})
    source = "def test():\n    assert f() == 1\n"
    assert answers.wrong("t::test", source, "[[0, 1]]") == ""
    # Somewhere between them is a depth that can be read and not be written again.
    for depth in (*range(900, 1000), 100_000):
        assert answers.wrong("t::test", source, f"[[0, {'[' * depth}{']' * depth}]]")


def test_records_that_no_recorder_wrote_are_not_compared() -> None:
    """Members that share one hash make a set slow to build: of four megabytes it takes minutes, in the orchestrator."""
    answers = Answers(records={"t::test": [[0, 1]]}, homes={"t::test": "t"})
    source = "def test():\n    assert f() == 1\n"
    alike = json.dumps([[0, ["set", [number * ((1 << 61) - 1) for number in range(40_000)]]]])
    before = time.process_time()
    assert answers.wrong("t::test", source, alike) == "its records are too long"
    # Within the length of all records, one of them may be too long by itself.
    short = json.dumps([[0, ["set", [number * ((1 << 61) - 1) for number in range(10_000)]]]])
    assert answers.wrong("t::test", source, short) == "assertion 0 recorded another value"
    assert time.process_time() - before < 1


def test_a_search_is_made_once_and_a_fraction_has_few_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    started = mock.Mock(side_effect=subprocess.run)
    monkeypatch.setattr(compare.subprocess, "run", started)
    site = Site(0, "", "raises", options=(("classes", ("ValueError",)), ("match", "no .* here")))
    kinds = ["list", ["builtins.ValueError"]]
    reference = [[0, kinds, f"no {number} here"] for number in range(5)]
    assert records_match({0: site}, [[0, kinds, "there is no zebra here"]] * 5, reference) is None
    assert started.call_count == 1
    assert comparable(site, [0, ["fraction", "f" * 40, "2"]])
    assert not comparable(site, [0, ["fraction", "f" * 100_000, "3"]])


def test_an_assertion_that_is_not_asked_for_keeps_that_when_a_test_before_it_stays_as_it_is() -> None:
    """Assertions are numbered without those of tests that stay: the number of another one was not asked for."""
    source = "".join(
        f"def test_{name}():\n    assert {called}() == {value}\n    assert {called}() == {value + 1}\n\n"
        for name, called, value in (("a", "f", 1), ("b", "g", 3))
    )
    path, homes = "tests/test_f.py", {"a": "tests/test_f.py", "b": "tests/test_f.py"}
    decisions = _Decisions(defaultdict(set, {path: {0, 3}}), defaultdict(set), defaultdict(set, {path: {3}}))
    answers = decisions.answers(homes)
    assert [site.owner for site in answers.rewritten(path, source).sites] == ["test_a", "test_a", "test_b", "test_b"]
    _leave(decisions, ["a"], homes, {"a": "test_a", "b": "test_b"}, answers, {path: source}, helpers=False)
    assert decisions.demoted[path] == decisions.unshared[path] == {1}
    sites = decisions.answers(homes).rewritten(path, source).sites
    assert [(site.owner, site.is_boolean) for site in sites] == [("test_b", False), ("test_b", True)]
