"""Files of settings, read as far as they can be read without running or believing anything."""

from __future__ import annotations

import ast
import configparser
import tomllib
from collections.abc import Mapping
from typing import Any

from etude.forge.leaks.deleted_code import parse_python


def read_setup(source: str) -> dict[str, Any]:
    """The literal arguments of `setup(...)`, names of literals in the same file looked up."""
    tree = parse_python(source)
    if tree is None:
        return {}
    known: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            known[node.targets[0].id] = _literal(node.value, known)
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and getattr(call.func, "id", getattr(call.func, "attr", "")) == "setup":
            return {word.arg: _literal(word.value, known) for word in call.keywords if word.arg}
    return {}


def _literal(node: ast.expr, known: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.Dict):
        both = zip(node.keys, node.values, strict=True)
        pairs = [(_literal(key, known), _literal(value, known)) for key, value in both if key]
        return {key: value for key, value in pairs if isinstance(key, str)}
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal(each, known) for each in node.elts]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _literal(node.left, known), _literal(node.right, known)
        return left + right if type(left) is type(right) and isinstance(left, list | str) else left or right
    return node.value if isinstance(node, ast.Constant) else None


def read_toml(text: str) -> dict[str, Any]:
    """A TOML file; nothing where it is broken."""
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return {}


def read_ini(text: str) -> dict[str, dict[str, str]]:
    """The sections of an ini file; none where it is broken."""
    parser = configparser.RawConfigParser(strict=False, allow_no_value=True)
    try:
        parser.read_string(text)
    except configparser.Error:
        return {}
    return {section: {key: value or "" for key, value in parser.items(section)} for section in parser.sections()}
