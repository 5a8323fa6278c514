"""Another name for a function, class or method: everywhere, by tokens.

Proposed is what is defined once in the whole repository, bound nowhere else, asked of no foreign object, and mentioned
by tests. Whether the edited tree works is for others to find out. Runs nothing.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator
from typing import Final

from etude.forge.languages.python.source import Definition, Module
from etude.forge.origins.refactoring.candidate import Refactoring
from etude.forge.origins.refactoring.leftover_tests import renamed_function, renamed_method
from etude.forge.origins.refactoring.name_uses import Uses, known_attributes
from etude.forge.origins.refactoring.replace_name import respelled_code, respelled_text
from etude.forge.origins.refactoring.synonyms import is_distinct, other_name
from etude.forge.steps.candidate import RemovedCode
from etude.tasks.grading.submission import STEERING

SHORTEST: Final = 3  # letters
LEAST_MENTIONS: Final = 3
# Classes that call nothing of their heirs by name.
HARMLESS: Final = {"object", "ABC", "Generic", "Exception", "ValueError", "TypeError", "KeyError", "RuntimeError"}


def renames(uses: Uses, rng: random.Random) -> Iterator[Refactoring]:
    """In random order, those of several files before the others."""
    found = [each for each in uses.repository.definitions.values() if is_fit(uses, each)]
    rng.shuffle(found)
    # Names that three files or more mention come first: those have to be searched for.
    found.sort(key=lambda each: len(mentioning(uses, each.short)) < 3)
    for each in found:
        new = other_name(each.short, uses.words.__contains__, rng)
        made = rename(uses, each, new) if new is not None else None
        if made is not None:
            yield made


def is_fit(uses: Uses, definition: Definition) -> bool:
    """Whether a name means this and nothing else."""
    name, repository = definition.short, uses.repository
    holder = repository.definitions.get(f"{definition.path}:{definition.owner}") if definition.owner else None
    if name.startswith("__") or len(name) < SHORTEST or definition.repeated or "." in definition.owner:
        return False
    # Bound elsewhere, a token may mean another thing, and nobody can tell which by its text.
    if (
        uses.defined[name] != 1
        or name in uses.bound
        or not any(name in each.words for each in repository.tests.values())
    ):
        return False
    # Settings are not edited, so a name that stands there would be left behind.
    if name in uses.setting_words and (is_distinct(name) or re.search(rf"[.:]{re.escape(name)}\b", uses.settings)):
        return False
    if definition.owner:
        return (
            isinstance(holder and holder.node, ast.ClassDef)
            and name not in known_attributes()
            # Code that builds names from prefixes (`visit_` + name) would miss it.
            and not name.startswith(uses.prefixes)
            # An overload or setter is two definitions of one name.
            and not definition.decorators & {"overload", "setter"}
            and _calls_nothing(uses, holder)
        )
    # `x.name` of an object that is no module of ours may be anybody's.
    return all(last in uses.module_names for last in uses.holders.get(name, ()))


def _calls_nothing(uses: Uses, holder: Definition | None, heirs: frozenset[str] = frozenset()) -> bool:
    """Whether only the project itself decides what methods of a class are called."""
    if holder is None or not isinstance(holder.node, ast.ClassDef) or holder.short in heirs:
        return False
    bases = [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in holder.node.bases]
    own = {each.short: each for each in uses.repository.definitions.values() if isinstance(each.node, ast.ClassDef)}
    known = heirs | {holder.short}
    # A base class from elsewhere may call the method by its name.
    return all(base in HARMLESS or (base in own and _calls_nothing(uses, own[base], known)) for base in bases)


def mentioning(uses: Uses, name: str) -> list[str]:
    """Python files that have a word, and documents that do."""
    documents = [path for path, text in uses.documents.items() if re.search(rf"\b{re.escape(name)}\b", text)]
    return [path for path, module in uses.python.items() if name in module.words] + documents


def rename(uses: Uses, definition: Definition, new: str) -> Refactoring | None:
    """The candidate; None where a file cannot be edited or too little would change."""
    repository, old, distinct = uses.repository, definition.short, is_distinct(definition.short)
    edits: dict[str, bytes | None] = {}
    mentions = 0
    for path in mentioning(uses, old):
        before = repository.files[path]
        if path in uses.documents:
            data = respelled_text(uses.documents[path], old, new, distinct=distinct).encode()
        else:
            module = uses.python[path]
            code = respelled_code(before, old, new, distinct=distinct, exports=_exports(module, old))
            if (
                code is None
                or Module.read(path, code) is None
                # Files that steer the run of tests never reach the grader, so the rename could not be graded.
                or (STEERING.search(path) and path not in repository.tests)
            ):
                return None
            data = code
        if data != before:
            edits[path] = data
            mentions += data.count(new.encode())
    if definition.path not in edits or mentions < LEAST_MENTIONS or not any(path in repository.tests for path in edits):
        return None
    return Refactoring(
        how="rename",
        pieces=(RemovedCode.of(repository, definition),),
        lines=mentions,
        old=old,
        new=new,
        edits=edits,
        leftover_tests=(leftover_tests_file(uses, edits, old), _leftover_tests(uses, definition, new, edits)),
    )


def _exports(module: Module, name: str) -> bool:
    """Whether every text that is just this name is an export."""
    exact = [node for node in ast.walk(module.tree) if isinstance(node, ast.Constant) and node.value == name]
    listed = [
        node
        for statement in module.tree.body
        if isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign)
        and "__all__" in {each.id for each in ast.walk(statement) if isinstance(each, ast.Name)}
        for node in ast.walk(statement)
        if isinstance(node, ast.Constant) and node.value == name
    ]
    # The name as a whole string is an export only where every such string stands in __all__.
    return len(exact) == len(listed)


def _leftover_tests(uses: Uses, definition: Definition, new: str, edits: dict[str, bytes | None]) -> bytes:
    module = uses.dotted(definition.path)
    project, changed = module.partition(".")[0], changed_modules(uses, edits)
    plain = not definition.node.decorator_list
    if not definition.owner:
        return renamed_function(project, changed, module, definition.short, new, plain=plain)
    holder = uses.repository.definitions[f"{definition.path}:{definition.owner}"]
    words = uses.repository.modules[definition.path].words
    hooks = {"__getattr__", "__getattribute__", "abstractmethod", "__slots__"} & words
    bare = isinstance(holder.node, ast.ClassDef) and not holder.node.bases and not holder.node.keywords and not hooks
    owner = definition.owner
    return renamed_method(project, changed, module, owner, definition.short, new, plain=plain, bare=bare)


def changed_modules(uses: Uses, edits: dict[str, bytes | None]) -> list[str]:
    """Modules of the project that change, by the names that they have afterwards."""
    code = [path for path, data in edits.items() if data is not None and path.endswith(".py")]
    own = [path for path in code if not uses.repository.is_test(path) and path.rpartition("/")[2] != "__main__.py"]
    return sorted(uses.dotted(path) for path in own if uses.is_own(uses.dotted(path)))


def leftover_tests_file(uses: Uses, edits: dict[str, bytes | None], old: str) -> str:
    """A file beside the tests that change, whose name no other has."""
    tests = sorted(path for path in edits if path in uses.repository.tests and not path.endswith("conftest.py"))
    tests = tests or sorted(path for path in edits if path in uses.repository.tests)
    folder = tests[0].rpartition("/")[0]
    taken = {path.rpartition("/")[2] for path in uses.repository.files}
    stem = re.sub(r"\W+", "_", old).strip("_").lower()
    names = [f"test_no_{stem}{more}.py" for more in ("", "_left", *range(2, 99))]
    return f"{folder}/{next(name for name in names if name not in taken)}".lstrip("/")
