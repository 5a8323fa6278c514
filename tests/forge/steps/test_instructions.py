"""Three registers: the terse one short, the specification with every symbol that the failing tests take."""

from __future__ import annotations

import difflib
import random
import re
from dataclasses import replace

import pytest

from etude.forge.languages.python.repository import PythonRepository
from etude.forge.languages.python.tests import used_names
from etude.forge.origins.bug import instruct as bug
from etude.forge.origins.bug.propose import BuggyCode
from etude.forge.origins.commit import instruct as commit
from etude.forge.origins.deletion.propose import delete
from etude.forge.steps import instructions as wording
from etude.forge.steps.candidate import Candidate, RemovedCode
from etude.forge.steps.choose_functions import FunctionSet
from etude.forge.steps.code_change import CodeChange
from etude.forge.steps.code_change_instructions import in_words, missing_code, public_first
from etude.forge.steps.difficulty import level
from etude.forge.steps.hide_tests import split
from etude.forge.steps.instructions import Instructions, with_typo
from tests.forge.small_repositories import Build


def instructed(
    repository: PythonRepository, *names: str, whole: bool = True, seed: int = 0
) -> tuple[Candidate, Instructions]:
    definitions = tuple(repository.definitions[name] for name in names)
    candidate = delete(repository, FunctionSet("group", definitions, repository.reaching(names)), whole=whole)
    assert candidate is not None
    parted = split(repository, candidate, sorted(candidate.expected), random.Random(seed))
    assert parted is not None
    return candidate, missing_code(repository, candidate, parted, {}, random.Random(seed))


def test_the_specification_names_signatures_docstrings_and_imports(shop_repository: PythonRepository) -> None:
    _, found = instructed(shop_repository, "src/shop/words.py:initials", "src/shop/words.py:slug")
    text = found.by_style["detailed"]
    assert "def initials(name):" in text and "def slug(title):" in text
    assert "Return the first letters of the words of a name, upper case." in text
    assert "`src/shop/words.py`" in text and "from `shop`: `initials`, `slug`" in text
    assert found.category == "new feature"
    assert instructed(shop_repository, "src/shop/words.py:slug", whole=False)[1].category == "feature iteration"


def test_what_tests_take_is_found_however_they_import_it(shop_repository: PythonRepository) -> None:
    tests = [
        "tests/test_cart.py::TestCart::test_total",
        "tests/test_money.py::test_show",
        "tests/test_words.py::test_slug",
    ]
    assert used_names(shop_repository, tests) == ["from `shop`: `slug`, `total`", "from `shop.money`: `show_price`"]


@pytest.mark.parametrize("root", ["", "src"])
def test_what_tests_import_from_beside_them_is_named_in_full(build_repository: Build, root: str) -> None:
    at = f"{root}/" if root else ""
    files = {
        f"{at}bell/__init__.py": "def ring():\n    return 1\n",
        f"{at}bell/tones.py": "def low():\n    return 2\n",
        f"{at}bell/test_bell.py": "def test_ring():\n from . import ring\n from .tones import low\n ring(), low()\n",
    }
    test = f"{at}bell/test_bell.py::test_ring"
    repository = build_repository(files, {test: set()}, ("", root) if root else ("",))
    assert used_names(repository, [test]) == ["from `bell`: `ring`", "from `bell.tones`: `low`"]


def test_all_registers_name_what_is_gone(shop_repository: PythonRepository) -> None:
    for seed in range(10):
        _, found = instructed(shop_repository, "src/shop/words.py:slug", seed=seed)
        assert all("slug" in text for text in found.by_style.values())
        lengths = [len(found.by_style[name]) for name in ("terse", "plain", "detailed")]
        assert lengths == sorted(lengths) and lengths[0] < 160


def test_an_issue_says_where_what_is_gone_belongs_with_or_without_a_docstring(
    shop_repository: PythonRepository,
) -> None:
    candidate, _ = instructed(shop_repository, "src/shop/words.py:slug")
    parted = split(shop_repository, candidate, sorted(candidate.expected), random.Random(0))
    assert parted is not None
    undocumented = replace(candidate, pieces=tuple(replace(piece, doc="") for piece in candidate.pieces))
    for each, purpose in ((candidate, True), (undocumented, False)):
        for seed in range(8):
            text = missing_code(shop_repository, each, parted, {}, random.Random(seed)).by_style["plain"]
            assert "`slug`" in text and "`src/shop/words.py`" in text and "\n\n\n" not in text
            assert (candidate.pieces[0].doc.split(".")[0] in text) is purpose
    path, _, name = parted.shown[0].partition("[")[0].partition("::")
    one = replace(parted, shown=parted.shown[:1])
    alone = {missing_code(shop_repository, candidate, one, {}, random.Random(seed)).plain for seed in range(20)}
    assert all(re.search(rf"`{name}` in `{path}`,? (which )?(fails|passes)", text) for text in alone)


def test_pieces_of_several_files_are_listed_with_where_they_belong(shop_repository: PythonRepository) -> None:
    _, found = instructed(shop_repository, "src/shop/words.py:slug", "src/shop/cart.py:total", whole=False)
    assert "\n- `slug` in `src/shop/words.py`" in found.plain and "\n- `total` in `src/shop/cart.py`" in found.plain


def test_requests_are_told_in_many_ways_that_agree_with_what_is_left(shop_repository: PythonRepository) -> None:
    gone = {instructed(shop_repository, "src/shop/words.py:slug", seed=seed)[1] for seed in range(40)}
    stubs = {instructed(shop_repository, "src/shop/words.py:slug", whole=False, seed=seed)[1] for seed in range(40)}
    for texts in ({each.plain for each in gone}, {each.terse for each in gone}, {each.plain for each in stubs}):
        assert len(texts) >= 8
    assert not any(re.search("stub|only the signature", each.plain + each.terse) for each in gone)
    assert not any(re.search("delet|remov|went missing|got lost", each.plain + each.terse) for each in stubs)
    # A slip now and then, not in every other line.
    assert wording.TYPOS <= 0.1


def test_a_slip_never_touches_a_name() -> None:
    text = "somebody dropped {names}, please restore. see `parse_price` in src/shop/money.py"
    slips = {with_typo(text, random.Random(seed)) for seed in range(60)}
    assert len(slips) > 5
    changes = {len(slip) - len(text) for slip in slips if slip != text}
    assert changes == {-1, 0, 1}  # letters left out, swapped or next to each other on the keyboard, doubled
    for slip in slips:
        assert difflib.SequenceMatcher(None, text, slip).ratio() > 0.96
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
    shop_repository: PythonRepository, monkeypatch: pytest.MonkeyPatch, subject: str, begins: str, hint: bool
) -> None:
    monkeypatch.setattr(wording, "TYPOS", 0.0)
    chosen = FunctionSet(
        "one", (shop_repository.definitions["src/shop/words.py:slug"],), shop_repository.reach["src/shop/words.py:slug"]
    )
    made = delete(shop_repository, chosen, whole=True)
    assert made is not None
    candidate = replace(made, origin="commit", about=subject)
    parted = split(shop_repository, candidate, sorted(candidate.expected), random.Random(0))
    assert parted is not None
    proof = CodeChange(candidate, split=parted, kept=())
    text = commit.instruct(shop_repository, proof, random.Random(0)).terse
    assert text.startswith(begins) and bool(re.search("ha(s|ve) to pass \\(slug\\)", text)) is hint


def test_a_slip_leaves_the_names_of_a_commits_subject_alone() -> None:
    slips = {with_typo("title words of things", random.Random(seed), {"title", "things"}) for seed in range(40)}
    assert len(slips) > 2 and all(slip.startswith("title ") and slip.endswith(" things") for slip in slips)


def test_more_to_write_is_harder(shop_repository: PythonRepository) -> None:
    small, _ = instructed(shop_repository, "src/shop/words.py:slug", whole=False)
    large, _ = instructed(
        shop_repository, "src/shop/words.py:slug", "src/shop/money.py:parse_price", "src/shop/cart.py:total"
    )
    assert 1 <= level(small) < level(large) <= 5


def test_public_names_come_first_and_numbers_agree(shop_repository: PythonRepository) -> None:
    _, found = instructed(shop_repository, "src/shop/words.py:initials", "src/shop/words.py:slug")
    names = ("_one", "_two", "Cart._three", "__fix", "total", "Cart.__len__")
    private = [RemovedCode("a.py", name, "") for name in names]
    ordered = [piece.name for piece in public_first(private)]
    assert ordered == ["total", "Cart.__len__", "_one", "_two", "Cart._three", "__fix"]
    assert in_words(["a"]) == "a" and in_words(["a", "b"]) == "a and b" and in_words(["a", "b"], 2) == "a, b and 2 more"
    assert "`initials` and `slug`" in found.plain and "their docstrings" in found.plain
    single = {instructed(shop_repository, "src/shop/words.py:slug", seed=seed)[1].terse for seed in range(40)}
    both = {
        instructed(shop_repository, "src/shop/words.py:initials", "src/shop/words.py:slug", seed=seed)[1].terse
        for seed in range(40)
    }
    singular = re.compile(r"\b(it was|write it|bring it|add .* back\? tests fail without it)\b")
    assert any(singular.search(text) for text in single) and not any(singular.search(text) for text in both)


def test_bugs_and_tests_are_counted_in_words(shop_repository: PythonRepository) -> None:
    slug = shop_repository.definitions["src/shop/words.py:slug"]
    piece = RemovedCode.of(shop_repository, slug)
    tests = shop_repository.named(shop_repository.reach[slug.id])
    for mistakes, said in ((1, "a single mistake|one small mistake"), (4, "more than one mistake|several things")):
        candidate = BuggyCode("bug", "constant", {slug.path: b""}, (piece,), frozenset(tests), lines=mistakes)
        parted = split(shop_repository, candidate, tests, random.Random(0))
        assert parted is not None
        proof = CodeChange(candidate, split=parted, kept=())
        texts = {bug.instruct(shop_repository, proof, random.Random(seed)).terse for seed in range(40)}
        issues = {bug.instruct(shop_repository, proof, random.Random(seed)).plain for seed in range(40)}
        assert len(issues) > 8 and all(re.search(said, text) for text in issues)
        two = [text for text in texts if " and " in text]
        assert not any(re.search(r" and \w+ (fails|is red)", text) for text in two), two


def test_parameters_of_one_test_are_one_line(shop_repository: PythonRepository) -> None:
    candidate, _ = instructed(shop_repository, "src/shop/words.py:slug")
    many = tuple(f"tests/test_words.py::test_slug_of_slugs[{number}]" for number in range(14))
    parted = split(shop_repository, candidate, sorted(candidate.expected), random.Random(0))
    assert parted is not None
    shown = replace(parted, shown=many)
    text = missing_code(shop_repository, candidate, shown, {many[3]: "E  x"}, random.Random(0)).detailed
    assert text.count("test_slug_of_slugs") == 1
    assert "- `tests/test_words.py::test_slug_of_slugs` (14 cases): `E  x`" in text
