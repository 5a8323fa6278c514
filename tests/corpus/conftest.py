"""Builders of small code bases."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

NOUNS = ["order", "user", "cart", "token", "price", "stock", "route", "query", "cache", "event", "frame", "layer"]
VERBS = ["load", "save", "merge", "split", "count", "check", "build", "parse", "render", "match", "reduce", "filter"]


def make_code(seed: int, functions: int = 6) -> str:
    """A Python module that looks like one and resembles no other."""
    rng = random.Random(seed)
    lines = [f'"""Module {seed}: {rng.choice(VERBS)} each {rng.choice(NOUNS)}."""', ""]
    for _ in range(functions):
        verb, noun, other = rng.choice(VERBS), rng.choice(NOUNS), rng.choice(NOUNS)
        number = rng.randrange(100)
        lines += [
            f"def {verb}_{noun}_{rng.randrange(1000)}({noun}, {other}_{number}):",
            f"    {rng.choice(NOUNS)} = {noun}.{rng.choice(VERBS)}({other}_{number})",
            f"    for {rng.choice(NOUNS)} in {rng.choice(VERBS)}({noun}):",
            f"        {rng.choice(VERBS)}({rng.choice(NOUNS)}, {rng.choice(VERBS)}={rng.randrange(100)})",
            f"        if {rng.choice(NOUNS)}.{rng.choice(VERBS)}:",
            f"            {rng.choice(VERBS)}_{rng.choice(NOUNS)}({noun})",
            f"    return {rng.choice(VERBS)}({noun}, {rng.choice(NOUNS)})",
            "",
        ]
    return "\n".join(lines)


@pytest.fixture
def code() -> Callable[..., str]:
    return make_code


@pytest.fixture
def tree(tmp_path: Path) -> Callable[[dict[str, str | bytes]], Path]:
    """Writes files below a new folder."""

    def write(files: dict[str, str | bytes]) -> Path:
        root = tmp_path / "tree"
        for name, content in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        return root

    return write
