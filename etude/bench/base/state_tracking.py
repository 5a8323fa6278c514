"""State tracking: the first version of a file and its diffs in order; what does the file say now?

The answer is sampled greedily, and its distance to the true file counted in characters: whether it is right to the last
one would be too brittle a measure. The same file forced on the model, in bits per byte, moves long before its samples
do. Each case stands beside the distance of an answer that ignores every diff.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import fmean

from etude.bench.base.edit_distance import edit_distance
from etude.bench.base.git_history import History, diff
from etude.bench.base.model_under_test import Advance, ModelUnderTest, ScoredText
from etude.core.errors import EtudeError

END = "=== end\n"
MISFITS = 200  # in a row, before a repository is taken to hold none that fits
SLACK = 16  # tokens that an answer may be longer than the true one, beside a quarter


@dataclass(frozen=True)
class Case:
    """One question, cut to what the model can read."""

    history: History
    prompt: tuple[int, ...]
    answer: tuple[int, ...]  # the true file and its end

    @property
    def room(self) -> int:
        return _room(len(self.answer))


@dataclass(frozen=True)
class TrackedFile:
    path: str
    changes: int
    characters: int  # of the true file
    distance: int  # characters, of what was sampled
    untouched: int  # characters, of the first version: the distance of an answer that ignores every diff
    bits_per_byte: float


@dataclass(frozen=True)
class Tracking:
    """Means over files."""

    distance: float  # characters
    untouched: float  # characters
    exact: float  # share of files that are right to the last character
    bits_per_byte: float  # of all true files together
    changes: float  # diffs in a history
    files: list[TrackedFile]


def measure_tracking(tested: ModelUnderTest, cases: list[Case], advance: Advance = lambda cases: None) -> Tracking:
    forced = tested.score([ScoredText((*case.prompt, *case.answer), len(case.prompt)) for case in cases])
    answers = tested.greedy(
        [case.prompt for case in cases], [case.room for case in cases], until=END.rstrip("\n"), advance=advance
    )
    files, total, size = [], 0.0, 0
    for case, scores, answer in zip(cases, forced, answers, strict=True):
        final = case.history.versions[-1]
        text = tested.text.decode(answer).partition(END.rstrip("\n"))[0]
        bits = -float(scores.sum()) / math.log(2)
        answer_bytes = len((final + END).encode())
        files.append(
            TrackedFile(
                path=case.history.path,
                changes=case.history.changes,
                characters=len(final),
                distance=edit_distance(text, final),
                untouched=edit_distance(case.history.versions[0], final),
                bits_per_byte=bits / answer_bytes,
            )
        )
        total += bits
        size += answer_bytes
    return Tracking(
        distance=fmean(file.distance for file in files),
        untouched=fmean(file.untouched for file in files),
        exact=fmean(file.distance == 0 for file in files),
        bits_per_byte=total / size,
        changes=fmean(file.changes for file in files),
        files=files,
    )


def choose_cases(tested: ModelUnderTest, histories: Iterable[History], count: int, tokens: int) -> list[Case]:
    """The first `count` histories that can be made to fit."""
    tokens = min(tokens, tested.positions)
    cases = list(_cases(tested, histories, count, tokens))
    if not cases:
        raise EtudeError(f"no history of at least two changes fits into {tokens} tokens: raise base.history_tokens")
    return cases


def _cases(tested: ModelUnderTest, histories: Iterable[History], count: int, tokens: int) -> Iterator[Case]:
    misfits = 0
    for history in histories:
        if (case := fit(tested, history, tokens)) is not None:
            count, misfits = count - 1, 0
            yield case
        else:
            misfits += 1
        if not count or misfits == MISFITS:
            return


def fit(tested: ModelUnderTest, history: History, tokens: int) -> Case | None:
    """The longest end of a history whose prompt and answer stay within `tokens`; at least two changes, or None."""
    answer = tuple(tested.text.encode(history.versions[-1] + END))
    for start in range(max(0, history.changes - 1)):
        late = History(history.path, history.versions[start:])
        prompt = tuple(tested.text.encode(write_prompt(late)))
        if len(prompt) + _room(len(answer)) <= tokens:
            return Case(late, prompt, answer)
    return None


def write_prompt(history: History) -> str:
    """The first version shows how a version is written, so that nothing has to be explained."""
    parts = [f"=== {history.path}, version 0\n{history.versions[0]}{END}"]
    for number, (old, new) in enumerate(zip(history.versions, history.versions[1:], strict=False), start=1):
        parts.append(f"=== {history.path}, change {number}\n{diff(old, new)}{END}")
    parts.append(f"=== {history.path}, version {history.changes}\n")
    return "".join(parts)


def _room(answer: int) -> int:
    return answer + answer // 4 + SLACK
