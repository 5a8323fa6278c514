"""Three registers: the terse one short, the specification with every symbol that the failing tests take."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest

from etude.forge.languages.python.repository import PythonRepository
from etude.forge.languages.python.tests import used_names
from etude.forge.origins.deletion.propose import delete
from etude.forge.steps import instructions as wording
from etude.forge.steps.choose_functions import Cut
from etude.forge.steps.difficulty import level
from etude.forge.steps.hide_tests import split
from etude.forge.steps.instructions import sloppy, tell


def told(world: PythonRepository, *names: str, whole: bool = True, seed: int = 0):  # type: ignore[no-untyped-def]
    tests = 0
    for name in names:
        tests |= world.reach[name]
    candidate = delete(world, Cut("group", tuple(world.definitions[name] for name in names), tests), whole=whole)
    assert candidate is not None
    parted = split(world, candidate, sorted(candidate.expected), random.Random(seed))
    assert parted is not None
    return candidate, tell(world, candidate, parted, {}, random.Random(seed))


def test_the_specification_names_signatures_docstrings_and_imports(shop_world: PythonRepository) -> None:
    _, found = told(shop_world, "src/shop/words.py:initials", "src/shop/words.py:slug")
    text = found.by_register["detailed"]
    assert "def initials(name):" in text and "def slug(title):" in text
    assert "Return the first letters of the words of a name, upper case." in text
    assert "`src/shop/words.py`" in text and "from `shop`: `initials`, `slug`" in text
    assert found.category == "new feature"
    assert told(shop_world, "src/shop/words.py:slug", whole=False)[1].category == "feature iteration"


def test_what_tests_take_is_found_however_they_import_it(shop_world: PythonRepository) -> None:
    tests = [
        "tests/test_cart.py::TestCart::test_total",
        "tests/test_money.py::test_show",
        "tests/test_words.py::test_slug",
    ]
    assert used_names(shop_world, tests) == ["from `shop`: `slug`, `total`", "from `shop.money`: `show_price`"]


def test_all_registers_name_what_is_gone(shop_world: PythonRepository) -> None:
    for seed in range(10):
        _, found = told(shop_world, "src/shop/words.py:slug", seed=seed)
        assert all("slug" in text for text in found.by_register.values())
        lengths = [len(found.by_register[name]) for name in ("terse", "plain", "detailed")]
        assert lengths == sorted(lengths) and lengths[0] < 160


def test_an_issue_says_where_what_is_gone_belongs_with_or_without_a_docstring(shop_world: PythonRepository) -> None:
    candidate, _ = told(shop_world, "src/shop/words.py:slug")
    parted = split(shop_world, candidate, sorted(candidate.expected), random.Random(0))
    assert parted is not None
    undocumented = replace(candidate, pieces=tuple(replace(piece, doc="") for piece in candidate.pieces))
    for each, ends in ((candidate, ": "), (undocumented, "\n")):
        text = tell(shop_world, each, parted, {}, random.Random(0)).by_register["plain"]
        assert f"\n- `slug` in `src/shop/words.py`{ends}" in text and "\n\n\n" not in text
    alone = tell(shop_world, candidate, replace(parted, shown=parted.shown[:1]), {}, random.Random(0))
    assert f"`{parted.shown[0]}` passes, and" in alone.by_register["plain"]


def test_a_slip_never_touches_a_name() -> None:
    text = "somebody dropped {names}, please restore. see `parse_price` in src/shop/money.py"
    slips = {sloppy(text, random.Random(seed)) for seed in range(60)}
    assert len(slips) > 5
    for slip in slips:
        assert sorted(slip) == sorted(text)
        assert re.findall(r"\{names\}|`parse_price`|src/shop/money\.py", slip) == [
            "{names}",
            "`parse_price`",
            "src/shop/money.py",
        ]


@pytest.mark.parametrize(
    ("subject", "begins", "hint"),
    [
        ("Fix a crash", "fix a crash - test_", True),
        ("Title case in slug", "title case in slug", False),
        ("Slug: keep digits", "slug: keep digits", False),
        ("slug keeps letters", "slug keeps letters", False),
        ("PDF output", "PDF output - test_", True),
    ],
)
def test_a_commits_subject_is_taken_as_it_is_and_helped_where_it_names_nothing(
    shop_world: PythonRepository, monkeypatch: pytest.MonkeyPatch, subject: str, begins: str, hint: bool
) -> None:
    monkeypatch.setattr(wording, "SLOPPY", 0.0)
    cut = Cut("one", (shop_world.definitions["src/shop/words.py:slug"],), shop_world.reach["src/shop/words.py:slug"])
    made = delete(shop_world, cut, whole=True)
    assert made is not None
    candidate = replace(made, origin="commit", about=subject)
    parted = split(shop_world, candidate, sorted(candidate.expected), random.Random(0))
    assert parted is not None
    text = tell(shop_world, candidate, parted, {}, random.Random(0)).by_register["terse"]
    assert text.startswith(begins) and ("has to pass" in text) is hint


def test_a_slip_leaves_the_names_of_a_commits_subject_alone() -> None:
    slips = {sloppy("title words of things", random.Random(seed), {"title", "things"}) for seed in range(40)}
    assert len(slips) > 2 and all(slip.startswith("title ") and slip.endswith(" things") for slip in slips)


def test_more_to_write_is_harder(shop_world: PythonRepository) -> None:
    small, _ = told(shop_world, "src/shop/words.py:slug", whole=False)
    large, _ = told(shop_world, "src/shop/words.py:slug", "src/shop/money.py:parse_price", "src/shop/cart.py:total")
    assert 1 <= level(small) < level(large) <= 5
