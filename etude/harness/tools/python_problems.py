"""Finds problems in Python files without any library: what cannot be parsed, names that are nowhere defined, imports
that are not used. Runs inside the sandbox (`lints` gives its text to the interpreter there): the files are hostile.

Prints one JSON object a problem: file, line, text. Files are the arguments; without any, all below the folder.
"""

from __future__ import annotations

import ast
import builtins
import json
import os
import symtable
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

SKIPPED = {"__pycache__", "node_modules", "venv"}
# Names that exist in a module without a definition in it.
GIVEN = {*dir(builtins), "__file__", "__path__", "__annotations__", "__class__", "WindowsError", "reveal_type"}


def problems(text: str, path: str) -> Iterator[tuple[int, str]]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree, table = ast.parse(text), symtable.symtable(text, path, "exec")
    except SyntaxError as error:
        yield error.lineno or 1, f"syntax error: {error.msg}"
        return
    except (ValueError, RecursionError, MemoryError) as error:
        yield 1, f"cannot be parsed: {error}"
        return
    nodes = list(ast.walk(tree))
    imports = [node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom))]
    if any(alias.name == "*" for node in imports for alias in node.names):
        return  # nobody can say what is defined
    tables = list(_tables(table))
    # Not from the table: under the future import it knows nothing of annotations.
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    used |= {part for node in nodes for part in _quoted(node)}
    if not path.endswith("__init__.py"):  # there an import is what the package offers
        for top in tree.body:
            if isinstance(top, (ast.Import, ast.ImportFrom)) and getattr(top, "module", "") != "__future__":
                for alias in top.names:
                    bound = alias.asname or alias.name.partition(".")[0]
                    if bound not in used and alias.asname != alias.name:
                        yield top.lineno, f"{bound} is imported and not used"
    defined = GIVEN | {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported()}
    defined |= {s.get_name() for s in table.get_symbols() if s.is_namespace()}
    defined |= {s.get_name() for each in tables for s in each.get_symbols() if s.is_declared_global()}
    free = {s.get_name() for each in tables for s in each.get_symbols() if s.is_global() and s.is_referenced()}
    free |= {s.get_name() for s in table.get_symbols() if s.is_referenced()}
    unknown = free - defined
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in unknown:
            yield node.lineno, f"{node.id} is not defined"


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)


def _quoted(node: ast.AST) -> list[str]:
    """Names in text that may be an annotation or an entry of __all__."""
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or len(node.value) > 200:
        return []
    return "".join(c if c.isidentifier() or c.isdigit() else " " for c in node.value).split()


def _files(names: list[str]) -> Iterator[str]:
    yield from names
    for folder, folders, files in os.walk(".") if not names else ():
        folders[:] = sorted(name for name in folders if name not in SKIPPED and not name.startswith("."))
        yield from (f"{folder}/{name}"[2:] for name in sorted(files) if name.endswith(".py"))


def main() -> None:
    for path in _files(sys.argv[1:]):
        try:
            with Path(path).open(encoding="utf-8", errors="replace") as file:
                text = file.read(2_000_000)
        except OSError:
            continue
        for line, said in dict.fromkeys(problems(text, path)):
            print(json.dumps({"file": path, "line": line, "text": said}))


if __name__ == "__main__":
    main()
