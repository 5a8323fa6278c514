"""The turns of a rollout under way, in a file, so that a rollout whose process was killed goes on from its last turn.

A policy is wrapped (`RecordedPolicy`): each sample is appended to the rollout's file before the harness acts on it.
When the rollout begins again, in whatever process and in a fresh sandbox, it asks the same prompts with the same seeds;
those are answered from the file, and the tool calls in between run once more, which restores the sandbox. Where a
result differs from what it was, the prompt behind it differs too, and from there on the policy itself is asked: nothing
that was sampled is ever put behind an observation that it did not follow. Parts of a sample that was not finished are
kept in the same way, and continued. Knows samples and files; no task, no sandbox and no journal.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import re
import struct
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, replace
from itertools import chain, groupby
from pathlib import Path
from typing import BinaryIO

import numpy as np

from etude.core.errors import EtudeError
from etude.core.frame_calls import ConnectionLost
from etude.core.policy import Context, Sample, Sampling, Version
from etude.core.transport import PREFIX_BYTES, Frame, read_frame, read_prefix, write_frame
from etude.serve.messages import read_sample_frame, write_sample_frame

ENDING = ".turns"
NAME = re.compile(r"\d{1,12}-\d{1,6}")  # of a rollout: number of its group, place in it
# A part of an answer is written every few tokens, so not as a frame, whose JSON takes most of the time.
PART = b"ETP1"
_PART_HEAD = struct.Struct("<4sBIIII")  # bytes of the key, tokens before it, its own, runs of versions, cached tokens
AGAIN = 0.1  # seconds between two tries of a sample whose connection was lost


class TurnRecord:
    """The file of one rollout. Written without a sync: it survives the death of a process, not that of the machine."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.turns: dict[str, Sample] = {}
        self.parts: dict[str, Sample] = {}  # of samples that were not finished
        self.kept_tokens = 0  # that were not sampled again
        self._file: BinaryIO | None = None
        self._broken = False  # it could not be written once: what would follow has no beginning
        with contextlib.suppress(FileNotFoundError):
            self._read(path.read_bytes())

    @property
    def tokens(self) -> int:
        """Sampled tokens that it holds."""
        return sum(len(each.ids or ()) for each in (*self.turns.values(), *self.parts.values()))

    @property
    def versions(self) -> set[Version]:
        """Of the weights that sampled them."""
        return {version for each in (*self.turns.values(), *self.parts.values()) for version in each.versions or ()}

    def add(self, key: str, sample: Sample) -> None:
        """A finished turn."""
        self.turns[key] = sample
        self.parts.pop(key, None)
        self._append(key, sample, whole=True)

    def add_part(self, key: str, sample: Sample) -> None:
        """Further tokens of a turn under way."""
        at = len(self.parts[key].ids or ()) if key in self.parts else 0
        self._join(key, sample, at)
        self._append(key, sample, whole=False, at=at)

    def cut_part(self, key: str, tokens: int) -> Sample | None:
        """The first tokens of a turn under way, from which on it is sampled again."""
        if tokens <= 0:
            self.parts.pop(key, None)
            return None
        self.parts[key] = _cut(self.parts[key], tokens)
        return self.parts[key]

    def _join(self, key: str, sample: Sample, at: int) -> None:
        if at > (len(self.parts[key].ids or ()) if key in self.parts else 0):
            raise ValueError("tokens of a turn whose beginning is not here")
        before = self.cut_part(key, at) if key in self.parts else None
        self.parts[key] = sample if before is None else _joined(before, sample)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def remove(self) -> None:
        """The rollout is finished, or will not be tried again."""
        self.close()
        self.path.unlink(missing_ok=True)

    def _append(self, key: str, sample: Sample, *, whole: bool, at: int = 0) -> None:
        if self._broken:
            return
        if whole or sample.text or sample.late or sample.experts is not None:
            frame = write_sample_frame(sample)
            facts = {"key": key, "whole": whole, "at": at, "late": sample.late, "text": sample.text}
            data = write_frame(Frame(frame.header | facts, frame.arrays))
        else:
            data = _write_part(key, sample, at)
        try:
            if self._file is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self.path.open("ab", buffering=0)
            # A disk that is nearly full takes a part of it and says so, without an error.
            self._broken = self._file.write(data) != len(data)
        except OSError:
            self._broken = True
        if self._broken:
            # A full disk costs a resume and not the rollout: half a frame must not be followed by another.
            self.remove()

    def _read(self, data: bytes) -> None:
        at = 0
        # The last frame may be half written, or the file damaged: what stands before that counts.
        with contextlib.suppress(EtudeError, KeyError, ValueError):
            while len(data) - at >= PREFIX_BYTES:
                if data[at : at + len(PART)] == PART:
                    key, sample, before, end = _read_part(data, at)
                    if end > len(data):
                        break
                    self._join(key, sample, before)
                    at = end
                    continue
                header, body = read_prefix(data[at : at + PREFIX_BYTES])
                start, middle = at + PREFIX_BYTES, at + PREFIX_BYTES + header
                if middle + body > len(data):
                    break
                frame = read_frame(data[start:middle], data[middle : middle + body])
                facts = frame.header
                sample = replace(read_sample_frame(frame), late=bool(facts["late"]), text=str(facts["text"]))
                key = str(facts["key"])
                if facts["whole"]:
                    self.turns[key] = sample
                    self.parts.pop(key, None)
                else:
                    self._join(key, sample, int(facts["at"]))
                at = middle + body
        if at < len(data):
            with contextlib.suppress(OSError), self.path.open("r+b") as file:
                file.truncate(at)


Asks = Callable[[Context, Sampling, Callable[[Sample], None]], Awaitable[Sample]]


@dataclass
class RecordedPolicy:
    """A `Policy` whose samples are recorded, and answered from the record where it has them.

    `ask` asks the policy itself, and tells of parts of a sample as they come. Where it loses its connection, the rest
    is asked for again for `patience` seconds.
    """

    ask: Asks
    record: TurnRecord
    patience: float = 0.0

    async def sample(self, context: Context, sampling: Sampling) -> Sample:
        key = turn_key(context, sampling)
        if key in self.record.turns:
            found = self.record.turns[key]
            self.record.kept_tokens += len(found.ids or ())
            return found
        waited = 0.0
        while True:
            try:
                sample = await self._rest(key, context, sampling)
                break
            except ConnectionLost:
                if waited >= self.patience:
                    raise
            waited += AGAIN
            await asyncio.sleep(AGAIN)
        if sample.stop != "abort":
            self.record.add(key, sample)
        return sample

    async def _rest(self, key: str, context: Context, sampling: Sampling) -> Sample:
        """A sample, from its first token or from those on that the record has."""
        before = self._part(key, sampling)
        if before is None:
            return await self.ask(context, sampling, lambda part: self.record.add_part(key, part))
        ids = before.ids or ()
        # The engine draws token i from (seed, i): without a seed of its own the rest would be drawn with the numbers
        # of the beginning.
        seed = random.Random(f"{sampling.seed}/{len(ids)}").getrandbits(31)
        rest = replace(sampling, max_tokens=sampling.max_tokens - len(ids), seed=seed)
        longer = replace(context, ids=(*(context.ids or ()), *ids))
        more = await self.ask(longer, rest, lambda part: self.record.add_part(key, part))
        self.record.kept_tokens += len(ids)
        return replace(_joined(before, more), stop=more.stop, experts=more.experts, late=more.late)

    def _part(self, key: str, sampling: Sampling) -> Sample | None:
        """What a sample that was not finished can be continued from."""
        part = self.record.parts.get(key)
        if part is None:
            return None
        ids = part.ids or ()
        ends = (at for at, token in enumerate(ids) if token in sampling.stop_ids)
        # The last token is always sampled by the continuation, which knows why it stopped.
        return self.record.cut_part(key, min(next(ends, len(ids)), sampling.max_tokens - 1))


class TurnRecords:
    """The records of a run's rollouts under way, by name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, name: str) -> TurnRecord:
        return TurnRecord(self.folder / f"{name}{ENDING}")

    def remove(self, name: str) -> None:
        (self.folder / f"{name}{ENDING}").unlink(missing_ok=True)

    def names(self) -> set[str]:
        if not self.folder.is_dir():
            return set()
        found = {path.name.removesuffix(ENDING) for path in self.folder.glob(f"*{ENDING}") if path.is_file()}
        return {name for name in found if NAME.fullmatch(name)}  # anything else is somebody's, and left alone

    @property
    def newest(self) -> float:
        """When a turn was written last, by the clock of the folder; 0 where there is none."""
        times = [0.0]
        for path in self.folder.glob(f"*{ENDING}"):
            with contextlib.suppress(FileNotFoundError):  # finished meanwhile
                times.append(path.stat().st_mtime)
        return max(times)

    def keep_only(self, names: Collection[str]) -> None:
        """Removes those of rollouts that are not under way any more."""
        for name in self.names() - set(names):
            self.remove(name)


def turn_key(context: Context, sampling: Sampling) -> str:
    """Names a turn by its prompt, its seed and its longest length; by its messages where the policy speaks text.

    Two sub-agents of one turn may be asked the same with the same seed, the second with less room left.
    """
    prompt = repr(context.messages).encode() if context.ids is None else np.array(context.ids, np.int32).tobytes()
    return hashlib.blake2b(prompt + f"/{sampling.seed}/{sampling.max_tokens}".encode(), digest_size=16).hexdigest()


def _joined(first: Sample, second: Sample) -> Sample:
    return replace(
        second,
        text=first.text + second.text,
        ids=(*(first.ids or ()), *(second.ids or ())),
        logprobs=(*(first.logprobs or ()), *(second.logprobs or ())),
        versions=(*(first.versions or ()), *(second.versions or ())),
        cached_tokens=first.cached_tokens,
    )


def _write_part(key: str, sample: Sample, at: int) -> bytes:
    ids, logprobs, versions = sample.ids or (), sample.logprobs or (), sample.versions or ()
    runs = [(version.lineage, version.step, len(list(run))) for version, run in groupby(versions)]
    name = key.encode()
    return b"".join(
        (
            _PART_HEAD.pack(PART, len(name), at, len(ids), len(runs), sample.cached_tokens),
            name,
            struct.pack(f"<{len(ids)}i{len(ids)}d{3 * len(runs)}i", *ids, *logprobs, *chain.from_iterable(runs)),
        )
    )


def _read_part(data: bytes, start: int) -> tuple[str, Sample, int, int]:
    """The part that begins at `start`: of which turn, what, behind how many tokens, and where it ends.

    Where that lies past the data's end, it is only half there and the sample is empty.
    """
    if start + _PART_HEAD.size > len(data):
        return "", Sample("", "abort", ()), 0, len(data) + 1
    _, name, at, count, runs, cached = _PART_HEAD.unpack_from(data, start)
    first = start + _PART_HEAD.size + name
    numbers = struct.Struct(f"<{count}i{count}d{3 * runs}i")
    end = first + numbers.size
    if end > len(data):
        return "", Sample("", "abort", ()), 0, end
    found = numbers.unpack_from(data, first)
    steps = [found[2 * count + 3 * i :][:3] for i in range(runs)]
    versions = tuple(Version(lineage, step) for lineage, step, times in steps for _ in range(times))
    if len(versions) != count:
        raise ValueError("tokens and versions of a part differ in number")
    key = data[start + _PART_HEAD.size : first].decode()
    return key, Sample("", "abort", found[:count], found[count : 2 * count], versions, cached), at, end


def _cut(sample: Sample, tokens: int) -> Sample:
    ids, logprobs, versions = sample.ids or (), sample.logprobs or (), sample.versions or ()
    return replace(sample, ids=ids[:tokens], logprobs=logprobs[:tokens], versions=versions[:tokens])
