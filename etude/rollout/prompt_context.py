"""What a prompt may hold beside the task: files that the instruction names, and what was said before it.

Both are options of the recipe (`harness.recent_files`, `harness.history`), off unless asked for: every token of a
prompt is paid for in every rollout. An earlier conversation lies in `environment/history.json` of a task: a list of
{"role": "user" or "assistant", "text": ...}, oldest first.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

import pydantic

from etude.core.errors import EtudeError
from etude.core.policy import Assistant, Message, User
from etude.core.recipe import first_problem
from etude.tasks.format.task import Task

HISTORY: Final = "environment/history.json"
LARGEST: Final = 1 << 20  # bytes of either
# From where a word begins and nowhere else in it: a long one without a dot would take the square of its length.
PATH: Final = re.compile(r"(?<![\w./-])[\w./-]+\.\w+")


class Said(pydantic.BaseModel, extra="forbid", frozen=True):
    """A message of the earlier conversation."""

    role: Literal["user", "assistant"]
    text: Annotated[str, pydantic.Field(max_length=20_000)]


def recent_files(task: Task, most: int) -> dict[str, str]:
    """Files of the workspace that the instruction names, in its order: path -> text."""
    found: dict[str, str] = {}
    for named in PATH.findall(task.instruction) if most else ():
        path = named.rstrip(".").removeprefix("./")
        if len(found) < most and path in task.workspace and _is_text(task, path):
            found[path] = task.workspace.text(path)
    return found


def _is_text(task: Task, path: str) -> bool:
    there = task.workspace
    return there.kind(path) != "link" and there.size(path) <= LARGEST and b"\0" not in there[path]


def earlier_messages(task: Task, most: int) -> tuple[Message, ...]:
    """The newest `most` messages of the task's earlier conversation, from a user's on."""
    if not most or HISTORY not in task.files or task.files.kind(HISTORY) == "link":
        return ()
    if task.files.size(HISTORY) > LARGEST:
        raise EtudeError(f"task {task.name}: {HISTORY} has more than {LARGEST} bytes")
    try:
        said = pydantic.TypeAdapter(list[Said]).validate_json(task.files[HISTORY], strict=True)
    except pydantic.ValidationError as error:
        raise EtudeError(f"task {task.name}: {HISTORY}: {first_problem(error)}") from None
    chosen = said[-most:]
    while chosen and chosen[0].role != "user":  # templates want a user to begin
        chosen = chosen[1:]
    return tuple(User(each.text) if each.role == "user" else Assistant(final=each.text) for each in chosen)
