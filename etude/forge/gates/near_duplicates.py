"""Which tasks are nearly the same, and which of them the corpus has already seen.

Two tasks are near duplicates when their solutions put nearly the same code back at the same places, or when
instruction and tests are nearly the same. A pair over the border between training and evaluation is worse than a pair
on one side, and is marked. A document of a corpus that shares a run of words with a task's solution, instruction or
hidden tests has seen the task. Built from the corpus's own pieces for duplicates and decontamination; changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from etude.core.errors import EtudeError
from etude.core.progress import track
from etude.corpus.decontaminate import Forbidden
from etude.corpus.dedupe import MinHash, Signature, find_near_duplicates, jaccard, shingles
from etude.corpus.manifest import SHARDS, TOKENIZER, load_manifest
from etude.corpus.shards import OpenShard
from etude.corpus.word_hashes import Hashes, hash_words
from etude.forge.leaks.deleted_code import added_lines
from etude.tasks.format.task import Task, given_tasks
from etude.tasks.kinds.mutants import FOLDER as MUTANTS
from etude.tasks.kinds.table import kind_of
from etude.tokens.text_tokenizer import open_tokenizer

CHANGE: Final = 0.7  # of what two solutions put back
WORDS: Final = 0.9  # of two instructions, where the tests are as much the same
DOUBT: Final = 0.15  # a signature's estimate this far below is not worth the true comparison
NGRAM: Final = 13  # words in a row that a document and a task must not share
MOST_HITS: Final = 200  # documents named in a report; all are counted

By = Literal["change", "words and tests"]


@dataclass(frozen=True)
class NearDuplicate:
    """A task that says nearly the same as an earlier one, which stays."""

    task: str
    like: str
    similarity: float
    by: By
    crosses: bool = False  # one is for training, the other for evaluation


@dataclass(frozen=True)
class Seen:
    """A document of a corpus that has seen a task."""

    document: str
    task: str
    part: str  # solution, instruction, tests
    split: str  # the task's
    words: str  # what they share


@dataclass
class NearDuplicateReport:
    tasks: int = 0
    against: int = 0  # tasks of benchmarks
    near_duplicates: list[NearDuplicate] = field(default_factory=list)
    documents: int = 0  # of the corpus
    seen: list[Seen] = field(default_factory=list)
    contaminated: int = 0  # documents, those that are not named included
    unnamed: list[str] = field(default_factory=list)  # texts with too few words to look for
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        drop = sorted({each.task for each in self.near_duplicates})
        facts = asdict(self)
        # `twins` is how scripts know the list from before it had its name.
        return {"ok": not drop and not self.contaminated, **facts, "twins": facts["near_duplicates"], "drop": drop}


@dataclass(frozen=True)
class Sketch:
    """A task as sets of numbers."""

    name: str
    side: str  # what it is for: training or evaluation
    change: Hashes
    words: Hashes
    tests: Hashes


def sketch(task: Task, side: str = "") -> Sketch:
    facts = task.facts
    tests = np.unique(hash_words([name.encode() for name in (*facts.fail_to_pass, *facts.held_out)]))
    return Sketch(task.name, side or _side(task), shingles(change_text(task)), shingles(task.instruction), tests)


def change_text(task: Task) -> str:
    """What the reference solution puts back, file by file, with where; the same for every wording of a task.

    Of a question that is what is asked, and the answer.
    """
    facts = task.facts
    # The names as well: two deletions of short functions can have equal bodies.
    parts: list[str] = [" ".join(sorted(facts.deleted))]
    if accepted := kind_of(task).accepted_answers(task):
        # Guesses are wrong answers for the gates to try; they say nothing about what is asked.
        asked = [words for name, words in facts.parameters.items() if name != "guesses"]
        parts += [*accepted, *(word for words in asked for word in words)]
    for path in task.solution:
        before = task.workspace.text(path) if path in task.workspace else ""
        parts.append(f"{path}\n{added_lines(before, task.solution.text(path))}")
    return "\n".join(parts)


class KnownTasks:
    """The tasks so far, to ask of each new one whether it is another."""

    def __init__(self) -> None:
        self._hash = MinHash()
        self._sketches: list[Sketch] = []
        self._changes: list[Signature] = []
        self._words: list[Signature] = []
        self._answers: dict[frozenset[str], str] = {}

    def __len__(self) -> int:
        return len(self._sketches)

    def add(self, task: Task) -> None:
        made = sketch(task)
        if _answer(task):
            self._answers.setdefault(_answer(task), task.name)
        self._sketches.append(made)
        self._changes.append(self._hash.sign(made.change))
        self._words.append(self._hash.sign(made.words))

    def answered(self, task: Task) -> str | None:
        """The name of a known task that has the same answer: who knows that one would only have to say it again."""
        return self._answers.get(_answer(task))

    def near_duplicate(self, task: Task) -> str | None:
        """The name of a known task that this one is nearly the same as: what the gates ask."""
        if not self._sketches:
            return None
        made = sketch(task)
        for signatures, own, least in ((self._changes, made.change, CHANGE), (self._words, made.words, WORDS)):
            # Signatures first: comparing sets of every pair would grow with the square of the tasks.
            estimates = (np.stack(signatures) == self._hash.sign(own)).mean(axis=1)
            for number in np.flatnonzero(estimates >= least - DOUBT).tolist():
                if (found := _compare(made, self._sketches[number])) is not None:
                    return found.like
        return None


def _answer(task: Task) -> frozenset[str]:
    return frozenset(kind_of(task).accepted_answers(task))


def compare_tasks(
    tasks: Sequence[Task], against: Sequence[Task] = (), corpus: Path | None = None, ngram: int = NGRAM
) -> NearDuplicateReport:
    """The report over tasks, the tasks of benchmarks, and a corpus. Of two near duplicates the first stays."""
    started = time.monotonic()
    report = NearDuplicateReport(len(tasks), len(against))
    sketches = [sketch(task, "evaluation") for task in against] + [sketch(task) for task in tasks]
    report.near_duplicates = _near_duplicates(sketches, kept=len(against))
    if corpus is not None:
        _search_corpus(corpus, [*tasks, *against], ngram, report)
    report.seconds = round(time.monotonic() - started, 3)
    return report


def _near_duplicates(sketches: Sequence[Sketch], kept: int) -> list[NearDuplicate]:
    """Near-duplicates by signatures; those of the first `kept`, which are not ours to drop, are left out."""
    if len(sketches) < 2:
        return []
    hashing = MinHash()
    found: dict[int, NearDuplicate] = {}
    for part, threshold in (("change", CHANGE), ("words", WORDS)):
        sets: list[Hashes] = [getattr(each, part) for each in sketches]
        signatures = np.stack([hashing.sign(each) for each in sets])
        for near in find_near_duplicates(signatures, threshold, sets.__getitem__):
            pair = _compare(sketches[near.number], sketches[near.original])
            # Tasks of a benchmark are only compared with, never named as duplicates.
            if pair is not None and near.number >= kept:
                found.setdefault(near.number, pair)
    return [found[number] for number in sorted(found)]


def _compare(one: Sketch, other: Sketch) -> NearDuplicate | None:
    crosses = one.side != other.side
    change = jaccard(one.change, other.change)
    if change >= CHANGE:
        return NearDuplicate(one.name, other.name, round(change, 3), "change", crosses)
    words = jaccard(one.words, other.words)
    if words >= WORDS and len(one.tests) and jaccard(one.tests, other.tests) >= WORDS:
        return NearDuplicate(one.name, other.name, round(words, 3), "words and tests", crosses)
    return None


def _side(task: Task) -> str:
    return "evaluation" if task.facts.split in ("held_out", "unseen") else "training"


def _search_corpus(corpus: Path, tasks: Sequence[Task], ngram: int, report: NearDuplicateReport) -> None:
    texts = [(f"{number} {part}", text) for number, task in enumerate(tasks) for part, text in task_texts(task)]
    forbidden = Forbidden(texts, ngram)
    report.unnamed = [f"{tasks[int(name.split()[0])].name}: {name.split()[1]}" for name in forbidden.ignored]
    for name, text in corpus_documents(corpus):
        report.documents += 1
        hit = forbidden.find(text)
        if hit is None:
            continue
        report.contaminated += 1
        number, part = hit.text.split()
        task = tasks[int(number)]
        if len(report.seen) < MOST_HITS:
            report.seen.append(Seen(name, task.name, part, task.facts.split or "", hit.words[:200]))


def task_texts(task: Task) -> Iterator[tuple[str, str]]:
    """(part, text) of what nobody may have learnt by heart: solution, instruction, and tests that are hidden."""
    solution = [
        added_lines(task.workspace.text(path) if path in task.workspace else "", task.solution.text(path))
        for path in task.solution
    ]
    hidden = [
        task.tests.text(path)
        for path in task.tests
        if path.endswith(".py")
        and not path.startswith(f"{MUTANTS}/")
        and not any(task.workspace.get(place) == task.tests[path] for place in _places(path))
    ]
    for part, pieces in (("solution", solution), ("instruction", [task.instruction]), ("tests", hidden)):
        text = "\n".join(pieces)
        if text.strip():
            yield part, text


def _places(path: str) -> tuple[str, str]:
    """Where a test of the grader lies in the workspace, when it is shown there."""
    return path, f"tests/{path}"


def corpus_documents(directory: Path) -> Iterator[tuple[str, str]]:
    """(name, text) of every document to be trained on, decoded; a run's folder stands for the corpus in it."""
    folder = directory if (directory / SHARDS).is_dir() else directory / "corpus"
    manifest = load_manifest(folder)
    tokenizer = open_tokenizer(folder / TOKENIZER)
    shards = [shard for shard in manifest.shards if shard.split == "train"]
    with track("reading the corpus", total=sum(shard.documents for shard in shards), unit="documents") as bar:
        for shard in shards:
            opened = OpenShard(folder / SHARDS, shard, manifest.dtype)
            for number in range(shard.documents):
                start, end = int(opened.offsets[number]), int(opened.offsets[number + 1])
                yield f"{shard.source}/{shard.name}#{number}", tokenizer.decode(opened.read(start, end).tolist())
                bar.advance(1)


def load_tasks(directories: Sequence[Path]) -> list[Task]:
    """Every task directory given or below a folder given."""
    found = [Task.load(place) for place in given_tasks(directories)]
    if not found:
        raise EtudeError("there is no task to compare: give task directories, or folders of them")
    return found
