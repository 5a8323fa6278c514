"""Fresh knowledge: questions about libraries as they are now, each with a date, a true answer and wrong ones.

A base model follows no instruction, so it is not asked to choose: every answer is scored as the continuation of the
question, and the likeliest for its length is the model's. Chance is one in so many answers. `fresh_questions.py` makes
such files from traces.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from statistics import fmean

import numpy as np
import pydantic

from etude.bench.base.model_under_test import Advance, ModelUnderTest, ScoredText
from etude.core.errors import EtudeError
from etude.core.recipe import first_problem

LARGEST = 64 << 20  # bytes of a file of questions
LONGEST = 4000  # characters of a question


class Question(pydantic.BaseModel, extra="forbid", strict=True):
    """One line of a file of questions."""

    question: str = pydantic.Field(min_length=1, max_length=LONGEST)
    answer: str = pydantic.Field(min_length=1, max_length=200)
    wrong: list[str] = pydantic.Field(min_length=1, max_length=16)
    source: str = pydantic.Field(max_length=500)  # where it can be looked up
    date: str = pydantic.Field(pattern=r"^\d{4}-\d{2}-\d{2}$")  # when that was read
    validated: bool = False  # somebody who had the source, and not the answer, gave the same one

    @property
    def answers(self) -> list[str]:
        """The true one first."""
        return [self.answer, *(wrong for wrong in self.wrong if wrong != self.answer)]


@dataclass(frozen=True)
class FreshKnowledge:
    accuracy: float  # share of questions whose true answer is the likeliest
    chance: float
    probability: float  # of the true answer among all, mean
    questions: int
    first: str  # date of the oldest question
    last: str


def read_questions(path: Path, since: str = "") -> list[Question]:
    """The questions of a JSONL file, those of a date from `since` on."""
    if not path.is_file():
        raise EtudeError(f"there is no file of questions at {path}; `etude bench fresh` makes one from saved rollouts")
    if path.stat().st_size > LARGEST:
        raise EtudeError(f"{path} has more than {LARGEST >> 20} MB; that is no file of questions")
    found = []
    for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), 1):
        if not line.strip():
            continue
        try:
            question = Question.model_validate_json(line)
            date.fromisoformat(question.date)
        except pydantic.ValidationError as error:
            raise EtudeError(f"line {number} of {path} is no question: {first_problem(error)}") from None
        except ValueError as error:
            raise EtudeError(f"line {number} of {path} has no date: {error}") from None
        found.append(question)
    kept = [question for question in found if question.date >= since]
    if not kept:
        raise EtudeError(f"{path} has {len(found)} questions and none from {since or 'any day'} on")
    return kept


def write_questions(questions: list[Question]) -> str:
    return "".join(json.dumps(question.model_dump(), ensure_ascii=False) + "\n" for question in questions)


def measure_fresh(
    tested: ModelUnderTest, questions: list[Question], advance: Advance = lambda questions: None
) -> FreshKnowledge:
    right, probability, chance = [], [], []
    for question in questions:
        prompt = f"Question: {question.question}\nAnswer:"
        start = tested.text.encode(prompt)
        # With its line break an answer that another one begins with is not the likelier for being unfinished.
        wholes = [tested.text.encode(f"{prompt} {answer}\n") for answer in question.answers]
        shared = min(len(start), *(_shared(start, whole) for whole in wholes))
        if shared < 1 or max(map(len, wholes)) > tested.positions:
            advance(1)
            continue
        nats = tested.score([ScoredText(whole, shared) for whole in wholes])
        # For each byte: answers are of different lengths, and a sum of losses would prefer the shorter.
        lengths = [len(answer.encode()) + 1 for answer in question.answers]
        each = np.array([part.sum() / length for part, length in zip(nats, lengths, strict=True)])
        right.append(bool((each[0] > each[1:]).all()))  # a tie counts against the model
        odds = np.exp(each - each.max())
        probability.append(float(odds[0] / odds.sum()))
        chance.append(1 / len(wholes))
        advance(1)
    if not right:
        raise EtudeError(f"none of {len(questions)} questions fits the model's {tested.positions} positions")
    dates = sorted(question.date for question in questions)
    return FreshKnowledge(fmean(right), fmean(chance), fmean(probability), len(right), dates[0], dates[-1])


def _shared(left: list[int], right: list[int]) -> int:
    """Tokens that both begin with."""
    count = 0
    while count < min(len(left), len(right)) and left[count] == right[count]:
        count += 1
    return count
