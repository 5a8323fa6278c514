"""The leak audit: is anything that was deleted still to be had in what an agent's sandbox shows?

Searches the layers, as far as upper ones do not hide them, and the host's folders that they show: the workspace file
by file, everything else through an index that is made once (`tree_index`). Reads as data only, and runs nothing that it
finds. Knows no task: what was deleted is given to it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import numpy as np

from etude.core.errors import EtudeError
from etude.corpus.word_hashes import Hashes
from etude.forge.leaks.deleted_code import Deleted
from etude.forge.leaks.index_cache import contents_of, open_host_index, open_index
from etude.forge.leaks.is_copy import common, same_file, share_elsewhere, share_in_bytecode, share_in_workspace
from etude.forge.leaks.layer_view import View
from etude.forge.leaks.search_terms import Unit, search_units
from etude.forge.leaks.tree_index import WINDOW, Content, TreeIndex, exact, read_file, walk
from etude.forge.leaks.unpack import UnpackedText, Unsearchable
from etude.sandbox.base import WORKSPACE, Layer
from etude.sandbox.hosts import StoringHost
from etude.sandbox.store.layers import Store

Kind = Literal["source", "bytecode", "unsearchable"]

MOST_CANDIDATES: Final = 200  # places compared exactly for one unit in one index, the most promising first
_HOME: Final = WORKSPACE.strip("/")


@dataclass(frozen=True)
class Leak:
    """A place that gives a deleted piece away, or that could and cannot be searched."""

    place: str  # path in the sandbox; what is packed in it after "!"
    kind: Kind
    name: str  # which piece: "pkg/mod.py:Class.method"
    share: float  # of what was deleted
    why: str

    def __str__(self) -> str:
        return f"{self.place}: {self.why}"


async def audit_leaks(
    host: StoringHost, layers: Sequence[Layer], deleted: Sequence[Deleted], *, seconds: float = 900.0
) -> list[Leak]:
    """Everything in a sandbox over these layers that shows a deleted piece; none: the task is clean.

    The first audit over an environment indexes it, which takes a while; `seconds` bounds the whole.
    """
    if not layers:
        raise EtudeError("a leak audit needs the layers that the agent's sandbox is started over")
    deadline = time.monotonic() + seconds
    return await asyncio.to_thread(audit_files, host.store, tuple(layers), tuple(deleted), deadline)


def audit_files(
    store: Store, layers: Sequence[Layer], deleted: Sequence[Deleted], deadline: float = float("inf")
) -> list[Leak]:
    """The same without an event loop."""
    view = View([layer.path for layer in layers])
    search = _Search(_units(deleted, view.text))
    leaks = list(search.workspace(_workspace_files(view, deadline)))
    for place in _indexed(store, layers, deadline):
        leaks += search.elsewhere(place, view, deadline)
    for file in _shown_files(layers):
        leaks += search.alone(file)
    return _plainest(leaks)


def audit_tree(tree: Path, deleted: Sequence[Deleted]) -> list[Leak]:
    """The same for a workspace alone, before it is a layer; places are relative to it."""

    def read(path: str) -> str | None:
        file = tree / path
        plain = file.is_file() and not file.is_symlink()
        return file.read_bytes().decode("utf-8", "surrogateescape") if plain else None

    files = ((path, *contents_of(tree, path, status.st_size)) for path, status in walk(tree, host=False))
    return _plainest(list(_Search(_units(deleted, read)).workspace(files)))


def _units(deleted: Sequence[Deleted], read: Callable[[str], str | None]) -> list[Unit]:
    # A unit with nothing to compare (one short line) would be found everywhere or nowhere.
    return [unit for unit in search_units(deleted, read) if len(unit.shingles) or len(unit.codes)]


def _plainest(leaks: list[Leak]) -> list[Leak]:
    """One leak for each file and piece: where it shows most."""
    best: dict[tuple[str, str, str], Leak] = {}
    for leak in leaks:
        # A member of an archive and the archive itself would be named twice.
        key = (leak.place.partition("!")[0], leak.kind, leak.name)
        if key not in best or leak.share > best[key].share:
            best[key] = leak
    return sorted(best.values(), key=lambda leak: (leak.kind, leak.place, leak.name))


def _workspace_files(view: View, deadline: float) -> Iterator[tuple[str, list[Content], list[Unsearchable]]]:
    """Path in the sandbox and content of every visible file of the workspace."""
    for number, tree in enumerate(view.trees):
        for path, status in walk(tree / _HOME, host=False):
            if time.monotonic() > deadline:
                raise EtudeError("the leak audit of a workspace took too long: make it smaller, or wait longer")
            if view.sees(number, f"{_HOME}/{path}"):
                yield f"{WORKSPACE}/{path}", *contents_of(tree / _HOME, path, status.st_size)


@dataclass(frozen=True)
class _Indexed:
    """A layer or a folder of the host, with its index."""

    root: Path  # on this machine
    prefix: str  # in the sandbox: "" for a layer
    layer: int  # its number, lowest first; -1 for a folder of the host, over which nothing lies
    index: TreeIndex


def _indexed(store: Store, layers: Sequence[Layer], deadline: float) -> Iterator[_Indexed]:
    for number, layer in enumerate(layers):
        if all(path.name == _HOME for path in layer.path.iterdir()):
            continue  # a workspace alone, which is read file by file
        index = open_index(store, f"layer-{layer.digest}", layer.path, skip=_HOME, deadline=deadline)
        yield _Indexed(layer.path, "", number, index)
    shown = dict.fromkeys(path for layer in layers for path in layer.shows)
    for path in shown:
        # Covered by the index of the outer folder.
        inside_another = any(path.startswith(f"{other}/") for other in shown)
        if not inside_another and Path(path).is_dir() and not Path(path).is_symlink():
            yield _Indexed(Path(path), path, -1, open_host_index(store, path, deadline))


def _shown_files(layers: Sequence[Layer]) -> Iterator[Path]:
    """Single files of the host that layers show, as modules of the standard library may be."""
    for path in dict.fromkeys(path for layer in layers for path in layer.shows):
        if path.endswith(".py") and Path(path).is_file():
            yield Path(path)


@dataclass
class _Search:
    """The units, and what the workspace shows of each of them."""

    units: list[Unit]
    known: list[list[Hashes]] = field(init=False)

    def __post_init__(self) -> None:
        self.known = [[] for _ in self.units]

    def workspace(self, files: Iterable[tuple[str, list[Content], list[Unsearchable]]]) -> Iterator[Leak]:
        """Copies in the workspace; what is none is remembered as what it shows anyway."""
        for path, contents, refused in files:
            for found in refused:
                yield _unsearchable(f"{path}{found.inner}", found.why)
            for content in contents:
                yield from self._next_door(path, content)

    def _next_door(self, path: str, content: Content) -> Iterator[Leak]:
        place = f"{path}{content.inner}"
        for unit, known in zip(self.units, self.known, strict=True):
            own = path.removeprefix(f"{WORKSPACE}/") == unit.path
            if share := share_in_workspace(unit, content.shingles, own):
                yield _copy(unit, share, place)
            else:
                # What the workspace shows anyway is no leak elsewhere, so it is taken off below.
                known.append(common(unit.shingles, content.shingles))
            if share := share_in_bytecode(unit, content.codes, place):
                yield _copy(unit, share, place, "bytecode")

    def elsewhere(self, searched: _Indexed, view: View, deadline: float) -> Iterator[Leak]:
        """Copies in an environment or in a folder of the host."""
        index = searched.index
        # Of the host's folders nobody's task made anything, so nothing is hidden there on purpose.
        for place, why in index.refused if searched.layer >= 0 else ():
            if view.sees(searched.layer, place.file):
                yield _unsearchable(f"{searched.prefix}/{place.label}", why)
        for unit, known in zip(self.units, self.known, strict=True):
            distinctive = _less(unit, known)
            for file, inner in _candidates(index, unit, distinctive).items():
                if time.monotonic() > deadline:
                    where = searched.prefix or "a layer"
                    raise EtudeError(f"the leak audit of {where} took too long: show less of it, or wait longer")
                if index.host or view.sees(searched.layer, file):
                    words = unit.words if index.host else ()  # many a file of the host defines a function called main
                    yield from _compare(unit, distinctive, searched.root, searched.prefix, file, inner, words)

    def alone(self, file: Path) -> Iterator[Leak]:
        """Copies in one file of the host, which is read only when it defines a name that is wanted."""
        text = file.read_bytes()
        for unit, known in zip(self.units, self.known, strict=True):
            name = unit.name.rpartition(".")[2].encode()
            if name and (b"def " + name in text or b"class " + name in text):
                yield from _compare(unit, _less(unit, known), file.parent, str(file.parent), file.name, {""})


def _less(unit: Unit, known: list[Hashes]) -> Hashes:
    """What went of a unit, without what the workspace shows of it."""
    return np.setdiff1d(unit.shingles, np.concatenate([np.empty(0, np.uint64), *known]))


def _candidates(index: TreeIndex, unit: Unit, distinctive: Hashes) -> dict[str, set[str]]:
    """Files worth reading, and what in them: of a copy's marks a good part is there, of an idiom's one or two."""
    if index.host:
        sharing = index.defining(unit.name) if unit.name else index.naming(unit.path)
        # Files of the same name first: of the host only the best 200 are compared.
        likely = sorted((-same_file(unit, index.places[place].label), place) for place in sharing)
    else:
        tiny = len(distinctive) <= 4 * WINDOW  # too few to be sure of a mark: by what stood around them
        asked = np.union1d(unit.whole, unit.module) if tiny else distinctive
        # The index holds few marks of each place. 15% of the marks that a full copy would show is far below any
        # threshold.
        least = 0.15 * len(asked) * 2 / (WINDOW + 1)
        likely = sorted((-count, place) for place, count in index.sharing(asked).items() if count >= least)
    in_code = sorted((-count, place) for place, count in index.sharing_code(unit.codes).items())
    chosen = [*likely[:MOST_CANDIDATES], *in_code[:MOST_CANDIDATES]]
    found: dict[str, set[str]] = {}
    for _, number in chosen:
        place = index.places[number]
        found.setdefault(place.file, set()).add(place.inner)
    return found


def _compare(
    unit: Unit, distinctive: Hashes, root: Path, prefix: str, file: str, inner: set[str], words: Sequence[bytes] = ()
) -> Iterator[Leak]:
    """What of a file, itself or packed in it, is a copy."""
    for content in _contents(root, file, inner, words):
        where = f"{prefix}/{file}{content.inner}"
        if share := share_elsewhere(unit, distinctive, content.shingles, where):
            yield _copy(unit, share, where)
        if share := share_in_bytecode(unit, content.codes, where):
            yield _copy(unit, share, where, "bytecode")


def _contents(root: Path, file: str, inner: set[str], words: Sequence[bytes]) -> Iterator[Content]:
    """The pieces of a file that were asked for; those without half of the words are left out before any counting."""
    try:
        if inner == {""} and file.endswith((".py", ".pyi")):
            # A plain source needs no unpacking, and most candidates are one.
            pieces: Iterable[UnpackedText | Unsearchable] = [UnpackedText("", (root / file).read_bytes(), file)]
        else:
            pieces = read_file(root, file, (root / file).stat().st_size)
    except OSError:
        return
    for piece in pieces:
        if not isinstance(piece, UnpackedText) or piece.inner not in inner:
            continue
        # Comparing costs much more than looking for half of its longest names.
        if piece.codes or sum(word in piece.text for word in words) * 2 >= len(words):
            yield exact(piece)


def _copy(unit: Unit, share: float, place: str, kind: Kind = "source") -> Leak:
    manner = " as bytecode" if kind == "bytecode" else ""
    return Leak(place, kind, str(unit), share, f"it holds {share:.0%} of the deleted {unit}{manner}")


def _unsearchable(place: str, why: str) -> Leak:
    return Leak(place, "unsearchable", "", 0.0, f"it cannot be searched: {why}")
