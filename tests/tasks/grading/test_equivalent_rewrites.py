"""The same module in other words: does the same, reads otherwise."""

from __future__ import annotations

import ast
import random
import subprocess
import sys
from pathlib import Path

import pytest

from etude.tasks.grading.equivalent_rewrites import rewritten

TRICKY = '''"""A module."""
from __future__ import annotations

import contextlib

word = "outer"  # a comment


def closures(items):
    """Say."""
    total, word = 0, "inner"
    def add(item):
        nonlocal total
        total += item
        return word
    said = [add(item) for item in items]
    return total, said


def scopes(values):
    found = [word for word in values]
    return found, word


def nested(given):
    kept = given
    def inner():
        word = kept + 1
        return word
    return inner(), word


def branches(a, b=3):
    if a < 3:
        size = "small"
    elif a == b:
        size = "equal"
    else:
        size = "large"
    if not a:
        return size
    else:
        size += "!"
    return f"{size=} {size:>8}"


def looking(x):
    here = x
    return sorted(locals())


def failing(x):
    try:
        result = 1 / x
    except ZeroDivisionError as error:
        result = str(error)
    with contextlib.suppress(KeyError) as nothing:
        pass
    return result, nothing


class Thing:
    size = 4
    def __init__(self, size=0):
        self.size = size
        __hidden = size
        self.copy = __hidden
    def __eq__(self, other):
        return self.size == 4 and 0 != other
'''
CALLS = [
    "closures([1, 2, 3])",
    "scopes(['x', 'y'])",
    "nested(1)",
    *(f"branches({a})" for a in (0, 1, 3, 9)),
    "looking(1)[-1]",
    "failing(0)",
    "failing(2)",
    "(Thing(4) == 1, Thing(3) == 1, Thing(2).copy, branches.__doc__, closures.__doc__, __doc__)",
]


def answers(text: str) -> list[str]:
    names: dict[str, object] = {"__name__": "tricky"}
    exec(compile(text, "tricky.py", "exec", dont_inherit=True), names)
    return [repr(eval(call, names)) for call in CALLS]


@pytest.mark.parametrize("seed", range(8))
def test_it_does_the_same_and_reads_otherwise(seed: int) -> None:
    text = rewritten(TRICKY, random.Random(seed))
    assert answers(text) == answers(TRICKY)
    assert "a comment" not in text and "size = 'small'" not in text
    assert ast.dump(ast.parse(text)) != ast.dump(ast.parse(TRICKY))


def test_every_drawing_is_another_and_the_bytecode_is_too() -> None:
    first, second = (rewritten(TRICKY, random.Random(seed)) for seed in (1, 2))
    assert first != second
    codes = []
    for text in (TRICKY, first):
        names: dict[str, object] = {"__name__": "tricky"}
        exec(compile(text, "tricky.py", "exec", dont_inherit=True), names)
        codes.append(names["branches"].__code__.co_code)  # type: ignore[attr-defined]
    assert codes[0] != codes[1]


@pytest.mark.parametrize("name", ["textwrap", "colorsys", "bisect", "fnmatch", "shlex", "string", "heapq"])
def test_modules_of_the_library_still_do_what_they_did(name: str, tmp_path: Path) -> None:
    module = __import__(name)
    (tmp_path / f"{name}.py").write_text(rewritten(Path(module.__file__ or "").read_text(), random.Random(name)))
    code = {
        "textwrap": "textwrap.fill('a quick brown fox jumps over', 10), textwrap.dedent('  a\\n   b')",
        "colorsys": "colorsys.rgb_to_hsv(.2, .4, .6), colorsys.hls_to_rgb(.1, .2, .3)",
        "bisect": "[bisect.bisect_left([1, 2, 2, 3], x) for x in range(5)]",
        "fnmatch": "fnmatch.filter(['a.py', 'b.txt', '[c]'], '[a-b].*'), fnmatch.translate('*[!x]?')",
        "shlex": "shlex.split('a \"b c\" d\\'e\\' # f'), shlex.quote('a b')",
        "string": "string.capwords('a b  c'), string.Template('$a ${b} $$').substitute(a=1, b=2)",
        "heapq": "list(heapq.merge([1, 4], [2, 3])), heapq.nsmallest(2, [3, 1, 2])",
    }[name]
    run = f"import sys; sys.path.insert(0, sys.argv[1]); sys.modules.pop({name!r}, None); import {name}; "
    told = [
        subprocess.run(
            [sys.executable, "-c", f"{run}print({name}.__file__.startswith(sys.argv[1]), {code})", folder],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split(" ", 1)
        for folder in (str(tmp_path), "/nowhere")
    ]
    assert told[0] == ["True", told[1][1]] and told[1][0] == "False"
