"""Python code as what it does to files and programs: calls that open, write, delete, link, list and run.

Reads the syntax tree and the literals in it, nothing more: a path that is put together at run time is a pattern with
`*` where nothing is known. Nothing is executed.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Final, Literal

How = Literal["read", "write", "delete", "link", "list", "mode", "run", "named"]

DEEPEST = 60  # parts in one another of a text that is put together
LONGEST = 300  # characters of a path
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
_FOLDERS = {"home": "~", "gettempdir": "/tmp"}  # what calls without arguments lead to

_READS = {"read_text", "read_bytes", "getline", "getlines", "ZipFile", "connect", "load_source"}
_WRITES = {"write_text", "write_bytes", "touch", "mkdir", "makedirs", "truncate", "save"}
_DELETES = {"remove", "unlink", "rmtree", "rmdir"}
_LISTS = {"listdir", "scandir", "glob", "rglob", "iglob", "walk", "exists", "isfile", "iterdir", "find_spec"}
_COPIES = {"copy", "copy2", "copyfile", "copytree", "move", "rename", "replace"}
_LINKS = {"symlink", "link", "symlink_to", "hardlink_to"}
_RUNS = {"run", "call", "check_call", "check_output", "Popen", "system", "popen", "getoutput", "getstatusoutput"}


@dataclass(frozen=True)
class FileAction:
    """One thing that code does: to a path, or for `run` the command as shell text."""

    how: How
    path: str
    other: str = ""  # of a link: what it leads to; of a write: the text where it is a literal


@lru_cache(maxsize=32)  # rollouts of a group share their tests and most of their sources; a tree may have megabytes
def parse(code: str) -> ast.Module | None:
    """The code's tree, which nobody may change; or None where it is not Python."""
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def shapes(tree: ast.AST) -> dict[int, int]:
    """The id of each node -> a number that equal code shares, wherever it stands."""
    found: dict[int, int] = {}

    def shape(node: object) -> int:
        if isinstance(node, ast.AST):
            # A hash of the shape: comparing whole trees of every pair of nodes would take too long.
            number = hash((type(node).__name__, *(shape(getattr(node, name, None)) for name in node._fields)))
            found[id(node)] = number
            return number
        if isinstance(node, list):
            return hash(tuple(map(shape, node)))
        return hash((type(node).__name__, repr(node)))

    shape(tree)
    return found


def file_actions(tree: ast.AST) -> Iterator[FileAction]:
    """What the code of a tree would do, as far as its literals say."""
    known = texts_by_name(tree)
    for node in ast.walk(tree):
        yield from actions_of(node, known)


def actions_of(node: ast.AST, known: Mapping[str, str] = _NOTHING) -> Iterator[FileAction]:
    """The same for one node alone; `known` are texts that names stand for."""
    if isinstance(node, ast.Call):
        yield from _call(node, partial(text_of, known=known))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and looks_like_path(node.value):
        yield FileAction("named", node.value)


def texts_by_name(tree: ast.AST) -> dict[str, str]:
    """Names that stand for one text wherever code assigns them: most paths are given a name before they are used."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name, text = node.targets[0].id, text_of(node.value, known=found)
            # Bounded: each name could stand for twice as much as the one before.
            known = text.strip("*/") and found.get(name, text) == text and len(text) < LONGEST
            found[name] = text if known else ""
    return found


def name_of(node: ast.AST) -> str:
    """`os.path.exists` for such an expression; `` where it is not a dotted name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        return ".".join([node.id, *reversed(parts)])
    if isinstance(node, ast.Call) and parts:
        return ".".join(["()", *reversed(parts)])
    return ""


def text_of(node: ast.AST | None, depth: int = 0, known: Mapping[str, str] = _NOTHING) -> str:
    """A literal text, with `*` for what is not known; `` where nothing is."""
    inner = partial(text_of, depth=depth + 1, known=known)
    if depth > DEEPEST:
        return "*"
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.Name):
        return known.get(node.id, "")
    if isinstance(node, ast.FormattedValue):
        return inner(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(inner(part) or "*" for part in node.values)
    if isinstance(node, ast.BinOp):
        left, right = inner(node.left), inner(node.right)
        # `Path(a) / b` and `a + b` both join what is known.
        return f"{left}/{right}" if isinstance(node.op, ast.Div) and left and right else (left or "*") + (right or "*")
    if isinstance(node, ast.Call):
        called = name_of(node.func).rpartition(".")[2]
        if called in _FOLDERS and not node.args:
            return _FOLDERS[called]
        if called in ("Path", "PurePath", "PosixPath", "expanduser", "expandvars", "abspath", "str"):
            return inner(node.args[0]) if node.args else ""
        if called == "join":
            return "/".join(inner(part) or "*" for part in node.args)
        if called in ("with_name", "joinpath") and isinstance(node.func, ast.Attribute):
            last = inner(node.args[0]) if node.args else "*"
            return f"{inner(node.func.value) or '*'}/{last}"
    return ""


def imported_roots(tree: ast.AST | None) -> set[str]:
    """Packages that code imports by their whole name; none where it is not Python."""
    found: set[str] = set()
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def literal(node: ast.AST) -> str | None:
    """A literal in one spelling, or None."""
    try:
        return repr(ast.literal_eval(node))
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None


def looks_like_path(text: str) -> bool:
    return 1 < len(text) < LONGEST and "\n" not in text and " " not in text and ("/" in text or text.startswith("~"))


def _call(node: ast.Call, text_of: Callable[[ast.AST | None], str]) -> Iterator[FileAction]:
    dotted = name_of(node.func)
    name = dotted.rpartition(".")[2] or (node.func.attr if isinstance(node.func, ast.Attribute) else "")
    first = text_of(node.args[0]) if node.args else ""
    second = text_of(node.args[1]) if len(node.args) > 1 else ""
    receiver = text_of(node.func.value) if isinstance(node.func, ast.Attribute) else ""
    if name == "open":
        mode = second or next((text_of(k.value) for k in node.keywords if k.arg == "mode"), "r")
        path = receiver or first
        if receiver:
            mode = first or "r"
        if path:
            yield FileAction("write" if set(mode) & set("wax+") else "read", path)
    elif name in _WRITES and (receiver or first):
        yield FileAction("write", receiver or first, first if receiver else second)
    elif name in _READS and (receiver or first):
        yield FileAction("read", receiver or first)
    elif name in _DELETES and (receiver or first):
        yield FileAction("delete", receiver or first)
    elif name in _LINKS:
        here, there = (receiver, first) if receiver else (second, first)
        yield FileAction("link", here or "*", there or "*")
    elif name in _COPIES and dotted.startswith(("shutil", "os.")):
        if name in ("move", "rename", "replace"):
            yield FileAction("delete", first or "*")
        yield FileAction("read", first or "*")
        yield FileAction("write", second or "*")
    elif name == "chmod":
        yield FileAction("mode", receiver or first or "*")
    elif name in _LISTS and (receiver or first):
        yield FileAction("list", "/".join(part for part in (receiver, first) if part))
    elif name in _RUNS and (dotted.startswith(("subprocess", "os.", "commands")) or name in ("Popen", "check_output")):
        command = first
        if node.args and isinstance(node.args[0], ast.List | ast.Tuple):
            command = " ".join(text_of(part) or "*" for part in node.args[0].elts)
        if command:
            yield FileAction("run", command)
