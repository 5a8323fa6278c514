"""The shadow backend of a task: a stand-in for services that a team has beside its repository.

A task declares it with `environment/services.json`: an issue tracker, logs, a metrics store, each a list of records. An
agent asks it through the tool `service`; its records are never files of the sandbox, so evidence can lie outside the
repository and nothing in the sandbox can change it. Read only, the same for every rollout. The file may be anybody's:
sizes are bounded and a record that is not as it should be is refused by name.
"""

from __future__ import annotations

import json
from typing import Annotated, Final

import pydantic

from etude.core.errors import EtudeError
from etude.core.recipe import first_problem
from etude.harness.code_search.words import split_words
from etude.harness.failures import ToolError
from etude.tasks.format.task import Task

FILE: Final = "environment/services.json"
LARGEST: Final = 4 << 20  # bytes
MOST_SHOWN: Final = 20  # records of one answer
Text = Annotated[str, pydantic.Field(max_length=20_000)]
Name = Annotated[str, pydantic.Field(pattern=r"^[\w.:/-]{1,120}$")]
Time = Annotated[str, pydantic.Field(pattern=r"^[0-9T:.Z -]{1,40}$")]


class Record(pydantic.BaseModel):
    """What all records forbid: keys that nobody knows, and changes."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


class Issue(Record):
    number: int = pydantic.Field(ge=1)
    title: Text
    text: Text = ""
    state: str = pydantic.Field(default="open", pattern="^(open|closed)$")


class LogLine(Record):
    time: Time
    text: Text


class Sample(Record):
    time: Time
    name: Name
    value: float


class ShadowBackend(Record):
    """The records of each service; one without records is not there."""

    issues: list[Issue] = pydantic.Field(default=[], max_length=1000)
    logs: list[LogLine] = pydantic.Field(default=[], max_length=20_000)
    metrics: list[Sample] = pydantic.Field(default=[], max_length=20_000)

    @property
    def services(self) -> tuple[str, ...]:
        return tuple(name for name in ("issues", "logs", "metrics") if getattr(self, name))

    def ask(self, service: str, query: str) -> str:
        """What a service answers: lines of text. A name that it does not know is a `ToolError`."""
        if service not in self.services:
            raise ToolError(
                "InvalidArguments", f"there is no service of that name; there are {', '.join(self.services)}"
            )
        answers = {"issues": self._issues, "logs": self._logs, "metrics": self._metrics}
        return answers[service](query.strip())

    def to_json(self) -> bytes:
        return json.dumps(self.model_dump(), indent=1).encode()

    def _issues(self, query: str) -> str:
        """One issue by its number; else titles, those that have most words of the query first."""
        if query.removeprefix("#").isdecimal():
            for issue in self.issues:
                if str(issue.number) == query.removeprefix("#"):
                    return f"#{issue.number} ({issue.state}) {issue.title}\n\n{issue.text}".rstrip()
            raise ToolError("UnexpectedEnvironment", f"there is no issue {query[:20]}")
        wanted = {*split_words(query)}
        counts = [len(wanted & {*split_words(f"{issue.title} {issue.text}")}) for issue in self.issues]
        order = sorted(range(len(counts)), key=lambda at: (-counts[at], -self.issues[at].number))
        found = [self.issues[at] for at in order if counts[at] or not wanted]
        return _lines([f"#{issue.number} ({issue.state}) {issue.title}" for issue in found])

    def _logs(self, query: str) -> str:
        """Lines that hold every word of the query, newest last."""
        words = {*query.lower().split()}
        found = [f"{line.time} {line.text}" for line in self.logs]
        return _lines([line for line in found if _has_all(line.lower(), words)], last=True)

    def _metrics(self, query: str) -> str:
        """The values of a metric; else the names of those that hold the query."""
        values = [f"{each.time} {each.value:g}" for each in self.metrics if each.name == query]
        names = sorted({each.name for each in self.metrics if query.lower() in each.name.lower()})
        return _lines(values, last=True) if values else _lines(names)


def read_backend(task: Task) -> ShadowBackend | None:
    """What the task declares; None where it declares nothing."""
    if FILE not in task.files or task.files.kind(FILE) == "link":
        return None
    if task.files.size(FILE) > LARGEST:
        raise EtudeError(f"task {task.name}: {FILE} has more than {LARGEST} bytes")
    try:
        return ShadowBackend.model_validate_json(task.files[FILE], strict=True)
    except pydantic.ValidationError as error:
        raise EtudeError(f"task {task.name}: {FILE}: {first_problem(error)}") from None


def _has_all(line: str, words: set[str]) -> bool:
    return all(word in line for word in words)


def _lines(found: list[str], *, last: bool = False) -> str:
    more = len(found) - MOST_SHOWN
    shown = found[-MOST_SHOWN:] if last else found[:MOST_SHOWN]
    left = [f"[{more} {'earlier' if last else 'more'}]"] if more > 0 else []
    return "\n".join([*left, *shown] if last else [*shown, *left]) or "[nothing]"
