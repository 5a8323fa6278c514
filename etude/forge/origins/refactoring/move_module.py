"""Another place for a module in its package: one level up, down into a package of its own, or beside where it was.

All imports follow, absolute and relative ones, the moved module's own among them; so do dotted names and paths in
strings and documents. Where code calls the module by its last name, it keeps that. Runs nothing.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator
from typing import Final

from etude.forge.languages.edits import Edit, edited
from etude.forge.languages.python.source import Defined, Module
from etude.forge.origins.refactoring.candidate import Refactoring
from etude.forge.origins.refactoring.leftover_tests import moved_module
from etude.forge.origins.refactoring.name_uses import Uses
from etude.forge.origins.refactoring.rename_symbol import changed_modules, leftover_tests_file
from etude.forge.origins.refactoring.synonyms import other_name
from etude.forge.steps.candidate import RemovedCode
from etude.tasks.grading.submission import STEERING

INTO: Final = ("core", "parts", "internals", "support")  # packages that a module may get
NEVER: Final = ("__init__.py", "__main__.py", "_version.py", "version.py")
# A module that looks at where it lies.
LOOKS: Final = {"__file__", "__path__", "pkgutil", "resources", "pkg_resources"}
# Packages that are named one by one, so that nobody would install a new one.
LISTED: Final = re.compile(r"""packages\s*=\s*(\[\s*['"]|\n\s+\w)""")
FROM: Final = re.compile(rb"from\s+(\.*[\w.]*)(\s*)import\b")


class _Stuck(Exception):
    """A mention that cannot be edited."""


def moves(uses: Uses, rng: random.Random) -> Iterator[Refactoring]:
    """In random order."""
    paths = [path for path in uses.repository.modules if _is_fit(uses, path)]
    for path in rng.sample(paths, len(paths)):
        target = _target(uses, path, rng)
        made = move(uses, path, target) if target else None
        if made is not None:
            yield made


def _is_fit(uses: Uses, path: str) -> bool:
    module, name = uses.repository.modules[path], path.rpartition("/")[2]
    dotted = uses.dotted(path)
    parent = f"{path.rpartition('/')[0]}/__init__.py"
    if name in NEVER or STEERING.search(path) or "." not in dotted or parent not in uses.repository.modules:
        return False
    if module.words & LOOKS or f"{path}i" in uses.repository.files:
        return False
    # A path in the settings (coverage, packages) would have to follow, and settings are not edited.
    return re.search(rf"{re.escape(dotted)}\b|{re.escape(path)}\b", uses.settings) is None


def _target(uses: Uses, path: str, rng: random.Random) -> str:
    """Where it could go: up, where it is deep enough, into a package that is not there yet, or to another file."""
    folder, _, name = path.rpartition("/")
    taken = {each.removesuffix(".py").partition("/__init__")[0] for each in uses.repository.files}
    above = folder.rpartition("/")[0]
    found = []
    if f"{above}/__init__.py" in uses.repository.modules:
        found.append(f"{above}/{name}")
    if not LISTED.search(uses.settings):
        words = uses.repository.modules[f"{folder}/__init__.py"].words
        free = [each for each in INTO if f"{folder}/{each}" not in taken and each not in words]
        found += [f"{folder}/{each}/{name}" for each in free[:1]]
    beside = other_name(name.removesuffix(".py"), uses.words.__contains__, rng)
    found += [f"{folder}/{beside}.py"] if beside else []
    found = [each for each in found if each.removesuffix(".py") not in taken]
    return rng.choice(found) if found else ""


def move(uses: Uses, path: str, target: str) -> Refactoring | None:
    """The candidate; None where something that mentions the module cannot be edited."""
    repository, old, new = uses.repository, uses.dotted(path), uses.dotted(target)
    edits: dict[str, bytes | None] = {}
    try:
        for place, module in uses.python.items():
            data = _followed(uses, module, target if place == path else place, old, new, path, target)
            if place == path:
                edits[target] = data
                edits[path] = None
            elif data != module.data:
                if STEERING.search(place) and place not in repository.tests:
                    return None
                edits[place] = data
    except _Stuck:
        return None
    for place, text in uses.documents.items():
        after = _in_text(text, old, new, path, target)
        if after != text:
            edits[place] = after.encode()
    package = f"{target.rpartition('/')[0]}/__init__.py"
    if package not in repository.files:
        edits[package] = f'"""Parts of {old.rpartition(".")[0]}."""\n'.encode()
    # No test asks for the old place, or the package still has a name like it: the move could not be noticed.
    if not any(place in repository.tests for place in edits) or _still_has(uses, path, edits):
        return None
    module = repository.modules[path]
    names = [each.name for each in module.tree.body if isinstance(each, Defined) and not each.decorator_list]
    names = [name for name in names if not module.definitions[name].repeated]
    tests = moved_module(old.partition(".")[0], changed_modules(uses, edits), old, new, names)
    lines = len(module.lines)
    return Refactoring(
        how="move",
        pieces=(RemovedCode(path, old, "", lines=lines),),
        lines=len(edits) * 3,
        old=path,
        new=target,
        edits=edits,
        leftover_tests=(leftover_tests_file(uses, edits, old.rpartition(".")[2]), tests),
        dotted=(old, new),
    )


def _still_has(uses: Uses, path: str, edits: dict[str, bytes | None]) -> bool:
    """Whether the old package would have something of the module's name."""
    parent = f"{path.rpartition('/')[0]}/__init__.py"
    stem = path.rpartition("/")[2].removesuffix(".py")
    tree = ast.parse(edits.get(parent) or uses.repository.files[parent])
    for node in ast.walk(tree):
        if isinstance(node, ast.alias) and (node.asname or node.name.partition(".")[0]) == stem:
            return True
        if isinstance(node, ast.Name) and node.id == stem and not isinstance(node.ctx, ast.Load):
            return True
        if isinstance(node, Defined) and node.name == stem:
            return True
    return False


def _followed(uses: Uses, module: Module, place: str, old: str, new: str, path: str, target: str) -> bytes:
    """A file, which will lie at `place`, with everything in it that leads to the module leading to its new place."""
    edits: list[Edit] = []
    before, after = _package(uses, module.path), _package(uses, place)
    stem = old.rpartition(".")[2]
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom):
            edits += _import_from(module, node, before, after, old, new)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == old:
                    start = module.span(alias)[0]
                    edits.append(Edit(start, start + len(old), new.encode()))
        elif isinstance(node, ast.Attribute) and node.attr == stem and ast.unparse(node) == old:
            start, end = module.span(node)
            # The text differs from the parsed name, by a comment or a line break in it.
            if module.data[start:end] != old.encode():
                raise _Stuck
            edits.append(Edit(start, end, new.encode()))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and old.partition(".")[0] in node.value:
            start, end = module.span(node)
            text = _in_text(module.data[start:end].decode(), old, new, path, target)
            edits.append(Edit(start, end, text.encode()))
    data = edited(module.data, edits)
    if Module.read(place, data) is None:
        raise _Stuck
    comments = re.compile(rb"(?m)#.*$")
    return comments.sub(lambda found: _in_text(found[0].decode(), old, new, path, target).encode(), data)


def _import_from(
    module: Module, node: ast.ImportFrom, before: list[str], after: list[str], old: str, new: str
) -> Iterator[Edit]:
    parts = node.module.split(".") if node.module else []
    base = [*before[: len(before) - node.level + 1], *parts] if node.level else parts
    start, end = module.span(node)
    head = FROM.match(module.data[start:end])
    if head is None:
        raise _Stuck
    parent, _, stem = old.rpartition(".")

    def spelled(target_parts: list[str]) -> bytes:
        return (_relative(target_parts, after) if node.level else ".".join(target_parts)).encode()

    goes = [alias for alias in node.names if ".".join(base) == parent and alias.name == stem]
    # The name in the code would have to change with it.
    if goes and new.rpartition(".")[2] != stem:
        raise _Stuck
    if ".".join(base) == old:
        base = new.split(".")
    elif goes and len(goes) < len(node.names):
        text = module.data[start:end]
        indent = module.lines[node.lineno - 1][: node.col_offset]
        # A comment inside, or another statement on the line, would be lost.
        if b"#" in text or indent.strip():
            raise _Stuck
        stay = ast.ImportFrom(spelled(base).decode(), [each for each in node.names if each not in goes], 0)
        go = ast.ImportFrom(spelled(new.split(".")[:-1]).decode(), goes, 0)
        yield Edit(start, end, ast.unparse(stay).encode() + b"\n" + indent + ast.unparse(go).encode())
        return
    elif goes:
        base = new.split(".")[:-1]
    elif not node.level or before == after:
        return
    yield Edit(start + head.start(1), start + head.end(1), spelled(base) + b" " * (not head[2]))


def _package(uses: Uses, path: str) -> list[str]:
    """The package that relative imports of a file start from."""
    parts = uses.dotted(path).split(".")
    return parts if path.endswith("/__init__.py") else parts[:-1]


def _relative(target_parts: list[str], package: list[str]) -> str:
    """A module as a file of a package would name it with dots."""
    common = 0
    while common < min(len(target_parts), len(package)) and target_parts[common] == package[common]:
        common += 1
    if not common:
        raise _Stuck
    return "." * (len(package) - common + 1) + ".".join(target_parts[common:])


def _in_text(text: str, old: str, new: str, path: str, target: str) -> str:
    """Dotted names and paths in a sentence."""
    text = re.sub(rf"(?<![\w.]){re.escape(old)}(?!\w)", new, text)
    return re.sub(rf"(?<![\w]){re.escape(path)}(?!\w)", target, text)
