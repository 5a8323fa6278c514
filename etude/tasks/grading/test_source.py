"""What the source of a test module says about its tests, read and never run.

Parsing is remembered: a task is graded many times. Knows assertions by their names; changes nothing.
"""

from __future__ import annotations

import ast
from functools import lru_cache

EQUALITIES = {
    *("assertEqual", "assertIs", "assertListEqual", "assertTupleEqual", "assertSetEqual", "assertDictEqual"),
    *("assertMultiLineEqual", "assertSequenceEqual", "assertCountEqual", "assertAlmostEqual"),
}
OPPOSITES = {
    "assertTrue": "assertFalse",
    "assertIn": "assertNotIn",
    "assertIsNone": "assertIsNotNone",
    "assertIsInstance": "assertNotIsInstance",
    "assertGreater": "assertLessEqual",
    "assertLess": "assertGreaterEqual",
    "assertNotEqual": "assertEqual",
    "assertIsNot": "assertIs",
    "assertRegex": "assertNotRegex",
}
# Both ways, but for assertNotEqual: assertEqual has its own mutations, with another expected value.
OPPOSITES |= {other: name for name, other in OPPOSITES.items() if name != "assertNotEqual"}


@lru_cache(maxsize=64)
def parsed(source: str) -> ast.Module:
    return ast.parse(source)


@lru_cache(maxsize=256)
def known_calls(source: str) -> tuple[str, ...]:
    """Calls of the tested code that any test of the module could make: only literals and the module's own names."""
    tree = parsed(source)
    names = _imported(tree)
    functions = [part for node in tree.body if isinstance(node, ast.ClassDef) for part in node.body] + tree.body
    calls = []
    for function in functions:
        for statement in function.body if isinstance(function, ast.FunctionDef) else ():
            compared = _compared(statement) or []
            calls += [ast.unparse(side) for side in compared if _is_call(side, names)]
    return tuple(calls)


@lru_cache(maxsize=256)
def used_names(source: str) -> frozenset[str]:
    """Names that the module's code uses: a test among them is called by others, and changing it changes those.

    `super().name` is not meant: who inherits a test is known.
    """
    tree = parsed(source)
    above = {id(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute) and is_super(node.value)}
    return frozenset(
        node.id if isinstance(node, ast.Name) else node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Name | ast.Attribute) and id(node) not in above
    )


def is_super(node: ast.expr) -> bool:
    """`super()`."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


@lru_cache(maxsize=256)
def test_base(source: str) -> str:
    """What the module's own test classes derive from, so that one more looks like them."""
    for node in parsed(source).body:
        if isinstance(node, ast.ClassDef) and [ast.unparse(base) for base in node.bases] == ["unittest.TestCase"]:
            return "unittest.TestCase"
    return "__import__('unittest').TestCase"


@lru_cache(maxsize=256)
def simple_tests(source: str) -> frozenset[str]:
    """Tests that only compare what imported functions give for literal arguments with literal values."""
    tree = parsed(source)
    imported = _imported(tree)
    simple = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            methods = [part for part in node.body if isinstance(part, ast.FunctionDef)]
            # A class with setUp or attributes can change what its tests mean.
            if len(methods) == len(node.body) and all(part.name.startswith("test") for part in methods):
                simple |= {f"{node.name}.{part.name}" for part in methods if _is_simple(part, imported)}
        elif isinstance(node, ast.FunctionDef) and not node.decorator_list and _is_simple(node, imported):
            simple.add(node.name)
    return frozenset(simple)


def is_literal(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return node.value is not ...
    if isinstance(node, ast.Call | ast.Name | ast.Attribute):
        return False
    try:
        return ast.literal_eval(node) is not ...
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False


def _imported(tree: ast.Module) -> set[str]:
    """Names that the module imports, without those of the frameworks."""
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.asname or alias.name.partition(".")[0] for node in imports for alias in node.names}
    return names - {"unittest", "pytest"}


def _is_call(node: ast.expr, imported: set[str]) -> bool:
    """Whether this is an imported function called with literals."""
    if not isinstance(node, ast.Call) or not all(is_literal(each) for each in node.args):
        return False
    if not all(is_literal(keyword.value) for keyword in node.keywords):
        return False
    function = node.func
    while isinstance(function, ast.Attribute):
        function = function.value
    return isinstance(function, ast.Name) and function.id in imported


def _is_simple(function: ast.FunctionDef, imported: set[str]) -> bool:
    for statement in function.body:
        compared = _compared(statement)
        if compared is None or not all(is_literal(node) or _is_call(node, imported) for node in compared):
            return False
        if len(compared) > 1 and not any(map(is_literal, compared)):  # two answers of the same code prove nothing
            return False
    return True


def _compared(statement: ast.stmt) -> list[ast.expr] | None:
    """The operands of a statement that is an assertion and nothing else."""
    if isinstance(statement, ast.Assert):
        test = statement.test
        return [test.left, *test.comparators] if isinstance(test, ast.Compare) else [test]
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        function = statement.value.func
        if isinstance(function, ast.Attribute) and (function.attr in EQUALITIES or function.attr in OPPOSITES):
            return statement.value.args
    return None
