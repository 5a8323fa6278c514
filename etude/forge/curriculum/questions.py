"""Questions without files or programs: `use = "questions"`. One JSON object a line:

    {"question": "What does `[1, 2][-1]` give in Python?", "answer": "2"}

`answer` is text, or a list of which any is right; a `name` is optional. The agent answers in its last message.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from pathlib import Path

import pydantic
from pydantic import Field

from etude.core.errors import EtudeError
from etude.tasks.format.config import Answer, Facts, Split
from etude.tasks.format.task import Task
from etude.tasks.kinds.answer import MARK, read_words

CATEGORY = "question and answer"


class Question(pydantic.BaseModel, extra="forbid", strict=True):
    """One line."""

    question: str = Field(min_length=1)
    answer: str | list[str] = Field(min_length=1)
    name: str = ""


class Questions:
    class Settings(pydantic.BaseModel, extra="forbid"):
        path: str = Field(description="file of questions, one JSON object a line")
        count: int = Field(0, ge=0, description="questions; 0 is all")
        split: Split = Field("train", description="what the tasks say of themselves: training refuses held_out")
        again: bool = Field(False, description="whether the file is asked from its start again when it has ended")

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        path = Path(settings.path).expanduser()
        try:
            lines = path.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise EtudeError(f"the questions {path} cannot be read: {error}") from None
        numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
        self.found = [_task(line, f"{path}:{number}", settings.split) for number, line in numbered]
        self.found = self.found[: settings.count or None]
        if not self.found:
            raise EtudeError(f"{path} has no question: write one JSON object a line, with question and answer")

    def tasks(self, start: int = 0) -> Iterator[Task]:
        if not self.settings.again:
            return itertools.islice(self.found, start, None)
        return (self.found[number % len(self.found)] for number in itertools.count(start))


def _task(line: str, where: str, split: Split) -> Task:
    try:
        given = Question.model_validate_json(line)
    except pydantic.ValidationError as error:
        problem = error.errors(include_url=False)[0]
        raise EtudeError(f"{where} is no question: {'.'.join(map(str, problem['loc']))} {problem['msg']}") from None
    accepted = [given.answer] if isinstance(given.answer, str) else given.answer
    if any(not read_words(f"{MARK} {each}") or "\n" in each for each in accepted):
        raise EtudeError(f"{where}: an answer is empty or has several lines, so nobody could give it")
    facts = Facts(
        category=CATEGORY,
        family=CATEGORY,
        provenance=where.rpartition("/")[2],
        split=split,
        sandbox=False,
        answer=Answer(kind="text", accepted=accepted),
    )
    name = given.name or f"question-{hashlib.sha256(given.question.encode()).hexdigest()[:8]}"
    return Task(name, f"{given.question.strip()}\n\nEnd with a line `{MARK} ...`.\n", facts=facts)
