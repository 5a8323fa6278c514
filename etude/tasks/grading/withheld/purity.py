"""Which expressions of a test only spell a value: they name what is expected, and nothing happens where they go.

An expression is pure where it is made of constants, of constructors of the standard library, and of names that hold
such a value. With `classes`, calls of what is named as a class count too: `Result(out="x")` spells what is expected
wherever the class comes from. Reads syntax, runs nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Final

Function = ast.FunctionDef | ast.AsyncFunctionDef

# Called in expected values; they do nothing but build one.
CONSTRUCTORS: Final = {
    *("bool", "int", "float", "complex", "str", "bytes", "bytearray", "list", "tuple", "dict", "set", "frozenset"),
    *("datetime", "date", "time", "timedelta", "timezone", "Decimal", "Fraction", "UUID", "OrderedDict", "Counter"),
    *("Path", "PurePath", "PurePosixPath", "PosixPath", "range", "dedent", "namedtuple", "defaultdict"),
    "call",  # of unittest.mock
}
METHODS: Final = {
    "encode",
    "decode",
    "format",
    "join",
    "strip",
    "lstrip",
    "rstrip",
    "replace",
    "lower",
    "upper",
    "split",
}
STANDARD: Final = {
    *("datetime", "date", "time", "timedelta", "timezone", "decimal", "fractions", "uuid", "collections", "pathlib"),
    *("math", "textwrap", "dt", "Decimal"),
}
PASSING: Final = {
    "now",
    "today",
    "utcnow",
    "time",
    "monotonic",
    "perf_counter",
    "uuid1",
    "uuid4",
    "cwd",
    "home",
    "resolve",
}


def literal(node: ast.expr) -> bool:
    """Whether the source spells the value itself."""
    try:
        return ast.literal_eval(node) is not ...
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False


def pure(node: ast.expr, names: Iterable[str], classes: bool = True) -> bool:
    """Whether an expression only spells a value, where these names do."""
    known = set(names)

    def is_pure(each: ast.AST) -> bool:
        match each:
            case ast.Constant():
                return True
            case ast.Name():
                return each.id in known
            case ast.Tuple() | ast.List() | ast.Set():
                return all(map(is_pure, each.elts))
            case ast.Dict():
                return all(key is None or is_pure(key) for key in each.keys) and all(map(is_pure, each.values))
            case ast.UnaryOp():
                return is_pure(each.operand)
            case ast.BinOp():
                return is_pure(each.left) and is_pure(each.right)
            case ast.Starred():
                return is_pure(each.value)
            case ast.Subscript():
                return is_pure(each.value) and is_pure(each.slice)
            case ast.Slice():
                return all(part is None or is_pure(part) for part in (each.lower, each.upper, each.step))
            case ast.JoinedStr():
                return all(map(is_pure, each.values))
            case ast.FormattedValue():
                return is_pure(each.value)
            case ast.Attribute():
                return _module(each) in STANDARD
            case ast.Call():
                given = [*each.args, *(keyword.value for keyword in each.keywords)]
                spelled = [part for part in given if is_pure(part)]
                # Reading a name does nothing: `datetime(2011, 2, 1, tzinfo=utc)` is what is expected, whatever utc is.
                # But `list(got)`, which spells nothing itself, is what was got.
                reads = all(part in spelled or _is_read(part) for part in given)
                return builds(each.func) and reads and (bool(spelled) or not given)
        return False

    def builds(function: ast.expr) -> bool:
        if classes and _is_class(function):
            return True
        if isinstance(function, ast.Name):
            return function.id in CONSTRUCTORS
        if not isinstance(function, ast.Attribute):
            return False
        if _module(function) in STANDARD:
            # Another day it is another value.
            return function.attr not in PASSING or ast.unparse(function) == "datetime.time"
        return function.attr in METHODS and pure(function.value, known)

    return is_pure(node)


def _is_class(function: ast.expr) -> bool:
    """By its name, `Result` or `results.Result`: what a class is called, and hardly anything else."""
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    named = isinstance(function, ast.Name) or (isinstance(function, ast.Attribute) and bool(_module(function)))
    return named and name.lstrip("_")[:1].isupper()


def _is_read(node: ast.expr) -> bool:
    """A name, or an attribute of one."""
    return isinstance(node, ast.Name) or (isinstance(node, ast.Attribute) and bool(_module(node)))


def _module(node: ast.Attribute) -> str:
    """`datetime` of `datetime.timezone.utc`."""
    inner: ast.expr = node
    while isinstance(inner, ast.Attribute):
        inner = inner.value
    return inner.id if isinstance(inner, ast.Name) else ""


def loads(node: ast.AST) -> Iterator[str]:
    """Names that are read below a node, once for each place."""
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load):
            yield each.id


def assigned(body: Iterable[ast.AST]) -> dict[str, list[ast.expr | None]]:
    """Names that are bound below these nodes -> their values; None for one that is bound in another way."""
    found: dict[str, list[ast.expr | None]] = {}
    plain: set[int] = set()
    nodes = [node for part in body for node in ast.walk(part)]
    for node in nodes:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            found.setdefault(node.targets[0].id, []).append(node.value)
            plain.add(id(node.targets[0]))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            found.setdefault(node.target.id, []).append(node.value)
            plain.add(id(node.target))
    for node in nodes:
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load) and id(node) not in plain:
            found.setdefault(node.id, []).append(None)
    return found
