"""Another name for a keyword parameter: in the function, in methods that override it, and at all who name it.

Edits go by the parser's places. Proposed is a parameter that tests pass by name, of a function whose name has one
meaning in the repository. Runs nothing.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator
from typing import Final

from etude.forge.languages.edits import Edit
from etude.forge.languages.python.source import Definition, Function, Module
from etude.forge.origins.refactoring.candidate import Refactoring
from etude.forge.origins.refactoring.leftover_tests import renamed_parameter
from etude.forge.origins.refactoring.name_uses import Uses, last_name
from etude.forge.origins.refactoring.rename_symbol import changed_modules, leftover_tests_file
from etude.forge.origins.refactoring.replace_name import in_braces
from etude.forge.origins.refactoring.synonyms import other_name
from etude.forge.steps.candidate import RemovedCode
from etude.tasks.grading.submission import STEERING

LEAST_CALLS: Final = 1  # that name it, tests counted
LOOKING: Final = {"locals", "eval", "exec", "vars", "globals"}
SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def parameters(uses: Uses, rng: random.Random) -> Iterator[Refactoring]:
    """In random order."""
    found = [(family, name) for family in _families(uses) for name in _named(uses, family)]
    rng.shuffle(found)
    for family, old in found:
        taken = {name for each in family for name in _identifiers(each)}
        new = other_name(old, taken.__contains__, rng)
        made = reparametrise(uses, family, old, new) if new is not None else None
        if made is not None:
            yield made


def _families(uses: Uses) -> Iterator[list[Definition]]:
    """A function by itself, or a method with those of the same name in classes that inherit from each other."""
    by_name: dict[str, list[Definition]] = {}
    for each in uses.repository.definitions.values():
        if isinstance(each.node, Function):
            # Every class has an __init__, so those are grouped by their place.
            by_name.setdefault(each.short if each.short != "__init__" else each.id, []).append(each)
    for found in by_name.values():
        short = found[0].short
        plumbing = short.startswith("__") and short != "__init__"
        if plumbing or any(each.repeated or "." in each.owner for each in found):
            continue
        if short == "__init__":
            alone = uses.defined[found[0].owner] == 1
        else:
            alone = uses.defined[short] == len(found) and (len(found) == 1 or _are_related(uses, found))
        if alone:
            yield found


def _are_related(uses: Uses, family: list[Definition]) -> bool:
    """Whether all but one are of classes that inherit from one of the others."""
    owners = {each.owner for each in family}
    heirs = 0
    for each in family:
        holder = uses.repository.definitions.get(f"{each.path}:{each.owner}")
        if holder is None or not isinstance(holder.node, ast.ClassDef):
            return False
        bases = {ast.unparse(base).rpartition(".")[2] for base in holder.node.bases}
        heirs += bool(bases & (owners - {each.owner}))
    # All but one inherit from another of the family: one tree of overrides.
    return len(owners) == len(family) and heirs == len(family) - 1


def _named(uses: Uses, family: list[Definition]) -> list[str]:
    """Parameters that all of a family have, can be renamed, and tests pass by name."""
    shared: set[str] = set.intersection(*(_own_parameters(each) for each in family))
    if not shared:
        return []
    callees = _callees(uses, family)
    calls = [(path, each) for path, module in uses.python.items() for each in _keywords(module, callees)]
    named = [name for name in shared if sum(each.arg == name for _, each in calls) >= LEAST_CALLS]
    return sorted(
        name for name in named if any(each.arg == name and path in uses.repository.tests for path, each in calls)
    )


def _own_parameters(definition: Definition) -> set[str]:
    node = definition.node
    assert isinstance(node, Function)
    names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    decorators = {ast.unparse(each) for each in node.decorator_list}
    # **kwargs would take the old name too, and locals() would show the new one.
    if node.args.kwarg is not None or names & LOOKING or decorators - {"staticmethod", "classmethod"}:
        return set()
    own = {each.arg for each in [*node.args.args, *node.args.kwonlyargs]} - {"self", "cls"}
    nested = [each for each in ast.walk(node) if isinstance(each, SCOPES) and each is not node]
    # An inner function with a parameter of that name means its own.
    again = {each.arg for inner in nested for each in ast.walk(inner.args) if isinstance(each, ast.arg)}
    outer = {name for each in ast.walk(node) if isinstance(each, ast.Global | ast.Nonlocal) for name in each.names}
    return {name for name in own - again - outer if not name.startswith("_") and len(name) > 1}


def _callees(uses: Uses, family: list[Definition]) -> set[str]:
    """The last names of what is called; for a constructor its class, and heirs that have no other one."""
    if family[0].short != "__init__":
        return {family[0].short}
    names = {family[0].owner}
    classes = [
        node for module in uses.python.values() for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef)
    ]
    grew = True
    while grew:
        more = {
            each.name
            for each in classes
            if names & {ast.unparse(base).rpartition(".")[2] for base in each.bases}
            and not any(isinstance(part, Function) and part.name == "__init__" for part in each.body)
        }
        grew = not more <= names
        names |= more
    return names


def _keywords(module: Module, callees: set[str]) -> Iterator[ast.keyword]:
    """What is passed by name to one of these, also through `partial`."""
    if callees.isdisjoint(module.words):
        return
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call):
            name = last_name(node.func)
            # functools.partial passes keywords for its first argument.
            if name == "partial" and node.args:
                name = last_name(node.args[0])
            if name in callees:
                yield from node.keywords


def _identifiers(definition: Definition) -> Iterator[str]:
    for node in ast.walk(definition.node):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.arg | ast.keyword):
            yield node.arg or ""


def reparametrise(uses: Uses, family: list[Definition], old: str, new: str) -> Refactoring | None:
    """The candidate; None where something around it cannot be edited."""
    repository, callees = uses.repository, _callees(uses, family)
    edits: dict[str, list[Edit]] = {}
    for each in family:
        edits.setdefault(each.path, []).extend(_inside(repository.modules[each.path], each, old, new))
        stub = repository.stubs.get(f"{each.path}i")
        stubbed = stub.definitions.get(each.name) if stub is not None else None
        if stub is not None and stubbed is not None:
            edits.setdefault(stub.path, []).extend(_arguments(stub, stubbed, old, new))
    calls = 0
    for path, module in uses.python.items():
        for passed in _keywords(module, callees):
            if passed.arg == old:
                start = module.at(passed.lineno, passed.col_offset)
                if module.data[start : start + len(old)] != old.encode():
                    return None  # in a formatted string, where places are wrong before Python 3.12
                edits.setdefault(path, []).append(Edit(start, start + len(old), new.encode()))
                calls += 1
    files: dict[str, bytes | None] = {}
    for path, of_file in edits.items():
        data = uses.python[path].edited(of_file)
        if Module.read(path, data) is None or (STEERING.search(path) and path not in repository.tests):
            return None
        if data != repository.files[path]:
            files[path] = data
    for path, text in uses.documents.items():
        after = _in_calls(text, callees, old, new)
        if after != text:
            files[path] = after.encode()
    first = family[0]
    if first.path not in files or not any(path in repository.tests for path in files):
        return None
    functions = [(uses.dotted(each.path), *_called(each)) for each in family]
    project = functions[0][0].partition(".")[0]
    tests = renamed_parameter(project, changed_modules(uses, files), functions, old, new)
    return Refactoring(
        how="parameter",
        pieces=tuple(RemovedCode.of(repository, each) for each in family),
        lines=calls + len(family),
        old=old,
        new=new,
        edits=files,
        leftover_tests=(leftover_tests_file(uses, files, f"{first.short.strip('_')}_{old}"), tests),
    )


def _called(definition: Definition) -> tuple[str, bool]:
    """How it is called: a constructor by its class; and whether an object has to be given first."""
    if definition.short == "__init__":
        return definition.owner, False
    bound = {"staticmethod", "classmethod"} & {ast.unparse(each) for each in definition.node.decorator_list}
    return definition.name, bool(definition.owner) and not bound


def _arguments(module: Module, definition: Definition, old: str, new: str) -> Iterator[Edit]:
    assert isinstance(definition.node, Function)
    for each in [*definition.node.args.args, *definition.node.args.kwonlyargs]:
        if each.arg == old:
            start = module.at(each.lineno, each.col_offset)
            yield Edit(start, start + len(old), new.encode())


def _inside(module: Module, definition: Definition, old: str, new: str) -> Iterator[Edit]:
    """The parameter itself, what the body says of it, and what the docstring does."""
    yield from _arguments(module, definition, old, new)
    formatted: set[int] = set()
    word = re.compile(rf"(?<![\w.]){re.escape(old)}(?!\w)")
    for statement in definition.code:
        for node in ast.walk(statement):
            if isinstance(node, ast.JoinedStr) and id(node) not in formatted:
                formatted |= {id(each) for each in ast.walk(node)}
                start, end = module.span(node)
                text = module.data[start:end].decode()
                # A keyword in a call keeps its name, unless it is that of our own.
                after = in_braces(text, lambda part: re.sub(rf"{word.pattern}(?!\s*=(?!=))", new, part))
                yield Edit(start, end, after.encode())
            elif isinstance(node, ast.Name) and node.id == old and id(node) not in formatted:
                yield Edit(*module.span(node), new.encode())
    first = definition.node.body[0]
    if definition.doc and isinstance(first, ast.Expr):
        start, end = module.span(first)
        text = module.data[start:end].decode()
        name = re.escape(old)
        after = re.sub(rf"(:(?:param|type|arg|keyword)\s[^:\n]*?\b){name}(?=:)|(?<=`){name}(?=`)", rf"\g<1>{new}", text)
        after = re.sub(rf"(?m)^(\s*){name}(?=\s*(?:\([^)\n]*\))?\s*:)", rf"\g<1>{new}", after)
        after = _in_calls(after, {definition.short if definition.short != "__init__" else definition.owner}, old, new)
        yield Edit(start, end, after.encode())


def _in_calls(text: str, callees: set[str], old: str, new: str) -> str:
    """Text in which the function is called with the old keyword."""
    for name in callees:
        call = rf"(\b{re.escape(name)}\((?:[^()]|\([^()]*\))*?\b){re.escape(old)}(?=\s*=(?!=))"
        text = re.sub(call, rf"\g<1>{new}", text)
    return text
