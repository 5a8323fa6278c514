"""Pieces are cut out of Python text, and everything else stays byte for byte."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

import pytest

from etude.forge.languages.python.source import BOM, Edit, Module


def module(text: str) -> Module:
    return Module("m.py", text.encode())


def bare(text: str, name: str) -> str:
    found = module(text)
    return found.edited([found.without_body(found.definitions[name])]).decode()


def test_a_body_goes_and_signature_decorators_and_docstring_stay() -> None:
    text = textwrap.dedent(
        '''
        @cached  # why
        def f(
            a,  # first
            b=1,
        ):
            """What it does.

            More.
            """
            # how
            return a + b  # sum
            # end


        x = 1
        '''
    )
    assert bare(text, "f") == textwrap.dedent(
        '''
        @cached  # why
        def f(
            a,  # first
            b=1,
        ):
            """What it does.

            More.
            """
            raise NotImplementedError


        x = 1
        '''
    )


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("def f(): return 1\n", "def f(): raise NotImplementedError\n"),
        ("def f(): a = 1; return a\nx = 1\n", "def f(): raise NotImplementedError\nx = 1\n"),
        ("def f():\r\n    return 1\r\nx = 1\r\n", "def f():\r\n    raise NotImplementedError\r\nx = 1\r\n"),
        ("def f():\n\treturn 1", "def f():\n\traise NotImplementedError"),
        ("x = 1\n\x0c\ndef f():\n    return 'ü'\n", "x = 1\n\x0c\ndef f():\n    raise NotImplementedError\n"),
        (
            "def f():\n    @g\n    def h():\n        pass\n    return h\n",
            "def f():\n    raise NotImplementedError\n",
        ),
        ("def f():\n    'doc'; return 1\n", "def f():\n    'doc'; raise NotImplementedError\n"),
        ("async def f():\n    return 1\n# after\n", "async def f():\n    raise NotImplementedError\n# after\n"),
    ],
)
def test_unusual_layouts(text: str, wanted: str) -> None:
    assert bare(text, "f") == wanted


def test_a_mark_at_the_start_of_the_file_stays() -> None:
    found = Module("m.py", BOM + b"def f():\n    return 1\n")
    data = found.edited([found.without_body(found.definitions["f"])])
    assert data == BOM + b"def f():\n    raise NotImplementedError\n"


def test_a_whole_definition_goes_with_its_comment_and_one_gap() -> None:
    text = (
        "import a\n\n\n# about f\n@d\ndef f():\n    pass\n\n\nclass C:\n    def g(self):\n        pass\n\n    x = 1\n"
    )
    found = module(text)
    without = found.edited([found.without(found.definitions["f"]), found.without(found.definitions["C.g"])])
    assert without == b"import a\n\n\nclass C:\n    x = 1\n"


def test_the_last_method_leaves_the_gap_between_classes() -> None:
    text = "class A:\n    x = 1\n\n    def f(self):\n        pass\n\n\nclass B:\n    pass\n"
    found = module(text)
    assert found.edited([found.without(found.definitions["A.f"])]) == b"class A:\n    x = 1\n\n\nclass B:\n    pass\n"


def test_neighbours_go_together_with_the_gap_between_them() -> None:
    methods = [f"    def {name}(self):\n        pass\n" for name in "abc"]
    module = Module("m.py", "\n".join(["class C:\n" + methods[0], *methods[1:]]).encode())
    left = module.edited([module.without(module.definitions[f"C.{name}"]) for name in "ab"])
    assert left.decode() == f"class C:\n\n{methods[2]}"


def test_of_two_edits_the_outer_one_is_made() -> None:
    found = module("abc = 1\n")
    assert found.edited([Edit(0, 3, b"x"), Edit(0, 7, b"y")]) == b"y\n"


def test_of_two_edits_at_one_place_it_is_always_the_same_that_is_made() -> None:
    found = Module("m.py", b"a = 1\n")
    edits = [
        Edit(4, 5, str(number).encode()) for number in range(9, 1, -1)
    ]  # a set of these has another order each day
    assert found.edited(edits) == found.edited(edits[::-1]) == b"a = 2\n"


@pytest.mark.parametrize("name", ["textwrap", "shlex", "dataclasses", "contextlib"])
def test_real_files_stay_python_and_keep_every_other_line(name: str) -> None:
    data = Path(__import__(name).__file__).read_bytes()
    found = Module(f"{name}.py", data)
    for each in list(found.definitions.values())[::3]:
        if isinstance(each.node, ast.ClassDef) or each.is_stub:
            continue
        edit = found.without_body(each)
        made = Module.read(f"{name}.py", found.edited([edit]))
        assert made is not None, each.name
        after = made.definitions[each.name]
        assert (after.signature, after.doc) == (each.signature, each.doc)
        assert made.data[: edit.start] == data[: edit.start]
        assert made.data[len(made.data) - (len(data) - edit.end) :] == data[edit.end :]
        others = {other: found.source(one) for other, one in found.definitions.items() if _apart(one, each)}
        assert {other: made.source(made.definitions[other]) for other in others} == others


def _apart(one: object, other: object) -> bool:
    first, last = one.first, one.last  # type: ignore[attr-defined]
    return last < other.first or first > other.last  # type: ignore[attr-defined]


def test_what_is_not_python_is_none() -> None:
    assert Module.read("m.py", b"def f(:\n") is None
    assert Module.read("m.py", b"x = '\xff'\n") is None
