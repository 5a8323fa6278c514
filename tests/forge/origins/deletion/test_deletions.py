"""Features are chosen by their tests and deleted; what mentioned them is cleaned, and the rest still works."""

from __future__ import annotations

import ast
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from etude.forge.languages.python.references import Blocked, forget
from etude.forge.languages.python.repository import PythonRepository
from etude.forge.origins.deletion.propose import delete, deletions
from etude.forge.steps.choose_functions import FunctionSet, Links, choose, most_tests

Build = Callable[..., PythonRepository]


def chosen(repository: PythonRepository, *ids: str) -> FunctionSet:
    tests = 0
    for name in ids:
        tests |= repository.reach.get(name, 0)
    return FunctionSet("function", tuple(repository.definitions[name] for name in ids), tests)


def test_what_few_tests_reach_is_chosen_and_what_all_need_is_not(shop_repository: PythonRepository) -> None:
    chosen = list(choose(shop_repository, random.Random(0)))
    names = {name for each in chosen for name in each.ids}
    assert {"src/shop/money.py:parse_price", "src/shop/words.py:slug", "src/shop/cart.py:total"} <= names
    assert "src/shop/cart.py:Cart.__init__" not in names
    assert all(each.tests.bit_count() <= 0.4 * len(shop_repository.green) for each in chosen)


def one_test_each(build_repository: Build, functions: int, tests: int) -> PythonRepository:
    """Each function with one test of its own, and other tests that reach none."""
    code = "".join(f"def f{number}(a):\n    b = a + {number}\n    return b\n\n\n" for number in range(functions))
    text = "".join(f"def test_{number}():\n    pass\n\n\n" for number in range(tests))
    traces = {
        f"tests/test_a.py::test_{number}": {f"src/t.py:f{number}"} if number < functions else set()
        for number in range(tests)
    }
    return build_repository({"src/t.py": code, "tests/test_a.py": text}, traces)


def test_functions_with_too_few_tests_of_their_own_go_together(build_repository: Build) -> None:
    repository = one_test_each(build_repository, functions=5, tests=20)
    made = list(choose(repository, random.Random(0)))
    assert made and all(each.tests.bit_count() == len(each.definitions) == 3 for each in made)
    assert {name for each in made for name in each.ids} == {f"src/t.py:f{number}" for number in range(5)}
    assert not list(choose(one_test_each(build_repository, functions=2, tests=20), random.Random(0)))


@pytest.mark.parametrize(("total", "most"), [(10, 6), (15, 9), (21, 10), (25, 10), (60, 24)])
def test_of_a_small_suite_more_than_the_usual_share_may_fail(total: int, most: int) -> None:
    assert int(most_tests(total)) == most


def test_what_runs_while_tests_are_collected_is_never_chosen(
    shop_repository: PythonRepository, build_repository: Build, small_shop_files: dict[str, str]
) -> None:
    early = {**shop_repository.traces, "": frozenset({"src/shop/words.py:slug"})}
    repository = build_repository(small_shop_files, early)
    assert not any("slug" in name for each in choose(repository, random.Random(0)) for name in each.ids)


def test_the_same_seed_gives_the_same_candidates(shop_repository: PythonRepository) -> None:
    keys = [[each.key for each in deletions(shop_repository, random.Random(3))] for _ in range(2)]
    assert keys[0] == keys[1] and len(set(keys[0])) == len(keys[0]) > 4
    assert keys[0] != [each.key for each in deletions(shop_repository, random.Random(4))]


def test_bodies_leave_names_signatures_and_docstrings(shop_repository: PythonRepository) -> None:
    made = delete(shop_repository, chosen(shop_repository, "src/shop/cart.py:Cart.remove"), whole=False)
    assert made is not None and made.how == "bodies"
    before, after = shop_repository.files.text("src/shop/cart.py"), made.changes["src/shop/cart.py"].decode()
    start = before.index("        cents, before = self.items[name]\n")
    end = before.index("    def lines")
    assert after == before[:start] + "        raise NotImplementedError\n\n" + before[end:]
    assert not made.pieces[0].gone


def test_a_whole_symbol_goes_with_its_imports_exports_and_registrations(shop_repository: PythonRepository) -> None:
    made = delete(shop_repository, chosen(shop_repository, "src/shop/words.py:initials"), whole=True)
    assert made is not None and made.how == "symbols" and made.pieces[0].gone
    assert "initials" not in made.changes["src/shop/__init__.py"].decode()
    words = made.changes["src/shop/words.py"].decode()
    assert "SHORTENERS = [slug]" in words
    assert "initials" not in words
    assert "import string" not in words and "import re" in words  # nobody else needed it


def test_a_symbol_that_others_call_loses_only_its_body(shop_repository: PythonRepository) -> None:
    made = delete(shop_repository, chosen(shop_repository, "src/shop/money.py:show_price"), whole=True)
    assert made is not None and made.how == "bodies"
    assert list(made.changes) == ["src/shop/money.py"]


def test_a_slice_takes_callers_and_callees_together(shop_repository: PythonRepository) -> None:
    ids = ("src/shop/money.py:show_price", "src/shop/cart.py:Cart.lines")
    made = delete(shop_repository, chosen(shop_repository, *ids), whole=True)
    assert made is not None and made.how == "slice"
    assert {piece.id: piece.gone for piece in made.pieces} == dict.fromkeys(ids, True)
    assert "show_price" not in made.changes["src/shop/cart.py"].decode()


def test_every_deletion_can_still_be_imported(shop_repository: PythonRepository, tmp_path: Path) -> None:
    for number, made in enumerate(deletions(shop_repository, random.Random(0))):
        root = tmp_path / str(number)
        for path in shop_repository.files:
            data = made.changes.get(path, shop_repository.files[path])
            if data is not None:
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_bytes(data)
        code = "import shop, shop.cart, shop.money, shop.words; [getattr(shop, name) for name in shop.__all__]"
        subprocess.run([sys.executable, "-B", "-c", code], cwd=root / "src", check=True)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("from tiny.a import f\nX = 1\n", "X = 1\n"),
        ("from tiny.a import f, g\n", "from tiny.a import g\n"),
        ("from tiny.a import (\n    e,\n    f,  # it\n    g,\n)\n", "from tiny.a import (\n    e,\n    g,\n)\n"),
        ("from tiny.a import (\n    e,\n    f,\n)\n", "from tiny.a import (\n    e,\n)\n"),
        (
            "try:\n    from tiny.a import f\nexcept ImportError:\n    pass\n",
            "try:\n    pass\nexcept ImportError:\n    pass\n",
        ),
        ("from tiny.a import f, g\n__all__ = ('f', 'g')\n", "from tiny.a import g\n__all__ = ('g',)\n"),
        ("from tiny.a import f, g\n__all__ = ['g', 'f']\n", "from tiny.a import g\n__all__ = ['g']\n"),
        ("from tiny.a import f\n__all__ = ['f']\n", "__all__ = []\n"),
        ("from tiny.a import f, g\nT = {'f': f, 'g': g}\n", "from tiny.a import g\nT = {'g': g}\n"),
        ("from tiny.a import f, g\nprint(f)\nprint(g)\n", "from tiny.a import g\nprint(g)\n"),
        ("from tiny.a import f\nh = f\n__all__ = ['h', 'k']\nk = 1\n", "__all__ = ['k']\nk = 1\n"),
    ],
)
def test_mentions_are_cleaned(build_repository: Build, before: str, after: str) -> None:
    files = {
        "tiny/__init__.py": "",
        "tiny/a.py": "def f():\n    return 1\n\n\ndef g():\n    return 2\n\n\ndef e():\n    return 3\n",
        "tiny/b.py": before,
    }
    repository = build_repository(files, {}, ("",))
    found = forget(repository, repository.definitions["tiny/a.py:f"], {})
    edits = found.finish(repository)
    data = repository.modules["tiny/b.py"].edited(edits["tiny/b.py"])
    assert data.decode() == after
    ast.parse(data)


@pytest.mark.parametrize(
    "text",
    [
        "from tiny.a import f\n\n\ndef h():\n    return f()\n",
        "from tiny import a\n\n\ndef h():\n    return a.f()\n",
        "from tiny.a import f as other\n",
        "from tiny.a import f\nX = f()\n",
    ],
)
def test_a_mention_that_cannot_be_cleaned_blocks(build_repository: Build, text: str) -> None:
    repository = build_repository(
        {"tiny/__init__.py": "", "tiny/a.py": "def f():\n    return 1\n", "tiny/b.py": text}, {}, ("",)
    )
    with pytest.raises(Blocked):
        forget(repository, repository.definitions["tiny/a.py:f"], {})


def test_a_symbol_that_a_star_brings_along_is_cleaned_there_too(build_repository: Build) -> None:
    files = {
        "tiny/__init__.py": "from .a import *\n\nh = f\n",
        "tiny/a.py": "def f():\n    return 1\n\n\nX = 1\n",
        "tiny/b.py": "from tiny import X, f\n\nTABLE = [f, X]\n",
    }
    repository = build_repository(files, {}, ("",))
    edits = forget(repository, repository.definitions["tiny/a.py:f"], {}).finish(repository)
    assert repository.modules["tiny/__init__.py"].edited(edits["tiny/__init__.py"]) == b"from .a import *\n\n"
    assert repository.modules["tiny/b.py"].edited(edits["tiny/b.py"]) == b"from tiny import X\n\nTABLE = [X]\n"


def test_several_names_leave_one_list_together(build_repository: Build) -> None:
    names = "abcdefgh"
    files = {
        "tiny/a.py": "\n\n".join(f"def {name}():\n    return 1\n" for name in names),
        "tiny/b.py": f"from tiny.a import {', '.join(names)}\n__all__ = [{', '.join(map(repr, names))}]\n",
    }
    traces = {f"tests/test_a.py::test_{one}_{number}": {f"tiny/a.py:{one}"} for one in names for number in range(3)}
    repository = build_repository(files, traces, ("",))
    for gone in ("ab", "gh", "ah", "bcd", "fgh"):
        made = delete(repository, chosen(repository, *(f"tiny/a.py:{name}" for name in gone)), whole=True)
        assert made is not None
        left = [name for name in names if name not in gone]
        text = made.changes["tiny/b.py"].decode()
        assert text == f"from tiny.a import {', '.join(left)}\n__all__ = [{', '.join(map(repr, left))}]\n"


def test_names_that_many_share_do_not_tie_classes_together(build_repository: Build) -> None:
    text = "\n\n".join(f"class C{n}:\n    def run(self):\n        return other{n}.run()\n" for n in range(4))
    files = {f"tiny/m{n}.py": text.replace("C", f"M{n}C") for n in range(2)}
    repository = build_repository(
        files, {"tests/test_a.py::test": {"tiny/m0.py:M0C0.run", "tiny/m1.py:M1C0.run"}}, ("",)
    )
    links = Links(repository)
    (first,) = (each for each in links.functions if each.path == "tiny/m0.py")
    assert all(each.path == "tiny/m0.py" for each in links.near(first))
