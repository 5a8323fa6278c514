"""Changes beside a bug that change nothing: each is Python, reads otherwise, and does the same."""

from __future__ import annotations

import random

import pytest

from etude.forge.languages.python.harmless_changes import harmless
from etude.forge.languages.python.source import Module

SOURCE = b'''LIMIT = 3


def small(value, other=2):
    """Say whether."""
    total = value + other  # both
    if total > LIMIT:
        answer = "large"
    else:
        # small ones
        answer = "small"
    for total in range(2):
        pass
    return (answer +
            str(total))


def shown(name):
    text = name.strip()
    if not text:
        return "nobody"
    else:
        pass
    return f"{text}!"


def squares(numbers):
    found = [LIMIT for LIMIT in numbers]
    return [one * one for one in found if len(found) >= 2], LIMIT


def outer(x):
    def inner():
        return x
    return inner()
'''
CALLS = ("small(1)", "small(5, 9)", "shown(' a ')", "shown('')", "squares([1, 2])", "squares([])", "outer(1)")


def answers(data: bytes) -> list[str]:
    names: dict[str, object] = {}
    exec(compile(data, "m.py", "exec"), names)
    return [repr(eval(call, names)) for call in CALLS]


@pytest.mark.parametrize("seed", range(5))
def test_every_change_does_the_same(seed: int) -> None:
    module = Module("m.py", SOURCE)
    rng = random.Random(seed)
    kinds = set()
    for name in ("small", "shown", "squares"):
        for change in harmless(module, module.definitions[name], rng):
            data = module.edited(change)
            assert data != SOURCE and answers(data) == answers(SOURCE), data.decode()
            kinds.add(min(edit.new.split()[0] for edit in change if edit.new))
    assert len(kinds) >= 5


def test_what_has_inner_scopes_is_left_alone() -> None:
    module = Module("m.py", SOURCE)
    assert harmless(module, module.definitions["outer"], random.Random(1)) == []


def test_a_name_in_a_formatted_string_or_of_a_comprehension_stays() -> None:
    module = Module("m.py", SOURCE)
    for name, kept in (("shown", b"{text}"), ("squares", b"LIMIT for LIMIT")):
        assert all(kept in module.edited(each) for each in harmless(module, module.definitions[name], random.Random(2)))
