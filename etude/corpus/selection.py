"""Which documents become the corpus: read -> filter -> deduplicate -> decontaminate -> split.

Documents stream through once into chunks on disk; after that only their numbers are decided about. Every file
that is read ends in exactly one outcome of the funnel. Chunks, what was found out about each, and the finished
selection are kept, so a build that is killed does not read or screen them again. Knows no tokens.
"""

from __future__ import annotations

import json
from array import array
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pydantic

from etude.core import durable, progress
from etude.core.errors import EtudeError
from etude.core.settings import CorpusSettings, QualitySettings
from etude.corpus.decontaminate import Forbidden
from etude.corpus.dedupe import SIZE, NearDuplicate, find_copies, near_duplicates, shingles
from etude.corpus.document import Source
from etude.corpus.manifest import CONTAMINATED, EXACT, KEPT, NEAR, Funnel
from etude.corpus.quality import read_labels, train_classifier
from etude.corpus.quality_rules import level_by_rules
from etude.corpus.split import FEWEST_REPOSITORIES, Side, side_of
from etude.corpus.spool.files import Spool, StoredRows
from etude.corpus.spool.reading import Reader
from etude.corpus.spool.screening import ALIVE, Screening, join_signatures
from etude.corpus.spool.workers import Workers
from etude.corpus.word_hashes import Hashes

FILE = "selection.json"
SIDES = "sides.npy"
LEVELS = "levels.npy"
SPLITS: tuple[Side, ...] = get_args(Side)
DROPPED = -1
LISTED = 200  # duplicates and contaminated files that are named; all are counted
REMEMBERED = 2_000_000  # shingles kept at hand while near-duplicates are compared: sixteen megabytes
SIGNATURES = "signatures"


@dataclass(frozen=True)
class Selection:
    """What became of every document that is in the spool, and of every file that never got there."""

    sides: npt.NDArray[np.int8]  # of each document in the spool: an index into SPLITS, or DROPPED
    funnel: Funnel
    stopped: list[str]
    near_duplicates: list[dict[str, Any]]
    contaminated: list[dict[str, Any]]
    by_repository: bool
    levels: npt.NDArray[np.int8]  # of quality, of each document in the spool

    def save(self, directory: Path) -> None:
        np.save(directory / SIDES, self.sides)
        np.save(directory / LEVELS, self.levels)
        for name in (SIDES, LEVELS):
            durable.sync(directory / name)
        facts = {"stopped": self.stopped, "near_duplicates": self.near_duplicates, "contaminated": self.contaminated}
        facts |= {"by_repository": self.by_repository, "funnel": asdict(self.funnel)}
        # Last: with this file a selection is finished.
        durable.write_whole(directory / FILE, json.dumps(facts))

    @classmethod
    def load(cls, directory: Path) -> Selection:
        facts = json.loads((directory / FILE).read_text())
        facts["funnel"] = pydantic.TypeAdapter(Funnel).validate_python(facts["funnel"])
        return cls(np.load(directory / SIDES), levels=np.load(directory / LEVELS), **facts)


def select(sources: Sequence[Source], settings: CorpusSettings, forbidden: Forbidden, directory: Path) -> Selection:
    """Fill the spool in `directory` and decide about what is in it."""
    screening = Screening(
        list(settings.licenses),
        settings.parse,
        settings.near_threshold < 1,
        list(settings.decontaminate),
        settings.decontaminate_ngram,
    )
    reader = Reader(sources, settings.max_bytes, directory)
    with Workers("screen", screening, directory) as workers:
        reader.read(workers.give)
        workers.finish()
    with closing(Spool(directory)) as spool:
        alive = _screened(spool)
        copies = np.zeros(len(spool), bool)
        copies[alive] = find_copies(spool.array("digests", "uint64").reshape(-1, 2)[alive])
        alive &= ~copies
        hits = _sign(spool, screening, alive, directory)
        near = _find_near(spool, settings, np.flatnonzero(alive), directory)
        sides = np.where(alive, 0, DROPPED).astype(np.int8)
        sides[near.dropped] = DROPPED
        contaminated = [number for number in hits if sides[number] != DROPPED]
        sides[contaminated] = DROPPED
        # After deduplication, so that no copy of a held-out file is trained on.
        by_repository = _split(spool, sides, settings)
        outcomes = {EXACT: np.flatnonzero(copies), NEAR: near.dropped, CONTAMINATED: np.array(contaminated, np.int64)}
        _count(spool, reader.funnel, outcomes | {KEPT: np.flatnonzero(sides != DROPPED)}, sources)
        selection = Selection(
            sides,
            reader.funnel,
            reader.stopped,
            near.named,
            [{"file": _name(spool, number), **hits[number]} for number in contaminated[:LISTED]],
            by_repository,
            _levels(spool, sides, settings.quality),
        )
    _check_not_empty(selection)
    selection.save(directory)
    return selection


def _screened(spool: Spool) -> npt.NDArray[np.bool_]:
    """Which documents no filter took."""
    alive = np.ones(len(spool), bool)
    for chunk, first in zip(spool.chunks, spool.first.tolist(), strict=False):
        for numbers in json.loads(chunk.file("reasons").read_text()).values():
            alive[np.array(numbers) + first] = False
    return alive


def _sign(
    spool: Spool, screening: Screening, alive: npt.NDArray[np.bool_], directory: Path
) -> dict[int, dict[str, str]]:
    """Signatures of what is left, in one file; the overlaps with forbidden texts, in order."""
    hits: dict[int, dict[str, str]] = {}
    with Workers("sign", screening, directory) as workers:
        for chunk, start, end in zip(spool.chunks, spool.first[:-1], spool.first[1:], strict=True):
            chunk.note(ALIVE, alive[start:end])
            workers.give(chunk)
        with progress.track("signing and looking for forbidden texts", unit="files"):
            workers.finish()
    for chunk, first in zip(spool.chunks, spool.first.tolist(), strict=False):
        found = json.loads(chunk.file("hits").read_text())
        hits |= {int(number) + first: hit for number, hit in found.items()}
    join_signatures(spool.chunks, directory / SIGNATURES)
    return hits


@dataclass(frozen=True)
class _Near:
    dropped: npt.NDArray[np.int64]
    named: list[dict[str, Any]]  # the first of them


def _find_near(spool: Spool, settings: CorpusSettings, alive: npt.NDArray[np.int64], directory: Path) -> _Near:
    """Near-duplicates among the documents `alive`, which the rows of the signatures stand for."""
    if settings.near_threshold >= 1:
        return _Near(np.empty(0, np.int64), [])

    with (
        closing(StoredRows(directory / SIGNATURES, SIZE)) as signatures,
        progress.track("comparing near-duplicates", unit="files") as bar,
    ):
        remembered = Remembered()

        def shingles_of(row: int) -> Hashes:
            bar.advance()
            return remembered.get(row, lambda: shingles(spool.document(int(alive[row])).text))

        dropped = array("q")
        first: list[dict[str, Any]] = []
        for duplicate in near_duplicates(signatures, settings.near_threshold, shingles_of, directory):
            dropped.append(duplicate.number)
            if len(first) < LISTED:
                first.append(_name_near(spool, duplicate, alive))
    return _Near(alive[np.array(dropped, np.int64)], first)


class Remembered:
    """Sets of shingles that were needed last, so many numbers in all."""

    def __init__(self) -> None:
        self._sets: OrderedDict[int, Hashes] = OrderedDict()
        self._size = 0

    def get(self, row: int, make: Callable[[], Hashes]) -> Hashes:
        found = self._sets.pop(row, None)
        if found is None:
            found = make()
            self._size += len(found)
        self._sets[row] = found
        while self._size > REMEMBERED and len(self._sets) > 1:
            self._size -= len(self._sets.popitem(last=False)[1])
        return found


def _count(
    spool: Spool, funnel: Funnel, outcomes: Mapping[str, npt.NDArray[np.int64]], sources: Sequence[Source]
) -> None:
    """Adds every document to its outcome."""
    sizes = spool.array("sizes", "int64")
    for chunk, first in zip(spool.chunks, spool.first.tolist(), strict=False):
        for reason, numbers in json.loads(chunk.file("reasons").read_text()).items():
            taken = sizes[np.array(numbers) + first]
            funnel.add(sources[chunk.facts["source"]].name, reason, int(taken.sum()), len(taken))
    for outcome, numbers in outcomes.items():
        for source in np.unique(spool.sources[numbers]).tolist():
            taken = sizes[numbers[spool.sources[numbers] == source]]
            funnel.add(sources[source].name, outcome, int(taken.sum()), len(taken))


def _split(spool: Spool, sides: npt.NDArray[np.int8], settings: CorpusSettings) -> bool:
    """Sets the side of every document that stays; whether whole repositories could be held out."""
    staying = np.flatnonzero(sides != DROPPED)
    # Of a few repositories none can be spared: then single files are held out.
    repositories: set[str] = set()
    for head in spool.heads(map(int, staying)):
        repositories.add(head.repo)
        if len(repositories) >= FEWEST_REPOSITORIES:
            break
    by_repository = len(repositories) >= FEWEST_REPOSITORIES
    for number, head in zip(staying, spool.heads(map(int, staying)), strict=True):
        sides[number] = SPLITS.index(side_of(head.repo, head.path, settings.held_out, by_repository))
    return by_repository


def _levels(spool: Spool, sides: npt.NDArray[np.int8], settings: QualitySettings) -> npt.NDArray[np.int8]:
    """The level of quality of every document that stays: the lower one of rules and classifier where there are both."""
    levels = np.zeros(len(spool), np.int8)
    if settings.labels or settings.rules:
        classifier = train_classifier(read_labels(Path(settings.labels))) if settings.labels else None
        staying = np.flatnonzero(sides != DROPPED)
        with progress.track("scoring quality", len(staying), unit="files") as bar:
            for number in map(int, staying):
                text = spool.document(number).text
                reached = [level_by_rules(text, settings.rules)] if settings.rules else []
                if classifier is not None:
                    score = classifier.score(text)
                    reached.append(sum(score >= least for least in settings.levels))
                levels[number] = min(reached)
                bar.advance()
    return levels


def _name(spool: Spool, number: int) -> str:
    head = next(spool.heads([number]))
    return f"{head.source}: {head.path}"


def _name_near(spool: Spool, duplicate: NearDuplicate, alive: npt.NDArray[np.int64]) -> dict[str, Any]:
    return {
        "file": _name(spool, int(alive[duplicate.number])),
        "of": _name(spool, int(alive[duplicate.original])),
        "similarity": round(duplicate.similarity, 3),
    }


def _check_not_empty(selection: Selection) -> None:
    read, kept = selection.funnel.total("read").files, selection.funnel.total(KEPT).files
    if not read:
        raise EtudeError("the corpus is empty: its sources hold no file of code; check their `path` and `suffixes`")
    if not kept:
        reasons = selection.funnel.reasons()
        counts = [
            f"{selection.funnel.total(name).files} {name}" for name in reasons if selection.funnel.total(name).files
        ]
        raise EtudeError(f"the corpus is empty: of {read} files none was kept ({', '.join(counts)}); relax corpus.*")
    if not (selection.sides == SPLITS.index("train")).any():
        raise EtudeError("the corpus has nothing to train on: everything was held out; lower corpus.held_out")
