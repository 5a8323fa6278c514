"""What an auditor gets to see: the problem and the trajectory. Never whether it passed, its reward, or the answer.

Blind by construction: a blind view is made from a task, a trajectory and the agent's changes, and has no place for a
grade, a reward, the held-out tests or the reference. As text it is one JSON object, which rules and models read alike.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pydantic

from etude.core.errors import EtudeError
from etude.core.policy import Assistant, Message, ToolResult, User
from etude.harness.trajectory import MessageRecord, Trajectory
from etude.tasks.format.file_tree import Files
from etude.tasks.format.task import Task, matches
from etude.tasks.grading.submission import Submission

LARGEST = 256 << 10  # bytes of a file of the workspace that is looked at
SHOWN = 4 << 20  # bytes of the workspace that go into the text, tests and changed files first


@dataclass(frozen=True)
class CallRecord:
    """One call and what came back."""

    name: str
    arguments: Mapping[str, str]
    result: str = ""
    failed: bool = False


@dataclass(frozen=True)
class Turn:
    thinking: str = ""
    said: str = ""
    calls: tuple[CallRecord, ...] = ()


@dataclass(frozen=True)
class BlindView:
    instruction: str
    deleted: tuple[str, ...] = ()  # what is to be written, as path:name
    allowed: tuple[str, ...] = ()  # globs of what the task lets change
    workspace: Mapping[str, str] = field(default_factory=dict)  # text files as the agent found them
    names: frozenset[str] = frozenset()  # all files that it found
    turns: tuple[Turn, ...] = ()
    changed: Mapping[str, str | None] = field(default_factory=dict)  # files as it left them; None is deleted
    left_behind: Mapping[str, str] = field(default_factory=dict)  # other changed files, and why no grader gets them

    def allows(self, path: str) -> bool:
        return any(matches(path, pattern) for pattern in self.allowed)

    def to_json(self) -> str:
        """As text, with as much of the workspace as is useful."""
        # Changed files and tests say most about a rollout, so they are in the text when there is no room for all.
        first = sorted(self.workspace, key=lambda path: (path not in self.changed, "test" not in path, path))
        kept: dict[str, str] = {}
        room = SHOWN
        for path in first:
            room -= len(self.workspace[path])
            if room < 0:
                break
            kept[path] = self.workspace[path]
        facts = {"names": sorted(self.names), "workspace": kept, "turns": [asdict(turn) for turn in self.turns]}
        told = {
            "instruction": self.instruction,
            "deleted": self.deleted,
            "allowed": self.allowed,
            **facts,
            "changed": dict(self.changed),
            "left_behind": dict(self.left_behind),
        }
        return json.dumps(told)

    @classmethod
    def from_json(cls, text: str) -> BlindView:
        try:
            told = _ADAPTER.validate_json(text)
        except pydantic.ValidationError as error:
            raise EtudeError(f"this is no view of a rollout: {error.errors()[0]['msg']}") from None
        return told


_ADAPTER = pydantic.TypeAdapter(BlindView)


def open_blind_view(task: Task, trajectory: Trajectory, changes: Submission) -> BlindView:
    """The blind view of a rollout."""
    return BlindView(
        instruction=task.instruction,
        deleted=tuple(task.facts.deleted),
        allowed=tuple(task.facts.allowed_paths),
        workspace=_Texts(task.workspace),
        names=frozenset(task.workspace),
        turns=tuple(_turns(trajectory)),
        changed={
            each.path: None if each.data is None else each.data.decode("utf-8", "replace") for each in changes.files
        },
        left_behind={each.path: each.why for each in changes.refused},
    )


def open_conversation(messages: Sequence[Message]) -> BlindView:
    """The blind view of a conversation whose task nobody knows: what was asked, said and done is all there is."""
    asked = next((message.text for message in messages if isinstance(message, User)), "")
    return BlindView(asked, turns=tuple(_turns(Trajectory(entries=[MessageRecord(message) for message in messages]))))


def _turns(trajectory: Trajectory) -> list[Turn]:
    found: list[Turn] = []
    waiting: list[CallRecord] = []
    for entry in trajectory.entries:
        message = entry.message
        if entry.segment < 0:
            continue
        if isinstance(message, Assistant):
            calls = () if entry.error is not None else message.calls  # those of an unreadable turn never ran
            waiting = [CallRecord(call.name, dict(call.arguments)) for call in calls]
            found.append(Turn(message.thinking, message.final, tuple(waiting)))
        elif isinstance(message, ToolResult) and found and waiting:
            turn, call = found[-1], waiting.pop(0)
            at = len(turn.calls) - len(waiting) - 1
            answered = replace(call, result=message.text, failed=entry.error is not None)
            found[-1] = replace(turn, calls=(*turn.calls[:at], answered, *turn.calls[at + 1 :]))
    return found


class _Texts(Mapping[str, str]):
    """The text files of a tree, read when they are asked for."""

    def __init__(self, files: Files) -> None:
        self._files = files
        # A link may lead anywhere, and data files of megabytes tell rules nothing.
        self._paths = [path for path in files if files.kind(path) != "link" and files.size(path) <= LARGEST]
        self._known = frozenset(self._paths)

    def __getitem__(self, path: str) -> str:
        if path not in self._known:
            raise KeyError(path)
        return self._files[path].decode("utf-8", "replace")

    def __iter__(self) -> Any:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)

    def __contains__(self, path: object) -> bool:
        return path in self._known
