"""Which documents become the corpus: read -> filter -> deduplicate -> decontaminate -> split.

Documents stream through once into chunks on disk; after that only their numbers are decided about. Every file
that is read ends in exactly one outcome of the funnel. Chunks, what was found out about each, and the finished
selection are kept, so a build that is killed does not read or screen them again. Knows no tokens.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
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
from etude.corpus.spool.files import Chosen, Spool, StoredRows
from etude.corpus.spool.reading import Reader
from etude.corpus.spool.screening import ALIVE, Screening
from etude.corpus.spool.workers import Workers
from etude.corpus.word_hashes import Hashes

FILE = "selection.json"
SIDES = "sides.npy"
LEVELS = "levels.npy"
SPLITS: tuple[Side, ...] = get_args(Side)
DROPPED = -1
LISTED = 200  # duplicates and contaminated files that are named; all are counted
REMEMBERED = 2_000_000  # shingles kept at hand while near-duplicates are compared: sixteen megabytes
SIGNATURES, DIGESTS = "signatures", "digests"
FILTERED = "filtered"
OUTCOMES = (KEPT, FILTERED, EXACT, NEAR, CONTAMINATED)


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
        outcomes = _screened(spool)
        outcomes[_find_copies(spool, outcomes == OUTCOMES.index(KEPT), directory)] = OUTCOMES.index(EXACT)
        hits = _sign(spool, screening, outcomes == OUTCOMES.index(KEPT), directory)
        near = _find_near(spool, settings, outcomes, directory)
        contaminated = [number for number in hits if OUTCOMES[outcomes[number]] == KEPT]
        outcomes[contaminated] = OUTCOMES.index(CONTAMINATED)
        _count(spool, reader.funnel, outcomes, sources)
        # After deduplication, so that no copy of a held-out file is trained on.
        sides = np.where(outcomes == OUTCOMES.index(KEPT), np.int8(0), np.int8(DROPPED))
        by_repository = _split(spool, sides, settings)
        selection = Selection(
            sides,
            reader.funnel,
            reader.stopped,
            near,
            [{"file": _name(spool, number), **hits[number]} for number in contaminated[:LISTED]],
            by_repository,
            _levels(spool, sides, settings.quality),
        )
    _check_not_empty(selection)
    selection.save(directory)
    return selection


def _screened(spool: Spool) -> npt.NDArray[np.int8]:
    """An index into OUTCOMES for each document: whether a filter took it."""
    outcomes = np.full(len(spool), OUTCOMES.index(KEPT), np.int8)
    for chunk, first in zip(spool.chunks, spool.first.tolist(), strict=False):
        for numbers in json.loads(chunk.file("reasons").read_text()).values():
            outcomes[np.array(numbers) + first] = OUTCOMES.index(FILTERED)
    return outcomes


def _find_copies(spool: Spool, alive: npt.NDArray[np.bool_], directory: Path) -> npt.NDArray[np.bool_]:
    spool.join("digests", directory / DIGESTS)
    with closing(StoredRows(directory / DIGESTS, 2, "uint64")) as digests:
        return find_copies(digests, alive)


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
    spool.join("signatures", directory / SIGNATURES)
    return hits


def _find_near(
    spool: Spool, settings: CorpusSettings, outcomes: npt.NDArray[np.int8], directory: Path
) -> list[dict[str, Any]]:
    """Notes near-duplicates among the documents that are still in; the first of them with their names."""
    if settings.near_threshold >= 1:
        return []

    alive = Chosen(spool, outcomes == OUTCOMES.index(KEPT))  # the rows of the signatures stand for these
    with (
        closing(StoredRows(directory / SIGNATURES, SIZE)) as signatures,
        progress.track("comparing near-duplicates", unit="files") as bar,
    ):
        remembered = Remembered()

        def shingles_of(row: int) -> Hashes:
            bar.advance()
            return remembered.get(row, lambda: shingles(spool.document(alive[row]).text))

        first: list[dict[str, Any]] = []
        for duplicate in near_duplicates(signatures, settings.near_threshold, shingles_of, directory):
            outcomes[alive[duplicate.number]] = OUTCOMES.index(NEAR)
            if len(first) < LISTED:
                first.append(_name_near(spool, duplicate, alive))
    return first


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


def _count(spool: Spool, funnel: Funnel, outcomes: npt.NDArray[np.int8], sources: Sequence[Source]) -> None:
    """Adds every document to its outcome."""
    for chunk, start, end in zip(spool.chunks, spool.first[:-1], spool.first[1:], strict=True):
        source = sources[chunk.facts["source"]].name
        sizes = np.fromfile(chunk.file("sizes"), np.int64)
        taken = {reason: np.array(numbers) for reason, numbers in json.loads(chunk.file("reasons").read_text()).items()}
        taken |= {
            outcome: np.flatnonzero(outcomes[start:end] == index)
            for index, outcome in enumerate(OUTCOMES)
            if outcome != FILTERED
        }
        for reason, numbers in taken.items():
            if len(numbers):
                funnel.add(source, reason, int(sizes[numbers].sum()), len(numbers))


def _split(spool: Spool, sides: npt.NDArray[np.int8], settings: CorpusSettings) -> bool:
    """Sets the side of every document that stays; whether whole repositories could be held out."""
    staying = Chosen(spool, sides != DROPPED)
    # Of a few repositories none can be spared: then single files are held out.
    repositories: set[str] = set()
    for head in spool.heads(staying):
        repositories.add(head.repo)
        if len(repositories) >= FEWEST_REPOSITORIES:
            break
    by_repository = len(repositories) >= FEWEST_REPOSITORIES
    for number, head in zip(staying, spool.heads(staying), strict=True):
        sides[number] = SPLITS.index(side_of(head.repo, head.path, settings.held_out, by_repository))
    return by_repository


def _levels(spool: Spool, sides: npt.NDArray[np.int8], settings: QualitySettings) -> npt.NDArray[np.int8]:
    """The level of quality of every document that stays: the lower one of rules and classifier where there are both."""
    levels = np.zeros(len(spool), np.int8)
    if settings.labels or settings.rules:
        classifier = train_classifier(read_labels(Path(settings.labels))) if settings.labels else None
        staying = Chosen(spool, sides != DROPPED)
        with progress.track("scoring quality", len(staying), unit="files") as bar:
            for number in staying:
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


def _name_near(spool: Spool, duplicate: NearDuplicate, alive: Chosen) -> dict[str, Any]:
    return {
        "file": _name(spool, alive[duplicate.number]),
        "of": _name(spool, alive[duplicate.original]),
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
