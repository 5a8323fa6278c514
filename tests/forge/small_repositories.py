"""A small Python repository with tests, what is known about it, and its history: data, and fixtures for conftest."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from etude.forge.environments.environment import Environment, Suite
from etude.forge.gates import gates
from etude.forge.install.checkout import Repo
from etude.forge.languages.python.repository import PythonRepository
from etude.forge.leaks.audit import Leak, audit_tree
from etude.forge.leaks.deleted_code import Deleted
from etude.forge.steps import verify
from etude.sandbox.base import WORKSPACE, Layer
from etude.sandbox.hosts import StoringHost
from etude.tasks.format.file_tree import Files

FILES = {
    "pyproject.toml": '[tool.pytest.ini_options]\naddopts = "-p no:cacheprovider"\n',
    "README.md": "# shop\n\nPrices, carts and text.\n",
    "src/shop/__init__.py": '''"""A shop."""

from shop.cart import Cart, total
from shop.money import parse_price, show_price
from shop.words import initials, slug

__all__ = ["Cart", "initials", "parse_price", "show_price", "slug", "total"]
''',
    "src/shop/money.py": '''"""Prices as text and as cents."""

import re

PATTERN = re.compile(r"(\\d+)(?:\\.(\\d\\d))?")


def parse_price(text):
    """Return the cents that a text such as "12.50" says."""
    found = PATTERN.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"no price: {text!r}")
    return int(found[1]) * 100 + int(found[2] or 0)


def show_price(cents, mark="."):
    """Return a price as text: whole units, a mark, two digits."""
    units, rest = divmod(cents, 100)
    return f"{units}{mark}{rest:02}"
''',
    "src/shop/cart.py": '''"""A cart and what it costs."""

from shop.money import show_price


class Cart:
    """Items by name."""

    def __init__(self):
        self.items = {}

    def add(self, name, cents, count=1):
        """Put so many of an item into the cart."""
        if count < 1:
            raise ValueError("count")
        before = self.items.get(name, (cents, 0))
        self.items[name] = (cents, before[1] + count)
        return self

    def remove(self, name, count=1):
        """Take so many of an item out of the cart; the last one takes the item with it."""
        cents, before = self.items[name]
        if count >= before:
            del self.items[name]
        else:
            self.items[name] = (cents, before - count)
        return self

    def lines(self):
        """Return a line for each item, by name."""
        return [f"{count} {name} {show_price(cents)}" for name, (cents, count) in sorted(self.items.items())]


def total(cart, discount=0):
    """Return what all items cost, less a discount in percent."""
    cents = sum(cents * count for cents, count in cart.items.values())
    return cents - cents * discount // 100
''',
    "src/shop/words.py": '''"""Text."""

import re
import string

HELPERS = {}


def helper(function):
    HELPERS[function.__name__] = function
    return function


def slug(title):
    """Return a title as part of a link: lower case, words joined by one dash."""
    words = re.findall(r"[a-z0-9]+", title.lower())
    return "-".join(words)


def initials(name):
    """Return the first letters of the words of a name, upper case."""
    found = []
    for word in name.split():
        if word[0] in string.ascii_letters:
            found.append(word[0].upper())
    return "".join(found)


SHORTENERS = [slug, initials]
''',
    "tests/test_money.py": """import pytest

from shop.money import parse_price, show_price


@pytest.mark.parametrize("text, cents", [("1", 100), ("12.50", 1250), (" 3.05 ", 305)])
def test_parse(text, cents):
    assert parse_price(text) == cents


def test_parse_zero():
    assert parse_price("0.07") == 7


def test_parse_nonsense():
    with pytest.raises(ValueError):
        parse_price("much")


def test_show():
    assert show_price(1250) == "12.50"


def test_show_with_comma():
    assert show_price(305, mark=",") == "3,05"


def test_show_small():
    assert show_price(7) == "0.07"
""",
    "tests/test_cart.py": """import pytest

from shop import Cart, total


@pytest.fixture
def cart():
    return Cart().add("tea", 250, 2).add("cup", 999)


class TestCart:
    def test_total(self, cart):
        assert total(cart) == 1499

    def test_discount(self, cart):
        assert total(cart, discount=10) == 1350

    def test_total_of_nothing(self):
        assert total(Cart()) == 0

    def test_remove(self, cart):
        assert cart.remove("tea").items["tea"] == (250, 1)

    def test_remove_all(self, cart):
        assert "tea" not in cart.remove("tea", 2).items

    def test_remove_more_than_there_is(self, cart):
        assert list(cart.remove("tea", 5).items) == ["cup"]

    def test_lines(self, cart):
        assert cart.lines() == ["1 cup 9.99", "2 tea 2.50"]

    def test_no_lines(self):
        assert Cart().lines() == []


def test_add_nothing(cart):
    with pytest.raises(ValueError):
        cart.add("tea", 250, 0)
""",
    "tests/test_words.py": """import pytest

import shop


@pytest.mark.parametrize("word", ["a", "b1", "c-d", "e-f-g"])
def test_slug_of_slugs(word):
    assert shop.slug(word) == word


def test_slug():
    assert shop.slug("Hello, World") == "hello-world"


def test_slug_of_numbers():
    assert shop.slug("Top 10!") == "top-10"


def test_slug_of_nothing():
    assert shop.slug("  ") == ""


def test_initials():
    assert shop.initials("ada king lovelace") == "AKL"


def test_initials_of_one():
    assert shop.initials("plato") == "P"


def test_initials_without_numbers():
    assert shop.initials("louis 14 bourbon") == "LB"
""",
}


def write_tree(root: Path, files: Mapping[str, str]) -> Path:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


@pytest.fixture(scope="session")
def small_shop_files() -> dict[str, str]:
    return dict(FILES)


@pytest.fixture(scope="session")
def shop_repo(tmp_path_factory: pytest.TempPathFactory) -> Repo:
    tree = write_tree(tmp_path_factory.mktemp("shop"), FILES)
    return Repo("shop", "1.0", "path", tree, None)


Build = Callable[..., PythonRepository]


@pytest.fixture(scope="session")
def build_repository() -> Build:
    """A repository of files and traces that are given; nothing is run."""

    def build(
        files: Mapping[str, str], traces: Mapping[str, set[str]], paths: tuple[str, ...] = ("src",)
    ) -> PythonRepository:
        layer = Layer("0" * 64, Path("/nowhere"))
        suite = Suite("pytest", ("tests",))
        environment = Environment("tiny", "1", "ab" * 16, layer, "/opt/env/bin/python", paths, suite, "")
        green = tuple(sorted(test for test in traces if test))
        known = {test: frozenset(names) for test, names in traces.items()}
        data = {path: text.encode() for path, text in files.items()}
        return PythonRepository("tiny", "1", Files(data), environment, green, known)

    return build


@pytest.fixture(scope="session")
def shop_repository(build_repository: Build) -> PythonRepository:
    """The shop, traced by hand."""
    money, cart, words = (f"src/shop/{name}.py:" for name in ("money", "cart", "words"))
    init, add = f"{cart}Cart.__init__", f"{cart}Cart.add"
    lines = {f"{cart}Cart.lines", f"{money}show_price"}
    traces: dict[str, set[str]] = {
        "": set(),
        **{f"tests/test_money.py::test_parse[{one}]": {f"{money}parse_price"} for one in ("1", "2", "3")},
        **{f"tests/test_money.py::test_parse_{one}": {f"{money}parse_price"} for one in ("zero", "nonsense")},
        **{f"tests/test_money.py::test_show{one}": {f"{money}show_price"} for one in ("", "_with_comma", "_small")},
        "tests/test_cart.py::TestCart::test_total": {init, add, f"{cart}total"},
        "tests/test_cart.py::TestCart::test_discount": {init, add, f"{cart}total"},
        "tests/test_cart.py::TestCart::test_total_of_nothing": {init, f"{cart}total"},
        "tests/test_cart.py::TestCart::test_remove": {init, add, f"{cart}Cart.remove"},
        "tests/test_cart.py::TestCart::test_remove_all": {init, add, f"{cart}Cart.remove"},
        "tests/test_cart.py::TestCart::test_remove_more_than_there_is": {init, add, f"{cart}Cart.remove"},
        "tests/test_cart.py::TestCart::test_lines": {init, add, *lines},
        "tests/test_cart.py::TestCart::test_no_lines": {init, f"{cart}Cart.lines"},
        "tests/test_cart.py::test_add_nothing": {init, add},
        **{f"tests/test_words.py::test_slug_of_slugs[{one}]": {f"{words}slug"} for one in ("a", "b1", "c-d", "e-f-g")},
        **{f"tests/test_words.py::test_slug{one}": {f"{words}slug"} for one in ("", "_of_numbers", "_of_nothing")},
        **{
            f"tests/test_words.py::test_initials{one}": {f"{words}initials"}
            for one in ("", "_of_one", "_without_numbers")
        },
    }
    return build_repository(FILES, traces)


@pytest.fixture(scope="session")
def run(sandboxes: tuple[asyncio.AbstractEventLoop, StoringHost]) -> Callable[..., object]:
    loop, _ = sandboxes
    return loop.run_until_complete


@pytest.fixture
def history(tmp_path: Path) -> Callable[[list[tuple[str, dict[str, str]]]], Path]:
    """A bare repository with one commit for each (subject, files)."""

    def make(steps: list[tuple[str, dict[str, str]]]) -> Path:
        tree = tmp_path / "checkout"
        tree.mkdir()
        env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
        who = ["-c", "user.name=A", "-c", "user.email=a@example.org"]

        def git(*arguments: str) -> None:
            subprocess.run(["git", *who, *arguments], cwd=tree, env=env, check=True, capture_output=True)

        git("init", "--quiet")
        for subject, files in steps:
            write_tree(tree, files)
            git("add", "--all")
            git("commit", "--quiet", "--message", subject)
        return tree / ".git"

    return make


@pytest.fixture(scope="module")
def workspace_alone_is_audited() -> Iterator[None]:
    """The audit of a whole machine has tests of its own, and takes its time the first time."""

    async def audit(host: StoringHost, layers: Sequence[Layer], deleted: Sequence[Deleted]) -> list[Leak]:
        return audit_tree(layers[-1].path / WORKSPACE.strip("/"), deleted)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gates, "audit_leaks", audit)
        patch.setattr(verify, "audit_leaks", audit)
        yield
