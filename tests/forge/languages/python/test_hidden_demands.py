"""What only hidden tests and the deleted code share is found, and nothing that the agent can see."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from etude.forge.languages.python.hidden_demands import DeletedPiece, Visible, hidden_demands, visible_text
from etude.forge.languages.python.repository import PythonRepository
from etude.forge.languages.python.second_solutions import second_solution

Build = Callable[..., PythonRepository]
CODE = """
def load(text, *, strict=False, limit=4096):
    if strict and not text:
        raise LookupError(f"nothing to load from {text!r}")
    if len(text) > limit:
        return None
    box = Box(text)
    box.origin = "memory:here"
    return box
"""
HIDDEN = {
    "keyword": "load('a', strict=True)",
    "attribute": "assert load('a').origin",
    "text": "assert load('a').where() == 'memory:here'",
    "message": "with pytest.raises(Exception, match='nothing to load'):\n        load('', 1)",
    "raised": "with pytest.raises(LookupError):\n        load('')",
    "number": "assert load('a' * 4096)",
    "constant": "assert load('a' * 9) is None",
}
SHOWN = "def test_shown():\n    assert load('a')\n"


def demands(build: Build, name: str, *, gone: bool = True, shown: str = SHOWN, doc: str = "") -> list[str]:
    hidden = f"def test_hidden():\n    {HIDDEN[name]}\n"
    tests = f"import pytest\nfrom box import load\n\n\n{shown}\n\n{hidden}"
    repository = build(
        {"box.py": CODE, "tests/test_box.py": tests, "README.md": "Loads things.\n"},
        {"tests/test_box.py::test_shown": {"box.py:load"}, "tests/test_box.py::test_hidden": {"box.py:load"}},
        ("",),
    )
    signature = "def load(text, *, strict=False, limit=4096):"
    piece = DeletedPiece("box.py:load", "load", CODE.strip(), signature, doc, gone)
    left = b"" if gone else f"{signature}\n    raise NotImplementedError\n".encode()
    seen = tests.replace(hidden, "").encode()
    changes = {"box.py": left, "tests/test_box.py": seen}
    visible = visible_text(repository, changes, [piece], ["tests/test_box.py::test_shown"])
    found = hidden_demands(
        repository, [piece], ["tests/test_box.py::test_hidden"], ["tests/test_box.py::test_shown"], visible
    )
    assert all(each.tests == {"tests/test_box.py::test_hidden"} and each.can_be_said for each in found)
    return [each.said for each in found]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("keyword", "`load` takes a keyword `strict`"),
        ("attribute", "`load` sets `origin`"),
        ("text", "`load` has the exact text `memory:here`"),
        ("message", "`load` has the exact text `nothing to load from {text!r}`"),
        ("raised", "`load` raises `LookupError`"),
        ("number", "`load` has the number `4096` in it"),
        ("constant", "`load` can return `None`"),
    ],
)
def test_what_nothing_visible_says_is_said(build_repository: Build, name: str, said: str) -> None:
    assert demands(build_repository, name) == [said]


def test_what_is_visible_is_not_said_again(build_repository: Build) -> None:
    assert demands(build_repository, "keyword", gone=False) == []  # the signature is left
    assert demands(build_repository, "number", gone=False) == []
    doc = "Raises LookupError, or gives None where it is too long."
    assert demands(build_repository, "raised", doc=doc) == demands(build_repository, "constant", doc=doc) == []
    shown = SHOWN + "\n\ndef test_more():\n    assert load('a').origin == 'memory:here'\n"
    assert demands(build_repository, "attribute", shown=shown) == demands(build_repository, "text", shown=shown) == []


def test_a_signature_is_said_where_no_shown_test_calls_what_is_gone(build_repository: Build) -> None:
    shown = "def test_shown():\n    assert True\n"
    signature = "`def load(text, *, strict=False, limit=4096)`"
    assert demands(build_repository, "keyword", shown=shown)[0] == f"the signature of `load` is {signature}"


def test_second_solutions_do_the_same_in_other_words() -> None:
    text = (
        b"def parse(text):\n    if not text:\n        raise ValueError(f'no text at all: {text!r}')\n"
        b"    return _halves(text)\n\n\ndef _halves(text):\n    at = len(text) // 2\n    return text[:at], text[at:]\n"
    )
    made = []
    for seed in (1, 2):
        visible = Visible(["parse(text) gives"], frozenset({"parse", "text", "gives"}), "")
        (data,) = second_solution({"a.py": text}, {"a.py": {"parse", "_halves"}}, visible, seed).values()
        space: dict[str, Callable[[str], object]] = {}
        exec(data, space)
        assert space["parse"]("abcd") == ("ab", "cd") and "_halves" not in space
        with pytest.raises(ValueError, match="''") as raised:
            space["parse"]("")
        assert "no text" not in str(raised.value)
        made.append(data)
    assert made[0] != made[1]
    stated = Visible(["no text at all:"], frozenset({"_halves"}), "")
    (kept,) = second_solution({"a.py": text}, {"a.py": {"parse", "_halves"}}, stated, 1).values()
    assert b"no text at all: " in kept and b"def _halves" in kept
