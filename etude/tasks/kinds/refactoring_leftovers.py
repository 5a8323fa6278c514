"""What a refactoring left behind, read from the submitted files alone, by the grader.

Code that runs can say anything of itself, and which tests look for the old name is no secret: whoever shares a process
with them could pass them and keep the old one. So it is counted in syntax trees, outside of any sandbox, how often the
project's code still says it; more often than the reference does is too often. Runs nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from etude.tasks.format.config import Refactor
from etude.tasks.format.function_bodies import Function, functions
from etude.tasks.format.task import Task

_UNREADABLE: Final = (SyntaxError, ValueError, RecursionError, MemoryError)
_OF_TESTS: Final = re.compile(r"(^|/)(tests?|test_[^/]*\.py|[^/]*_test\.py|conftest\.py)(/|$)")
# Characters that all files together may have more than the reference's: what is read here is hostile, and the tree of a
# file of 4 MB takes two gigabytes.
MOST_ADDED: Final = 128 << 10
Count = Callable[[ast.AST], int]


def left_behind(task: Task, refactor: Refactor, files: Mapping[str, bytes | None]) -> list[str]:
    """What still has the old name or place, a sentence each, where these files are laid over the workspace."""
    there, right = _code(task, refactor, files), _code(task, refactor, task.reference)
    added = sum(max(0, len(text) - len(right.get(path, ""))) for path, text in there.items())
    if added > MOST_ADDED:
        return [f"it adds {added} characters to the code, more than {MOST_ADDED}"]
    found = list(
        {"rename": _renamed, "parameter": _reparametrised, "move": _moved}[refactor.kind](refactor, there, right)
    )
    for path, text in there.items():
        if text == right.get(path):
            continue
        tree, wanted = _parsed(text), _parsed(right.get(path, ""))
        # Some projects ship files that no parser of ours reads, templates for example; those stay as they were.
        if tree is None or wanted is None:
            found.append(f"{path} cannot be read")
            continue
        found += [
            f"{path} still has {what}" for what, count in _counts(refactor).items() if count(tree) > count(wanted)
        ]
    return found


def _code(task: Task, refactor: Refactor, files: Mapping[str, bytes | None]) -> dict[str, str]:
    """The project's modules but for tests, with these files laid over them."""
    top = _project(task, refactor.symbol.partition(":")[0] or refactor.old)
    paths = {path for path in (*task.workspace, *files) if path == top or path.startswith(f"{top}/")}
    data = {path: files[path] if path in files else task.workspace[path] for path in paths if path.endswith(".py")}
    return {
        path: text.decode("utf-8-sig", errors="replace")
        for path, text in sorted(data.items())
        if text is not None and not _OF_TESTS.search(path)
    }


def _project(task: Task, path: str) -> str:
    """The folder of the top-level package that a file belongs to; the file itself where it belongs to none."""
    installed = task.facts.environment
    roots = [root.strip("/") for root in (installed.paths if installed else [])]
    root = max((each for each in roots if each and path.startswith(f"{each}/")), key=len, default="")
    inside = path.removeprefix(f"{root}/") if root else path
    return "/".join(filter(None, (root, inside.partition("/")[0])))


def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except _UNREADABLE:
        return None


def _counts(refactor: Refactor) -> dict[str, Count]:
    """What is counted in each file, by how a sentence calls it."""
    old = refactor.old
    if refactor.kind == "rename":
        return {f"the name {old}": lambda tree: _names(tree).count(old), f"{old} in a string": _strings(f"^{old}$")}
    if refactor.kind == "parameter":
        return {
            f"the parameter or keyword {old}": lambda tree: sum(
                isinstance(node, ast.arg | ast.keyword) and node.arg == old for node in ast.walk(tree)
            ),
            f"{old} in a string": _strings(f"^{old}$"),
        }
    stem = old.rpartition("/")[2].removesuffix(".py")
    return {
        f"an import of {stem}": lambda tree: _imported(tree).count(stem),
        f"{stem} in a string": _strings(rf"(^|\W){re.escape(stem)}(\W|$)"),
    }


def _names(tree: ast.AST) -> list[str]:
    """Every name that code gives, uses, imports or asks an object for."""
    found: list[str] = []
    for node in ast.walk(tree):
        for field in ("id", "attr", "name", "arg", "asname", "rest"):
            said = getattr(node, field, None)
            if isinstance(said, str):
                found += said.split(".")
        found += getattr(node, "kwd_attrs", [])
        if isinstance(node, ast.Global | ast.Nonlocal):
            found += node.names
        if isinstance(node, ast.ImportFrom):
            found += (node.module or "").split(".")
    return found


def _imported(tree: ast.AST) -> list[str]:
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    said = [name for node in nodes for each in node.names for name in (each.name, each.asname or "")]
    said += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return [part for name in said for part in name.split(".")]


def _strings(pattern: str) -> Count:
    """Texts that are no documentation and hold this: somebody may look a name up by them."""

    def count(tree: ast.AST) -> int:
        prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        texts = [
            node.value if isinstance(node.value, str) else node.value.decode("latin-1")
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes) and id(node) not in prose
        ]
        return sum(re.search(pattern, text) is not None for text in texts)

    return count


def _renamed(refactor: Refactor, there: Mapping[str, str], right: Mapping[str, str]) -> Iterator[str]:
    path, _, name = refactor.symbol.partition(":")
    owner = name.rpartition(".")[0]
    new = f"{owner}.{refactor.new}" if owner else refactor.new
    if new in _defined(right.get(path, "")) and new not in _defined(there.get(path, "")):
        yield f"{path} does not define {new}"


def _reparametrised(refactor: Refactor, there: Mapping[str, str], right: Mapping[str, str]) -> Iterator[str]:
    path, _, name = refactor.symbol.partition(":")
    found, wanted = _function(there.get(path, ""), name), _function(right.get(path, ""), name)
    if wanted is None:
        return
    if found is None:
        yield f"{path} does not define {name}"
        return
    if found.args.kwarg is not None and wanted.args.kwarg is None:
        yield f"{name} takes any keyword, {refactor.old} too"
    if len(found.decorator_list) > len(wanted.decorator_list):
        yield f"{name} is wrapped"
    if _bound(there[path], name) > _bound(right[path], name):
        yield f"{name} is defined more than once"
    if refactor.new not in [node.arg for node in ast.walk(found.args) if isinstance(node, ast.arg)]:
        yield f"{name} has no parameter {refactor.new}"
    loads, stores = _uses(found, refactor.old)
    if not stores and loads > _uses(wanted, refactor.old)[0]:
        yield f"{name} uses {refactor.old}, which is no parameter of it any more"


def _moved(refactor: Refactor, there: Mapping[str, str], right: Mapping[str, str]) -> Iterator[str]:
    if refactor.old in there or f"{refactor.old.removesuffix('.py')}/__init__.py" in there:
        yield f"{refactor.old} is still there"
    defined = _defined(there.get(refactor.new, ""))
    if missing := [name for name in _defined(right.get(refactor.new, "")) if name not in defined]:
        yield f"{refactor.new} does not define {', '.join(missing[:3])}"


def _defined(text: str) -> list[str]:
    """Functions and classes that a module defines by `def` and `class`, with their methods."""
    tree = _parsed(text)
    if tree is None:
        return []
    classes = [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return [*classes, *(name for name, _ in functions(tree))]


def _function(text: str, name: str) -> Function | None:
    """The function of this name; of a class its constructor."""
    tree = _parsed(text)
    known = dict(functions(tree)) if tree is not None else {}
    return known.get(name) or known.get(f"{name}.__init__")


def _bound(text: str, name: str) -> int:
    """How often the module gives something the name, or an object the attribute, of a function."""
    tree = _parsed(text)
    short = name.rpartition(".")[2]
    found = 0
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, Function | ast.ClassDef):
            found += node.name == short
        elif isinstance(node, ast.Name):
            found += node.id == short and isinstance(node.ctx, ast.Store)
        elif isinstance(node, ast.Attribute):
            found += node.attr == short and isinstance(node.ctx, ast.Store)
    return found


def _uses(function: Function, name: str) -> tuple[int, int]:
    """How often a function reads a name, and how often it gives it a value."""
    nodes = [node for part in function.body for node in ast.walk(part)]
    names = [node for node in nodes if isinstance(node, ast.Name) and node.id == name]
    return sum(isinstance(node.ctx, ast.Load) for node in names), sum(isinstance(node.ctx, ast.Store) for node in names)
