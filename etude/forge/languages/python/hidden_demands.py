"""What hidden tests ask for that nobody could know: names, keywords, messages and conventions that only they and the
deleted code share.

Compared are three texts: the deleted code, the hidden tests, and everything that the agent sees. What the first two
have in common and the third lacks has to be said, or no test may ask for it. Knows sources; runs nothing.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Final

from etude.forge.languages.base import LocatedTest
from etude.forge.languages.python.repository import PythonRepository
from etude.forge.languages.python.source import Module
from etude.tasks.grading.inherited_tests import collected

LONGEST: Final = 190  # characters of one thing that is said; what is longer is no message but data
SHORTEST: Final = 3  # characters of a piece of a message: shorter ones are found everywhere
_TEXTS: Final = (".py", ".pyi", ".md", ".rst", ".txt", ".toml", ".cfg", ".ini", ".in", ".yml", ".yaml", "")
_MOST_BYTES: Final = 1 << 20
_TRIVIAL: Final = (0, 1, 2, -1, True, False, None, "")
_KINDS: Final = {
    ast.Tuple: "a tuple",
    ast.List: "a list",
    ast.ListComp: "a list",
    ast.Dict: "a dictionary",
    ast.DictComp: "a dictionary",
    ast.Set: "a set",
    ast.SetComp: "a set",
    ast.GeneratorExp: "a generator",
}
_RAISES: Final = ("raises", "assertRaises", "assertRaisesRegex", "warns", "assertWarns", "assertWarnsRegex")
_ROLES: Final = ("takes", "defines", "sets", "passes on", "uses")
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class DeletedPiece:
    """A deleted function or class, with how it was written."""

    id: str  # path:name
    name: str
    source: str
    signature: str = ""
    doc: str = ""
    gone: bool = False

    @cached_property
    def tree(self) -> ast.Module:
        try:
            return ast.parse(textwrap.dedent(self.source))
        except (SyntaxError, ValueError, RecursionError):
            return ast.Module([], [])


@dataclass(frozen=True)
class Demand:
    """Something that hidden tests ask for and nothing visible says."""

    said: str  # how an instruction says it
    tests: frozenset[str]  # ids that ask for it

    @property
    def can_be_said(self) -> bool:
        return len(self.said) <= LONGEST and "\n" not in self.said


@dataclass(frozen=True)
class Visible:
    """All text that the agent sees, and which of it is about what was deleted."""

    texts: Sequence[str] = field(repr=False)
    words: frozenset[str] = field(repr=False)
    about: str = field(repr=False)  # docstrings of the pieces, what is left of them, and tests that are shown

    def has(self, text: str) -> bool:
        return any(text in each for each in self.texts)


def visible_text(
    repository: PythonRepository,
    changes: Mapping[str, bytes | None],
    pieces: Sequence[DeletedPiece],
    shown: Sequence[str],
    said: str = "",
) -> Visible:
    """What the agent sees once these changes are made: the workspace's texts, and the instruction (`said`)."""
    texts, words = [said], set(re.findall(r"\w+", said))
    for path in repository.files:
        if not path.endswith(_TEXTS) or repository.files.kind(path) == "link":
            continue
        if path in changes:
            data = changes[path]
            if data is not None and len(data) <= _MOST_BYTES:
                texts.append(data.decode("utf-8", "replace"))
                words.update(re.findall(r"\w+", texts[-1]))
        elif repository.files.size(path) <= _MOST_BYTES:
            text, own = _read(repository, path)
            texts.append(text)
            words |= own
    about = "\n".join([*(piece.doc for piece in pieces), *_sources(repository, shown), *_left(changes, pieces)])
    return Visible(texts, frozenset(words), about)


def hidden_demands(
    repository: PythonRepository,
    pieces: Sequence[DeletedPiece],
    held_out: Sequence[str],
    shown: Sequence[str],
    visible: Visible,
) -> list[Demand]:
    """What has to be said, in the order of the pieces."""
    found: dict[str, set[str]] = {}
    reached = {name.partition(".<locals>")[0] for test in shown for name in repository.traces.get(test, ())}
    asked = _asked(repository, held_out)
    for piece in pieces:
        for said, places in _of_piece(piece, asked, visible, piece.id in reached):
            found.setdefault(said, set()).update(places)
    return [Demand(said, frozenset(tests)) for said, tests in found.items()]


def demands_of(node: ast.AST, pieces: Sequence[DeletedPiece], visible: Visible) -> set[str]:
    """The same for one test, which need not be the repository's: what it asks that nothing says, in words."""
    asked = [_mentions(node, ("",))]
    return {said for piece in pieces for said, _ in _of_piece(piece, asked, visible, is_shown=True)}


@dataclass
class _Asked:
    """What one hidden test function mentions."""

    tests: tuple[str, ...]
    names: set[str] = field(default_factory=set)  # names, attributes, keywords
    keywords: set[str] = field(default_factory=set)
    texts: list[str] = field(default_factory=list)
    numbers: set[float] = field(default_factory=set)
    raised: set[str] = field(default_factory=set)
    constants: set[str] = field(default_factory=set)  # that something is compared with
    chained: set[str] = field(default_factory=set)  # methods whose result is asked for something


def _asked(repository: PythonRepository, tests: Sequence[str]) -> list[_Asked]:
    places: dict[LocatedTest, list[str]] = {}
    for test in tests:
        places.setdefault(repository.place(test), []).append(test)
    found = []
    for place, ids in places.items():
        module = repository.tests.get(place.path)
        definition = module.definitions.get(place.name) if module is not None and place.name else None
        node = definition.node if definition is not None else module.tree if module is not None else None
        if node is not None:
            found.append(_mentions(node, tuple(ids)))
    return found


def _mentions(tree: ast.AST, tests: tuple[str, ...]) -> _Asked:
    found = _Asked(tests)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            found.names.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.names.add(node.attr)
            inner = node.value.func if isinstance(node.value, ast.Call) else None
            if isinstance(inner, ast.Attribute | ast.Name):
                found.chained.add(inner.attr if isinstance(inner, ast.Attribute) else inner.id)
        elif isinstance(node, ast.keyword) and node.arg:
            found.keywords.add(node.arg)
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                found.texts.append(node.value)
            elif isinstance(node.value, int | float) and node.value not in _TRIVIAL:
                found.numbers.add(node.value)
        elif isinstance(node, ast.Compare):
            found.constants |= {ast.unparse(each) for each in (node.left, *node.comparators) if _is_plain(each)}
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in _RAISES and node.args:
                found.raised |= {_last(each) for each in getattr(node.args[0], "elts", [node.args[0]])}
            elif name == "assertIsNone":
                found.constants.add("None")
            elif name in ("assertEqual", "assertEquals", "assert_equal", "assert_equals", "eq_"):
                found.constants |= {ast.unparse(each) for each in node.args if _is_plain(each)}
    return found


def _of_piece(
    piece: DeletedPiece, asked: Sequence[_Asked], visible: Visible, is_shown: bool
) -> Iterator[tuple[str, Collection[str]]]:
    """What hidden tests ask of one piece, in words, with the tests that do."""

    def who(matches: Iterable[_Asked]) -> list[str]:
        return [test for each in matches for test in each.tests]

    short = piece.name.rpartition(".")[2]
    calling = [each for each in asked if short in each.names or short in each.keywords]
    if piece.gone and piece.signature and calling and not re.search(rf"\b{re.escape(short)}\b", visible.about):
        yield f"the signature of `{piece.name}` is `{piece.signature.removesuffix(':').strip()}`", who(calling)
    for name, role in sorted(_identifiers(piece.tree).items()):
        if name in visible.words:
            continue
        keyword = [each for each in asked if name in each.keywords]
        if keyword:
            yield f"`{piece.name}` {'takes' if role == 'takes' else 'handles'} a keyword `{name}`", who(keyword)
        elif using := [each for each in asked if name in each.names and name != short]:
            yield f"`{piece.name}` {role} `{name}`", who(using)
    for template, fragments in _messages(piece.tree):
        unseen = [each for each in fragments if not visible.has(each)]
        if using := [each for each in asked if any(_overlaps(one, text) for one in unseen for text in each.texts)]:
            yield f"`{piece.name}` has the exact text `{template}`", who(using)
    for name in sorted(_raised(piece.tree)):
        using = [each for each in asked if name in each.raised]
        if using and not re.search(rf"\b{re.escape(name)}\b", visible.about):
            yield f"`{piece.name}` raises `{name}`", who(using)
    for number in sorted(_numbers(piece.tree)):
        using = [each for each in asked if number in each.numbers]
        if using and not visible.has(repr(number)):
            yield f"`{piece.name}` has the number `{number!r}` in it", who(using)
    yield from _conventions(piece, calling, visible, is_shown)


def _conventions(
    piece: DeletedPiece, calling: Sequence[_Asked], visible: Visible, is_shown: bool
) -> Iterator[tuple[str, Collection[str]]]:
    """What it gives back, where that is a matter of taste."""
    short = piece.name.rpartition(".")[2]
    for given in sorted({ast.unparse(each) for each in _returned(piece.tree) if _is_plain(each)} - {"True", "False"}):
        stated = re.search(rf"(?<![\w.]){re.escape(given)}(?![\w.])", visible.about)
        if not stated and (using := [each for each in calling if given in each.constants]):
            yield f"`{piece.name}` can return `{given}`", [test for each in using for test in each.tests]
    chained = [each for each in calling if short in each.chained]
    stated = re.search(rf"\b{re.escape(short)}\([^\n]*\)\.", visible.about) or re.search(r"\bself\b|itself", piece.doc)
    if chained and not stated and any(ast.unparse(each) == "self" for each in _returned(piece.tree)):
        yield f"`{piece.name}` returns the object itself", [test for each in chained for test in each.tests]
    kinds = {_KINDS[type(each)] for each in _returned(piece.tree) if type(each) in _KINDS}
    if calling and not is_shown and len(kinds) == 1:
        (kind,) = kinds
        if kind.rpartition(" ")[2] not in piece.doc.lower():
            yield f"`{piece.name}` returns {kind}", [test for each in calling for test in each.tests]


# What the deleted code has


def _identifiers(tree: ast.AST) -> dict[str, str]:
    """Names that others could use, each with what the code does with it; where it does several things, the one that
    tells a caller most."""
    found: dict[str, str] = {}

    def note(name: str, role: str) -> None:
        if name not in found or _ROLES.index(role) < _ROLES.index(found[name]):
            found[name] = role

    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            note(node.arg, "takes")
        elif isinstance(node, ast.Attribute):
            note(node.attr, "uses" if isinstance(node.ctx, ast.Load) else "sets")
        elif isinstance(node, Function | ast.ClassDef):
            note(node.name, "defines")
        elif isinstance(node, ast.keyword) and node.arg:
            note(node.arg, "passes on")
    return found


def _messages(tree: ast.AST) -> Iterator[tuple[str, list[str]]]:
    """Texts, as they are written, with the parts that are always the same. Docstrings are none."""
    docs = {id(node.body[0].value) for node in ast.walk(tree) if _has_doc(node)}  # type: ignore[attr-defined]
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [str(part.value) for part in node.values if isinstance(part, ast.Constant)]
            yield ast.unparse(node)[1:].strip("'\""), _fragments(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs | inside:
            yield node.value.strip(), _fragments(re.split(r"%[-#0-9.]*[sdrfx%]|\{[^{}]*\}|%\(\w+\)[sdrfx]", node.value))


def _fragments(parts: Iterable[str]) -> list[str]:
    return [part.strip() for part in parts if len(part.strip()) >= SHORTEST and re.search(r"\w", part)]


def _overlaps(fragment: str, text: str) -> bool:
    """Whether a test's text asks for a part of a message; tests escape what stands in a pattern."""
    plain = re.sub(r"\\(?=\W)", "", text).strip("^$ ")
    return fragment in plain or (len(plain) >= SHORTEST and plain in fragment)


def _raised(tree: ast.AST) -> set[str]:
    raised = [node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise) and node.exc is not None]
    return {name for each in raised if (name := _last(each.func if isinstance(each, ast.Call) else each))}


def _numbers(tree: ast.AST) -> set[float]:
    values = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return {each for each in values if isinstance(each, int | float) and each not in _TRIVIAL}


def _returned(tree: ast.AST) -> list[ast.expr]:
    return [node.value for node in ast.walk(tree) if isinstance(node, ast.Return) and node.value is not None]


def _is_plain(node: ast.expr) -> bool:
    """A constant that stands for a case: None, -1, an empty text or container."""
    if isinstance(node, ast.Constant):
        return node.value is not ... and not (isinstance(node.value, str) and node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return isinstance(node.operand, ast.Constant)
    return (isinstance(node, ast.List | ast.Tuple) and not node.elts) or (isinstance(node, ast.Dict) and not node.keys)


def _last(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _has_doc(node: ast.AST) -> bool:
    return isinstance(node, Function | ast.ClassDef | ast.Module) and ast.get_docstring(node, clean=False) is not None


@lru_cache(maxsize=2048)
def _read(repository: PythonRepository, path: str) -> tuple[str, frozenset[str]]:
    """A file's text and words. Kept: the files of a repository are the same for all of its candidates."""
    text = repository.files.text(path)
    return text, frozenset(re.findall(r"\w+", text))


def _left(changes: Mapping[str, bytes | None], pieces: Sequence[DeletedPiece]) -> Iterator[str]:
    """What the agent still sees of the pieces themselves: all but a mistake, a signature, or nothing."""
    for path in dict.fromkeys(piece.id.partition(":")[0] for piece in pieces):
        module = Module.read(path, changes.get(path) or b"")
        if module is None:
            continue
        for piece in pieces:
            definition = module.definitions.get(piece.name) if piece.id.startswith(f"{path}:") else None
            if definition is not None:
                yield module.source(definition)


def _sources(repository: PythonRepository, tests: Sequence[str]) -> Iterator[str]:
    for place in dict.fromkeys(LocatedTest(*collected(test)) for test in tests):
        module = repository.tests.get(place.path)
        definition = module.definitions.get(place.name) if module is not None else None
        if module is not None and definition is not None:
            yield module.source(definition)
