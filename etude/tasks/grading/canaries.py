"""Canaries: tests as nobody wrote them, among the real ones, whose outcome is known beforehand.

Those that must fail catch whoever lets everything pass, the one that must pass whoever lets everything fail. Their
names are drawn like those of the tests around them. Works on text alone and runs nothing.
"""

from __future__ import annotations

import random
import re
import string
from collections.abc import Sequence
from typing import Literal

from etude.tasks.format.config import Suite
from etude.tasks.grading.test_mutations import word
from etude.tasks.grading.test_source import known_calls, test_base

FEW = 3  # that must fail, where tests and tested code are apart
# A class of unittest's; the same with few; or functions, as fixtures that apply to all tests of a repository may know
# no classes of unittest.
Canaries = Literal["class", "few", "functions"]


def draw_canaries(
    kind: Canaries, path: str, source: str, tests: Sequence[str], suite: Suite, rng: random.Random
) -> tuple[str, list[str], list[str]]:
    """What to append to a test file with these tests: its source, ids that must fail, and ids that must pass."""
    if kind == "functions":
        return _functions(path, source, tests, rng)
    return _class(path, source, tests, suite, rng, FEW if kind == "few" else None)


def _class(
    path: str, source: str, tests: Sequence[str], suite: Suite, rng: random.Random, most: int | None
) -> tuple[str, list[str], list[str]]:
    near = [name.split(".") for name in tests]
    # A class name made of a neighbour's: a list of names does not give it away.
    kind = next((names[0] for names in near if len(names) == 2), "Tests")
    kind = word(rng).capitalize() + kind
    same, one, two = word(rng), word(rng), word(rng)
    number = rng.randrange(2, 1000)
    failing = [
        f'self.assertEqual("{one}", "{two}")',
        f"self.assertEqual([{number}, 1], [{number}, 2])",
        rng.choice([f"self.assertTrue({number} < 1)", f'self.assertIn("{one}", ["{two}"])', "self.assertIsNone(0)"]),
        f"self.assertEqual({{{number}: 1}}, {{{number}: 2}})",
        "with self.assertRaises(ValueError):\n            pass",
        f"assert {number} == {number + 1}",
    ]
    calls = known_calls(source)
    # Apart, the tested code cannot reach the framework, so a few are enough.
    failing = failing if most is None else rng.sample(failing, most - bool(calls))
    if calls:  # the tested code's own answer against a word that it cannot know
        failing.append(f'self.assertEqual({rng.choice(calls)}, "{two}")')
    passing = [f'self.assertEqual("{same}", "{same}")']
    names = rng.sample(_method_names([names[-1] for names in near], rng, len(failing) + 1), len(failing) + 1)
    lines = [f"class {kind}({test_base(source)}):"]
    for name, body in zip(names, failing + passing, strict=True):
        lines += [f"    def {name}(self):", f"        {body}", ""]
    ids = [_id(path, kind, name, suite) for name in names]
    return "\n".join(lines), ids[:-1], ids[-1:]


def _functions(path: str, source: str, tests: Sequence[str], rng: random.Random) -> tuple[str, list[str], list[str]]:
    same, one, two = word(rng), word(rng), word(rng)
    number = rng.randrange(2, 1000)
    failing = [
        rng.choice([f'assert "{one}" == "{two}"', f"assert {number} == {number + 1}"]),
        rng.choice([f"assert [{number}, 1] == [{number}, 2]", f"assert {{{number}: 1}} == {{{number}: 2}}"]),
        rng.choice(['with __import__("pytest").raises(ValueError):\n        pass', f"assert not {number}"]),
    ]
    # Without a call of the tested code, an object that equals everything would not be asked.
    calls = known_calls(source)
    if calls:
        failing.append(f'assert {rng.choice(calls)} == "{two}"')
    near = [name.rpartition(".")[2] for name in tests]
    names = rng.sample(_method_names(near, rng, len(failing) + 1), len(failing) + 1)
    bodies = [*failing, f'assert "{same}" == "{same}"']
    code = "\n\n".join(f"def {name}():\n    {body}\n" for name, body in zip(names, bodies, strict=True))
    ids = [f"{path}::{name}" for name in names]
    return code, ids[:-1], ids[-1:]


def _method_names(known: list[str], rng: random.Random, count: int) -> list[str]:
    """Names like those that are there."""
    numbered = any(re.search(r"\d$", name) for name in known)
    made: set[str] = set()
    while len(made) < count + 2:
        stem = rng.choice(known) if known else "test_it"
        new = f"{stem.rstrip(string.digits)}{rng.randrange(1, 60)}" if numbered else f"test_{word(rng)[:6]}"
        if new not in known and new.startswith("test"):
            made.add(new)
        if not any(name.startswith("test") for name in known):
            known = ["test_1"]
    return sorted(made)


def _id(path: str, kind: str, method: str, suite: Suite) -> str:
    if suite == "pytest":
        return f"{path}::{kind}::{method}"
    return f"{path.removesuffix('.py').replace('/', '.')}.{kind}.{method}"
