"""A good part of the tests that notice is taken out of what the agent sees, whole functions each."""

from __future__ import annotations

import random
from collections.abc import Callable

from etude.forge.languages.base import LocatedTest
from etude.forge.languages.python.repository import PythonRepository
from etude.forge.languages.python.tests import without_tests
from etude.forge.steps.candidate import Candidate, RemovedCode
from etude.forge.steps.hide_tests import split

Build = Callable[..., PythonRepository]
REMOVE = Candidate(
    "deletion", "bodies", {"src/shop/cart.py": b""}, (RemovedCode("src/shop/cart.py", "Cart.remove", ""),)
)


def test_at_least_three_in_ten_are_held_out_and_something_is_shown(shop_repository: PythonRepository) -> None:
    for seed in range(20):
        for start in ("tests/test_money.py", "tests/test_words.py", "tests/test_cart.py"):
            broken = [test for test in shop_repository.green if test.startswith(start)]
            found = split(shop_repository, REMOVE, broken, random.Random(seed))
            assert found is not None
            assert len(found.held_out) >= 0.3 * len(broken) and found.shown
            assert sorted((*found.held_out, *found.shown)) == sorted(broken)
            hidden = {test.partition("[")[0] for test in found.held_out}
            assert not hidden & {test.partition("[")[0] for test in found.shown}  # parameters stay together


def test_hidden_functions_go_and_everything_else_stays(shop_repository: PythonRepository) -> None:
    hidden = {
        LocatedTest("tests/test_money.py", "test_parse"),
        LocatedTest("tests/test_cart.py", "TestCart.test_lines"),
    }
    files = dict(without_tests(shop_repository, hidden))
    money, cart = (files[f"tests/test_{name}.py"].decode() for name in ("money", "cart"))
    before = shop_repository.files.text("tests/test_money.py")
    start = before.index("@pytest.mark.parametrize")
    assert money == before[:start] + before[before.index("def test_parse_zero") :]
    assert "test_lines" not in cart and "def test_no_lines" in cart and "9.99" not in cart


def test_a_file_without_other_tests_goes_whole(shop_repository: PythonRepository) -> None:
    hidden = {place for place in shop_repository.places if place.path == "tests/test_words.py"}
    assert dict(without_tests(shop_repository, hidden)) == {"tests/test_words.py": None}


def test_a_class_without_other_tests_goes_whole(build_repository: Build) -> None:
    text = "class TestA:\n    def test_x(self):\n        pass\n\n\ndef test_y():\n    pass\n"
    ids = {"tests/test_a.py::TestA::test_x": set(), "tests/test_a.py::test_y": set()}
    repository = build_repository({"tests/test_a.py": text}, ids)
    files = dict(without_tests(repository, [LocatedTest("tests/test_a.py", "TestA.test_x")]))
    assert files == {"tests/test_a.py": b"def test_y():\n    pass\n"}


BASE = "class Base:\n    def test_x(self):\n        pass\n\n    def test_z(self):\n        pass\n"


def test_an_inherited_test_goes_with_the_one_it_comes_from(build_repository: Build) -> None:
    text = f"{BASE}\n\nclass TestA(Base):\n    pass\n\n\nclass TestB(TestA):\n    pass\n"
    ids = [f"tests/test_a.py::{owner}::test_{name}" for owner in ("TestA", "TestB") for name in "xz"]
    repository = build_repository({"tests/test_a.py": text}, {name: set() for name in ids})
    for seed in range(5):
        found = split(repository, REMOVE, repository.green, random.Random(seed))
        assert found is not None and len(found.held_out) == 2
        assert len({test.rpartition("::")[2] for test in found.held_out}) == 1
        data = found.files["tests/test_a.py"]
        assert data is not None and data.count(b"def test_") == 1


MADE = """from tables import rows


class TestMade:
    pass


for number, row in enumerate(rows("{name}.txt")):
    setattr(TestMade, f"test_{number}", lambda self, row=row: None)


def test_written():
    pass
"""


def test_a_file_that_makes_its_tests_is_hidden_whole_with_the_data_that_only_it_names(build_repository: Build) -> None:
    files = {f"tests/test_{name}.py": MADE.replace("{name}", name) for name in ("left", "right")}
    files |= {f"tests/data/{name}.txt": "1 2\n" for name in ("left", "right", "both")}
    files = {path: text.replace('rows("', 'rows("both", "') for path, text in files.items()}
    made = [f"tests/test_{name}.py::TestMade::test_{number}" for name in ("left", "right") for number in range(3)]
    repository = build_repository(files, {name: set() for name in [*made, "tests/test_left.py::test_written"]})
    sides = set()
    for seed in range(10):
        found = split(repository, REMOVE, made, random.Random(seed))
        assert found is not None
        (path,) = {test.partition("::")[0] for test in found.held_out}
        side = path.removeprefix("tests/test_").removesuffix(".py")
        assert found.files == {path: None, f"tests/data/{side}.txt": None} and len(found.shown) == len(found.held_out)
        sides.add(side)
    assert sides == {"left", "right"}


OTHER = "from test_a import Base\n\n\nclass TestB(Base):\n    pass\n\n\ndef test_y():\n    pass\n"


def test_a_test_that_another_file_inherits_goes_with_the_one_it_comes_from(build_repository: Build) -> None:
    ids = [
        f"tests/test_{file}.py::{owner}::test_{name}"
        for file, owner in (("a", "Base"), ("b", "TestB"))
        for name in "xz"
    ]
    repository = build_repository({"tests/test_a.py": BASE, "tests/test_b.py": OTHER}, {name: set() for name in ids})
    for seed in range(5):
        found = split(repository, REMOVE, repository.green, random.Random(seed))
        assert found is not None and len(found.held_out) == len(found.shown) == 2
        assert len({test.rpartition("::")[2] for test in found.held_out}) == 1
        data = found.files["tests/test_a.py"]
        assert data is not None and data.count(b"def test_") == 1 and "tests/test_b.py" not in found.files


def test_a_test_is_not_hidden_where_somebody_inherits_it_in_a_way_that_is_not_known(build_repository: Build) -> None:
    other = OTHER.replace("class TestB(Base)", "class TestB(made_of(Base))")
    ids = ["tests/test_a.py::Base::test_x", "tests/test_b.py::TestB::test_x", "tests/test_b.py::test_y"]
    repository = build_repository({"tests/test_a.py": BASE, "tests/test_b.py": other}, {name: set() for name in ids})
    found = split(repository, REMOVE, repository.green, random.Random(0))
    assert found is not None and found.held_out == ("tests/test_b.py::test_y",)


def test_tests_of_an_installed_package_do_not_keep_a_file_whole(build_repository: Build) -> None:
    """`TestA` has `test_theirs` from a package: what is written in the file can be hidden all the same."""
    text = "from package.testing import Theirs\n\n\nclass Ours(Theirs):\n    def test_x(self):\n        pass\n\n\n"
    text += "class TestA(Ours):\n    pass\n\n\ndef test_y():\n    pass\n"
    ids = [f"tests/test_a.py::{name}" for name in ("TestA::test_x", "TestA::test_theirs", "test_y")]
    repository = build_repository({"tests/test_a.py": text}, {name: set() for name in ids})
    for seed in range(10):
        found = split(repository, REMOVE, repository.green, random.Random(seed))
        assert found is not None and "tests/test_a.py::TestA::test_theirs" in found.shown
        assert found.files["tests/test_a.py"] is not None


def test_a_test_that_carries_the_answer_is_hidden_too(build_repository: Build) -> None:
    body = "    first = a + 1\n    second = first * 2\n    third = second - a\n    return third\n"
    tests = f"def test_copy():\n    def same(a):\n    {body.replace(chr(10), chr(10) + '    ')}\n    assert same(1)\n"
    tests += "".join(f"\n\ndef test_{name}():\n    assert f(1)\n" for name in "xyz")
    repository = build_repository(
        {"src/t.py": f"def f(a):\n{body}", "tests/test_a.py": tests},
        {f"tests/test_a.py::test_{name}": {"src/t.py:f"} for name in ("copy", "x", "y", "z")},
    )
    candidate = Candidate("deletion", "bodies", {}, (RemovedCode("src/t.py", "f", f"def f(a):\n{body}"),))
    broken = [name for name in repository.green if not name.endswith("copy")]
    for seed in range(5):
        found = split(repository, candidate, broken, random.Random(seed))
        assert found is not None
        data = found.files["tests/test_a.py"]
        assert data is not None and b"second = first" not in data


def test_what_is_shown_reaches_what_is_missing(build_repository: Build) -> None:
    names = [f"test_{kind}{number}" for kind in "ab" for number in range(4)]
    files = {
        "src/t.py": "def a(): return 1\ndef b(): return 1\n",
        "tests/test_t.py": "".join(f"def {n}(): pass\n" for n in names),
    }
    repository = build_repository(files, {f"tests/test_t.py::{name}": {f"src/t.py:{name[5]}"} for name in names})
    candidate = Candidate(
        "deletion", "bodies", {}, (RemovedCode("src/t.py", "a", ""), RemovedCode("src/t.py", "b", ""))
    )
    for seed in range(10):
        found = split(repository, candidate, repository.green, random.Random(seed))
        assert found is not None
        assert {test.rpartition("_")[2][0] for test in found.shown} == {"a", "b"}
