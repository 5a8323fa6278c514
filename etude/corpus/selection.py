"""Which documents become the corpus: read -> filter -> deduplicate -> decontaminate -> split.

Documents stream through once into a spool on disk; after that only their numbers are decided about. Every file
that is read ends in exactly one outcome of the funnel. The finished selection is kept, so a build that is killed
later does not read everything again. Knows no tokens.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pydantic

from etude.core import durable, progress
from etude.core.errors import EtudeError
from etude.core.settings import CorpusSettings, QualitySettings
from etude.corpus.decontaminate import Forbidden
from etude.corpus.dedupe import SIZE, ExactDuplicates, MinHash, NearDuplicate, find_near_duplicates, shingles
from etude.corpus.document import Document, Rejected, Source
from etude.corpus.filters import find_problem
from etude.corpus.manifest import CONTAMINATED, EXACT, KEPT, NEAR, Funnel
from etude.corpus.quality import read_labels, train_classifier
from etude.corpus.split import FEWEST_REPOSITORIES, Side, side_of
from etude.corpus.spool import Spool, SpoolWriter

FILE = "selection.json"
SIDES = "sides.npy"
LEVELS = "levels.npy"
SPLITS: tuple[Side, ...] = get_args(Side)
DROPPED = -1
LISTED = 200  # duplicates and contaminated files that are named; all are counted
REMEMBERED = 256  # sets of shingles kept at hand while near-duplicates are compared


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
    funnel = Funnel()
    with SpoolWriter(directory) as writer:
        stopped = _gather(sources, settings, funnel, writer)
    with closing(Spool(directory)) as spool:
        sides = np.zeros(len(spool), np.int8)
        near = _find_near(spool, settings)
        for duplicate in near:
            sides[duplicate.number] = DROPPED
        hits = _find_contaminated(spool, np.flatnonzero(sides != DROPPED).tolist(), forbidden)
        for number, _ in hits:
            sides[number] = DROPPED
        # After deduplication, so that no copy of a held-out file is trained on.
        by_repository = _split(spool, sides, settings)
        near_numbers, hit_numbers = {duplicate.number for duplicate in near}, {number for number, _ in hits}
        for number, head in enumerate(spool.heads(range(len(spool)))):
            outcome = NEAR if number in near_numbers else CONTAMINATED if number in hit_numbers else KEPT
            funnel.add(head.source, outcome, head.size)
        selection = Selection(
            sides,
            funnel,
            stopped,
            [_name_near(spool, duplicate) for duplicate in near[:LISTED]],
            [{"file": _name(spool, number), **hit} for number, hit in hits[:LISTED]],
            by_repository,
            _levels(spool, sides, settings.quality),
        )
    _check_not_empty(selection)
    selection.save(directory)
    return selection


def _gather(sources: Sequence[Source], settings: CorpusSettings, funnel: Funnel, writer: SpoolWriter) -> list[str]:
    """Read, filter, drop exact copies; what is left goes into the spool. Returns the sources that had more."""
    stopped: list[str] = []
    exact, minhash = ExactDuplicates(), MinHash()
    left: float = settings.max_bytes or float("inf")
    with progress.track("reading code", unit="files") as bar:
        for number, source in enumerate(sources):
            weights = [other.settings.weight for other in sources[number:]]
            # By weight, or the first source would take all of corpus.max_bytes.
            share = left * weights[0] / sum(weights)  # what a source leaves over goes to those after it
            taken = 0
            for found in source.documents():
                bar.advance()
                if isinstance(found, Rejected):
                    funnel.add_read(source.name, found.size)
                    funnel.add(source.name, found.reason, found.size)
                    continue
                size = _size(found, source.name)
                if taken + size > share:
                    stopped.append(source.name)
                    break
                taken += size
                funnel.add_read(source.name, size)
                if problem := _problem(found, settings, exact):
                    funnel.add(source.name, problem, size)
                else:
                    signature = minhash.sign(shingles(found.text)) if settings.near_threshold < 1 else None
                    writer.append(found, number, signature)
            left -= taken
    return stopped


def _size(document: Document, source: str) -> int:
    if not isinstance(document, Document) or document.source != source:
        raise EtudeError(f"corpus source {source} must yield Documents with its own name as their source")
    try:
        return len(document.text.encode())
    except UnicodeEncodeError:
        raise EtudeError(f"corpus source {source} gave {document.path} as text that is not Unicode") from None


def _problem(document: Document, settings: CorpusSettings, exact: ExactDuplicates) -> str | None:
    if document.license not in settings.licenses:
        return f"licence {document.license}"
    return find_problem(document, settings.parse) or (None if exact.is_new(document.text) else EXACT)


def _find_near(spool: Spool, settings: CorpusSettings) -> list[NearDuplicate]:
    if settings.near_threshold >= 1:
        return []

    with progress.track("comparing near-duplicates", unit="files") as bar:

        @lru_cache(maxsize=REMEMBERED)
        def shingles_of(number: int) -> npt.NDArray[np.uint64]:
            bar.advance()
            return shingles(spool.document(number).text)

        return find_near_duplicates(spool.signatures(SIZE), settings.near_threshold, shingles_of)


def _find_contaminated(spool: Spool, numbers: Sequence[int], forbidden: Forbidden) -> list[tuple[int, dict[str, str]]]:
    if not forbidden.names:
        return []
    hits = []
    with progress.track("looking for forbidden texts", len(numbers), unit="files") as bar:
        for number in numbers:
            if hit := forbidden.find(spool.document(number).text):
                hits.append((number, asdict(hit)))
            bar.advance()
    return hits


def _split(spool: Spool, sides: npt.NDArray[np.int8], settings: CorpusSettings) -> bool:
    """Sets the side of every document that stays; whether whole repositories could be held out."""
    staying = np.flatnonzero(sides != DROPPED).tolist()
    # Of a few repositories none can be spared: then single files are held out.
    by_repository = len({head.repo for head in spool.heads(staying)}) >= FEWEST_REPOSITORIES
    for number, head in zip(staying, spool.heads(staying), strict=True):
        sides[number] = SPLITS.index(side_of(head.repo, head.path, settings.held_out, by_repository))
    return by_repository


def _levels(spool: Spool, sides: npt.NDArray[np.int8], settings: QualitySettings) -> npt.NDArray[np.int8]:
    """The level of quality of every document that stays; 0 where nothing was labelled."""
    levels = np.zeros(len(spool), np.int8)
    if settings.labels:
        classifier = train_classifier(read_labels(Path(settings.labels)))
        staying = np.flatnonzero(sides != DROPPED).tolist()
        with progress.track("scoring quality", len(staying), unit="files") as bar:
            for number in staying:
                score = classifier.score(spool.document(number).text)
                levels[number] = sum(score >= least for least in settings.levels)
                bar.advance()
    return levels


def _name(spool: Spool, number: int) -> str:
    head = next(spool.heads([number]))
    return f"{head.source}: {head.path}"


def _name_near(spool: Spool, duplicate: NearDuplicate) -> dict[str, Any]:
    return {
        "file": _name(spool, duplicate.number),
        "of": _name(spool, duplicate.original),
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
