"""Bugs are small edits of functions that tests reach, and leave Python behind."""

from __future__ import annotations

import difflib
import random
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest

from etude.forge.languages.python.mutations import KINDS, mutations
from etude.forge.languages.python.repository import PythonRepository
from etude.forge.languages.python.source import Module
from etude.forge.origins.bug.propose import bugs

Build = Callable[..., PythonRepository]


def changed(body: str) -> set[str]:
    """Every way in which a function's one statement can be wrong."""
    found = Module("m.py", f"def f(a, b):\n    {body}\n    return a\n".encode())
    edits = [each.edit for each in mutations(found, found.definitions["f"])]
    texts = [found.edited([edit]).decode() for edit in edits]
    return {text.removeprefix("def f(a, b):\n").removesuffix("    return a\n").strip() for text in texts}


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("a = b < 3", {"a = b <= 3", "a = b < 4", "a = b < 2"}),
        ("a = a + b", {"", "a = a - b"}),
        ("a = a and b", {"", "a = a or b"}),
        ("a = 'x' + b", set()),
        ("a = g(a, b)", {"", "a = g(b, a)"}),
        ("a = range(b)", {"a = range(b - 1)", "a = range(b + 1)"}),
        ("a = b[1:]", {"a = b[:1]", "a = b[2:]", "a = b[0:]"}),
        ("a.append(b)", {""}),
        ("a += b", {""}),
        ("a = True", {"a = False"}),
        ("a = b is None", {"a = b is not None"}),
        ("a = b is not None", {"a = b is None"}),
        ("a = b not  in a", {"", "a = b in a"}),
        ("if a: return b", {"", "if not a: return b"}),
        ("if a.b(): return b", {"", "if not a.b(): return b"}),
        ("if not a: return b", {"", "if a: return b"}),
        ("if b is None: return b", {"", "if b is not None: return b"}),
        ("if b < a: return b", {"", "if b <= a: return b", "if b >= a: return b"}),
        ("if a and b: return b", {"", "if a or b: return b", "if a: return b"}),
        ("a.clear(); b.clear()", set()),
        (
            "a = 1 < b <= 9",
            {f"a = {one}" for one in ("1 <= b <= 9", "1 < b < 9", "2 < b <= 9", "0 < b <= 9")}
            | {"a = 1 < b <= 10", "a = 1 < b <= 8"},
        ),
        ("a = [c for c in b if c > a]", {"", "a = [c for c in b if c >= a]"}),
        ("with b < a: a()", {"with b <= a: a()"}),
        ("a = b[:a]", {"", "a = b[a:]"}),
        ("a = b or ()", {"a = b and ()", "a = b"}),
        ("a = g(b, key=a, other=b)", {"", "a = g(b, other=b)", "a = g(b, key=a)"}),
        ("a = g(key=b)", set()),
        ("a = b.strip()", {"a = b", "a = b.rstrip()"}),
        ("a = (b).copy()", set()),
        ("a = a.copy()", {""}),
        ("a = sorted(b)", {"a = b"}),
        ("a = max(b)", {"a = min(b)"}),
        ("a = b.max(c)", set()),
        ("a = b.split(c)", set()),
        ("a = b.split(c, 1)", {"a = b.rsplit(c, 1)", "a = b.split(c, 2)", "a = b.split(c, 0)"}),
    ],
)
def test_kinds_of_mistakes(body: str, wanted: set[str]) -> None:
    assert changed(body) == wanted


def test_a_while_loop_keeps_its_end() -> None:
    text = "def f(a):\n    while a < 10:\n        a += 1\n    return a\n"
    found = Module("m.py", text.encode())
    assert all(each.kind == "constant" for each in mutations(found, found.definitions["f"]))


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("    if a:\n        a.clear()\n    return a\n", ["    return a\n"]),
        (
            "    if a:\n        b = 1\n        a.clear()\n    else:\n        # why\n        a.add()\n    return a\n",
            [
                "    if a:\n        b = 1\n    else:\n        # why\n        a.add()\n    return a\n",
                "    if a:\n        b = 1\n        a.clear()\n    return a\n",
            ],
        ),
        (
            "    if a:\n        b = 1\n    elif a.b:\n        return 2\n    return a\n",
            ["    if a:\n        b = 1\n    return a\n"],
        ),
        ("    b = 1\n\n    # It is full.\n    a.clear()\n\n    return a\n", ["    b = 1\n\n    return a\n"]),
        (
            "    with a:\n        a.clear()\n\n        b = 1\n    return a\n",
            ["    with a:\n        b = 1\n    return a\n"],
        ),
        ("    try:\n        a.clear()\n    except a.b:\n        a.add()\n    return a\n", []),
    ],
)
def test_a_lost_statement_leaves_nothing_that_gives_it_away(body: str, left: list[str]) -> None:
    found = Module("m.py", f"def f(a):\n{body}".encode())
    lost = [each.edit for each in mutations(found, found.definitions["f"]) if each.kind == "lost statement"]
    assert [found.edited([edit]).decode().removeprefix("def f(a):\n") for edit in lost] == left


@pytest.mark.parametrize("name", ["textwrap", "fnmatch"])
def test_every_mistake_in_real_files_is_still_python(name: str) -> None:
    found = Module(f"{name}.py", Path(__import__(name).__file__).read_bytes())
    seen = set()
    for definition in found.definitions.values():
        for each in mutations(found, definition) if hasattr(definition.node, "args") else ():
            seen.add(each.kind)
            assert Module.read("m.py", found.edited([each.edit])) is not None, (each.kind, definition.name)
    assert len(seen) > len(KINDS) // 3


def test_candidates_follow_the_seed_and_change_little(shop_repository: PythonRepository) -> None:
    made = list(islice(bugs(shop_repository, random.Random(1)), 12))
    assert [each.key for each in made] == [each.key for each in islice(bugs(shop_repository, random.Random(1)), 12)]
    assert len({each.key for each in made}) == len(made)
    assert {len(each.how.split(", ")) for each in made} != {1}  # some are several mistakes at once
    for each in made:
        lines = 0
        for path, data in each.changes.items():
            assert data is not None
            before, after = shop_repository.files.text(path).splitlines(), data.decode().splitlines()
            lines += sum(line.startswith("+ ") for line in difflib.ndiff(before, after))
        assert lines <= 4
        assert each.expected <= set(shop_repository.green)


SCARCE = """def first(a):
    return a + 1


def second(a):
    return a * 2


def third(a):
    return a - 3
"""


def few_tests(build_repository: Build) -> PythonRepository:
    text = "".join(f"def test_{number}():\n    pass\n\n\n" for number in range(12))
    reached = dict(enumerate(("first", "second", "third")))
    traces = {
        f"tests/test_a.py::test_{number}": {f"src/t.py:{reached[number]}"} if number in reached else set()
        for number in range(12)
    }
    return build_repository({"src/t.py": SCARCE, "tests/test_a.py": text}, traces)


def test_functions_with_too_few_tests_of_their_own_have_mistakes_together(build_repository: Build) -> None:
    made = list(bugs(few_tests(build_repository), random.Random(0)))
    assert made and all({piece.name for piece in each.pieces} == {"first", "second", "third"} for each in made)
    assert all(len(each.expected) == 3 for each in made)


def test_mistakes_that_were_drawn_are_put_together_anew_and_no_set_comes_twice(build_repository: Build) -> None:
    repository = few_tests(build_repository)
    pools = [repository.mistakes(each) for each in repository.symbols.values()]
    made = list(bugs(repository, random.Random(0)))
    # Each mistake once would be as many candidates as the smallest pool has.
    assert len(made) > min(map(len, pools)) and len({each.key for each in made}) == len(made)
    assert [each.key for each in made] == [each.key for each in bugs(repository, random.Random(0))]
