"""The files of a repository in the order in which a reader would want them: each after those that it imports.

For long sequences, in which what a file uses should stand before it. Reads Python's import statements, line by line and
without running anything; files in other languages, and circles, keep the order of their paths. Knows no tokens.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Mapping

from etude.corpus.spool.files import Spool

IMPORT = re.compile(r"^[ \t]*(?:from[ \t]+(\.*)([\w.]*)[ \t]+import[ \t]+([^#\n]*)|import[ \t]+([\w., \t]+))", re.M)


def by_imports(spool: Spool, numbers: Iterable[int]) -> array[int]:
    """The numbered documents, repository by repository, each behind the others of its own that it imports."""
    repositories: dict[str, array[int]] = {}  # numbers of each; paths and texts of one at a time are in memory
    for number, head in zip(numbers, spool.heads(numbers), strict=True):
        repositories.setdefault(head.repo, array("I")).append(number)
    ordered = array("I")
    for own in repositories.values():
        texts = {number: spool.document(number) for number in own}
        files = {document.path: number for number, document in texts.items()}
        ordered.extend(files[path] for path in order({path: texts[number].text for path, number in files.items()}))
    return ordered


def order(texts: Mapping[str, str]) -> list[str]:
    """Paths of one repository, in their order but for imports, which come first."""
    modules = {_module(path): path for path in texts if path.endswith(".py")}
    done: dict[str, None] = {}
    for first in texts:
        pending = [first]
        opened: set[str] = set()
        while pending:
            path = pending[-1]
            # All that it imports is done by now, or it is part of a circle.
            if path in done or path in opened:
                pending.pop()
                done.setdefault(path)
                continue
            opened.add(path)
            imported = imports(path, texts[path], modules) if path.endswith(".py") else []
            pending += [other for other in reversed(imported) if other not in done and other not in opened]
    return list(done)


def imports(path: str, text: str, modules: Mapping[tuple[str, ...], str]) -> list[str]:
    """Paths of the modules that a file imports, as far as they are among `modules`."""
    here = _module(path)
    package = here if path.endswith("__init__.py") else here[:-1]
    found: dict[str, None] = {}
    for dots, base, names, plain in IMPORT.findall(text):
        if plain:
            asked = [tuple(name.split()[0].split(".")) for name in plain.split(",") if name.split()]
        else:
            above = package[: len(package) + 1 - len(dots)] if dots else ()
            start = (*above, *(part for part in base.split(".") if part))
            taken = [name.split()[0].strip("()\\") for name in names.split(",") if name.split()]
            asked = [start, *((*start, name) for name in taken if name)]
        for name in asked:
            other = modules.get(name) if dots else _find(name, package, modules)
            if other is not None and other != path:
                found.setdefault(other)
    return list(found)


def _find(name: tuple[str, ...], package: tuple[str, ...], modules: Mapping[tuple[str, ...], str]) -> str | None:
    """Below the root, or below a folder that the importing file lies in: a source may begin above its packages."""
    for depth in range(len(package) + 1):
        if found := modules.get((*package[:depth], *name)):
            return found
    return None


def _module(path: str) -> tuple[str, ...]:
    parts = path.removesuffix(".py").split("/")
    return tuple(parts[:-1] if parts[-1] == "__init__" else parts)
