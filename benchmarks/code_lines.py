"""How much code each room of etude/ has: lines that hold a token, without comments, docstrings and blank lines.

    python benchmarks/code_lines.py [FOLDER] [--json]

A line counts once, however much stands on it. FOLDER is another package, such as an older checkout's `etude`.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import sys
import tokenize
from collections import Counter
from pathlib import Path

import etude

NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(source: str) -> int:
    """Of one module."""
    found = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            found.update(range(token.start[0], token.end[0] + 1))
    return len(found - _docstring_lines(ast.parse(source)))


def _docstring_lines(tree: ast.Module) -> set[int]:
    found = set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                found.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", default=Path(etude.__file__).parent)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    lines, files = Counter[str](), Counter[str]()
    for path in sorted(options.folder.rglob("*.py")):
        below = path.relative_to(options.folder).parts
        room = below[0] if len(below) > 1 else "(top)"
        lines[room] += code_lines(path.read_text())
        files[room] += 1
    if options.json:
        print(json.dumps(lines | {"all": lines.total()}))
        return 0
    for room, count in lines.most_common():
        print(f"{room:12} {count:6} code lines in {files[room]:3} files")
    print(f"{'all':12} {lines.total():6} code lines in {files.total():3} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
