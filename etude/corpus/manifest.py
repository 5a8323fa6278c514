"""What a finished corpus holds and how it came about: settings, the funnel, tokenizer, shards.

`manifest.json` is written last; a corpus without it is not finished. Everything in it can be read by a person.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pydantic

from etude.core import durable
from etude.core.errors import EtudeError
from etude.core.recipe import first_problem
from etude.corpus.shards import Shard

FILE = "manifest.json"
SHARDS = "shards"
TOKENIZER = "tokenizer"
FORMAT = 1

EXACT, NEAR, CONTAMINATED, KEPT = "exact duplicate", "near-duplicate", "contaminated", "kept"
LAST = (EXACT, NEAR, CONTAMINATED)  # the outcomes that follow the filters, in order


@dataclass
class Count:
    files: int = 0
    bytes: int = 0

    def add(self, size: int, files: int = 1) -> None:
        self.files += files
        self.bytes += size


@dataclass
class Funnel:
    """What became of each file: how many were read, and how many ended in each outcome. Nothing is lost between."""

    read: dict[str, Count] = field(default_factory=dict)  # by source
    outcomes: dict[str, dict[str, Count]] = field(default_factory=dict)  # by source, then reason

    def add_read(self, source: str, size: int) -> None:
        self.read.setdefault(source, Count()).add(size)

    def add(self, source: str, outcome: str, size: int, files: int = 1) -> None:
        self.outcomes.setdefault(source, {}).setdefault(outcome, Count()).add(size, files)

    def total(self, outcome: str) -> Count:
        """Of all sources; of everything read when the outcome is `read`."""
        outcomes = ({"read": count} for count in self.read.values()) if outcome == "read" else self.outcomes.values()
        counts = [by_reason[outcome] for by_reason in outcomes if outcome in by_reason]
        return Count(sum(count.files for count in counts), sum(count.bytes for count in counts))

    def reasons(self) -> list[str]:
        """Every outcome but `kept`: filters by how many files they took, then duplicates and contamination."""
        found = {outcome for outcomes in self.outcomes.values() for outcome in outcomes} - {KEPT, *LAST}
        return [*sorted(found, key=lambda name: (-self.total(name).files, name)), *LAST]


@dataclass(frozen=True)
class Manifest:
    """A finished corpus."""

    plan: dict[str, Any]  # everything that the result depends on: settings of corpus, tokens, sources; the seed
    weights: dict[str, float]  # of each source in the mix
    funnel: Funnel
    stopped: list[str]  # sources that had more, where corpus.max_bytes ended the reading
    near_duplicates: list[dict[str, Any]]  # the first of them: which file, of which, how similar
    contaminated: list[dict[str, Any]]  # the first of them: which file, by which text, the shared words
    ignored_texts: list[str]  # texts of corpus.decontaminate with too few words to look for
    tokenizer: str  # fingerprint
    vocab_size: int
    dtype: str
    by_repository: bool  # whether whole repositories were held out
    shards: list[Shard]
    seconds: dict[str, float]  # by step
    format: int = FORMAT

    def tokens(self, split: str) -> int:
        return sum(shard.tokens for shard in self.shards if shard.split == split)

    def text_bytes(self, split: str) -> int:
        return sum(shard.text_bytes for shard in self.shards if shard.split == split)

    @property
    def fingerprint(self) -> str:
        """Names the content: equal for two corpora only when their ids are."""
        facts = [[shard.split, shard.source, shard.ids_hash, shard.offsets_hash] for shard in self.shards]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]

    def table(self) -> str:
        """The funnel as people read it."""
        read, kept = self.funnel.total("read"), self.funnel.total(KEPT)
        rows = [("read", read)]
        rows += [(f"- {name}", count) for name in self.funnel.reasons() if (count := self.funnel.total(name)).files]
        rows += [("kept", kept)]
        lines = [f"{'':<22}{'files':>9}{'bytes':>14}"]
        lines += [f"{name:<22}{count.files:>9,}{count.bytes:>14,}" for name, count in rows]
        for split in ("train", "held_out"):
            tokens, size = self.tokens(split), self.text_bytes(split)
            lines.append(f"{split:<22}{tokens:>9,} tokens, {size / max(tokens, 1):.2f} bytes each")
        for level in range(1, 1 + max((shard.level for shard in self.shards), default=0)):
            tokens = sum(shard.tokens for shard in self.shards if shard.split == "train" and shard.level >= level)
            lines.append(f"{f'- of level {level} on':<22}{tokens:>9,} tokens")
        lines += self._by_source() if len(self.funnel.read) > 1 else []
        lines.append("seconds: " + ", ".join(f"{step} {seconds:.1f}" for step, seconds in self.seconds.items()))
        return "\n".join(lines)

    def _by_source(self) -> list[str]:
        """What each source gave: files and bytes kept of those read, what took the most, and its tokens."""
        lines = []
        for name, read in self.funnel.read.items():
            outcomes = self.funnel.outcomes.get(name, {})
            kept = outcomes.get(KEPT, Count())
            tokens = sum(shard.tokens for shard in self.shards if shard.source == name)
            lost = sorted((-count.files, reason) for reason, count in outcomes.items() if reason != KEPT)
            most = f", most lost: {lost[0][1]} ({-lost[0][0]:,})" if lost else ""
            lines.append(
                f"{name:<22}{kept.files:>9,} of {read.files:,} files, {kept.bytes / 1e6:,.1f} of "
                f"{read.bytes / 1e6:,.1f} MB, {tokens:,} tokens{most}"
            )
        return lines

    def save(self, directory: Path) -> None:
        durable.write_whole(directory / FILE, json.dumps(dataclasses.asdict(self), indent=1))


def load_manifest(directory: Path) -> Manifest:
    """The manifest of a finished corpus."""
    path = directory / FILE
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        what = "is not finished" if directory.is_dir() else "does not exist"
        raise EtudeError(f"the corpus {directory} {what}: build it first, which continues what was begun") from None
    except (OSError, ValueError) as error:
        raise EtudeError(f"cannot read {path}: {error}; remove it and build the corpus again") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise EtudeError(f"{path} has another format than this version of Etude: build the corpus again")
    try:
        return pydantic.TypeAdapter(Manifest).validate_python(data)
    except pydantic.ValidationError as error:
        raise EtudeError(f"{path} is damaged ({first_problem(error)}): remove it and build the corpus again") from None
