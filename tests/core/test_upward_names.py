"""Names that point to a higher room by string: all of them are in one list, and each leads somewhere."""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from etude.core.component import UPWARD, load_named

ROOT = Path(__file__).parents[2]
NAME = re.compile(r"(etude(?:\.\w+)+)(?::\w+)?")


def layers() -> dict[str, int]:
    """Room -> its line of the import contract, the lowest 0."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    lines = next(contract["layers"] for contract in contracts if contract["name"].startswith("Rooms"))
    return {room: line for line, text in enumerate(reversed(lines)) for room in re.findall(r"etude\.(\w+)", text)}


def named(file: Path) -> Iterator[str]:
    """Modules that the strings of a file name; what is written in docstrings leads nowhere."""
    text = file.read_text()
    if not re.search(r"[\"'][^\"'\n]*etude\.\w", text):  # most files: parsing all takes seconds
        return
    tree = ast.parse(text)
    documents = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents:
            yield from (found[0] for found in NAME.finditer(node.value))


def test_no_other_string_names_a_higher_room() -> None:
    line, allowed = layers(), set(UPWARD.values())
    upward = [
        (str(file.relative_to(ROOT)), name)
        for file in sorted((ROOT / "etude").rglob("*.py"))
        for name in named(file)
        if name not in allowed
        and len(file.relative_to(ROOT / "etude").parts) > 1
        and line.get(name.split(".")[1], -1) > line[file.relative_to(ROOT / "etude").parts[0]]
    ]
    assert upward == []


@pytest.mark.parametrize("name", UPWARD.values())
def test_each_of_them_leads_somewhere_and_is_used(name: str) -> None:
    module, _, attribute = name.partition(":")
    assert load_named(name) is getattr(importlib.import_module(module), attribute)
