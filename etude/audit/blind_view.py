"""What an auditor gets to see: the problem and the trajectory. Never whether it passed, its reward, or the answer.

Blind by construction: a blind view is made from a task, a trajectory and the agent's changes, and has no place for a
grade, a reward, the held-out tests or the reference. As text it is one JSON object, which rules and models read alike.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from typing import Any

import pydantic

from etude.core.errors import EtudeError
from etude.core.policy import Assistant, Call, Message, ToolResult, User
from etude.harness.tools.base import corrected
from etude.harness.tools.table import TOOLS, arguments_of
from etude.harness.trajectory import MessageRecord, Trajectory
from etude.tasks.format.file_tree import Files
from etude.tasks.format.task import Task, matches
from etude.tasks.grading.submission import Submission

LARGEST = 256 << 10  # bytes of a file of the workspace that is looked at
_SHORTEST = 40  # characters that are left of any text
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
    agent: int = 0  # who: 0 is the agent, 1 its first sub-agent


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

    def to_json(self, most: int | None = None) -> str:
        """As text, with as much of the workspace as is useful; of `most` characters, where a reader pays for each.

        What was done comes first: a large workspace, or one long output, must not hide the turns.
        """
        told = self._told(self)
        if most is not None and len(json.dumps(told)) > most:
            told = self._told(_shortened(self, most))
        # Changed files and tests say most about a rollout, so they are in the text when there is no room for all.
        first = sorted(self.workspace, key=lambda path: (path not in self.changed, "test" not in path, path))
        kept: dict[str, str] = {}
        room = SHOWN if most is None else most - len(json.dumps(told))
        for path in first:
            room -= len(self.workspace[path]) if most is None else len(json.dumps({path: self.workspace[path]}))
            if room < 0:
                break
            kept[path] = self.workspace[path]
        return json.dumps({**told, "names": sorted(self.names) if most is None else [], "workspace": kept})

    @staticmethod
    def _told(view: BlindView) -> dict[str, Any]:
        return {
            "instruction": view.instruction,
            "deleted": view.deleted,
            "allowed": view.allowed,
            "turns": [asdict(turn) for turn in view.turns],
            "changed": dict(view.changed),
            "left_behind": dict(view.left_behind),
        }

    @classmethod
    def from_json(cls, text: str) -> BlindView:
        try:
            told = _ADAPTER.validate_json(text)
        except pydantic.ValidationError as error:
            raise EtudeError(f"this is no view of a rollout: {error.errors()[0]['msg']}") from None
        return told


_ADAPTER = pydantic.TypeAdapter(BlindView)


def _shortened(view: BlindView, most: int) -> BlindView:
    """With the longest texts cut in their middle until all of it fits into half of the room. Every call stays."""
    longest = most
    shorter = view
    while longest > _SHORTEST and len(json.dumps(BlindView._told(shorter))) > most // 2:
        longest //= 2
        cut = partial(_cut, longest=longest)
        turns = tuple(
            replace(
                turn,
                thinking=cut(turn.thinking),
                said=cut(turn.said),
                calls=tuple(
                    replace(
                        call,
                        arguments={name: cut(text) for name, text in call.arguments.items()},
                        result=cut(call.result),
                    )
                    for call in turn.calls
                ),
            )
            for turn in view.turns
        )
        changed = {path: None if text is None else cut(text) for path, text in view.changed.items()}
        shorter = replace(view, instruction=cut(view.instruction), turns=turns, changed=changed)
    return shorter


def _cut(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    return f"{text[: longest // 2]} [{len(text) - longest} characters left out] {text[len(text) - longest // 2 :]}"


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
    return open_trajectory(Trajectory(entries=[MessageRecord(message) for message in messages]))


def open_trajectory(trajectory: Trajectory) -> BlindView:
    """The same of a trajectory, which knows whose turns they are."""
    asked = next((message.text for message in trajectory.messages if isinstance(message, User)), "")
    return BlindView(asked, turns=tuple(_turns(trajectory)))


def _turns(trajectory: Trajectory) -> list[Turn]:
    """All turns in the order of time: those of a sub-agent stand behind the call that they came from."""
    parts: list[list[MessageRecord]] = [[]]
    for entry in trajectory.entries:
        if entry.purpose == "sub-agent":
            parts.append([])
        parts[-1].append(entry)
    return _conversation(parts[0], parts[1:], trajectory.tools, {})


def _conversation(
    entries: Sequence[MessageRecord],
    others: list[list[MessageRecord]],
    tools: Sequence[str],
    started: dict[int, str],
    agent: int = 0,
) -> list[Turn]:
    """The turns of an agent and its sub-agents. `started` are commands in the background, by their ids."""
    found: list[Turn] = []
    waiting: list[Call] = []
    came = 0  # sub-agents so far

    def delegated(more: int, done: int) -> None:
        """Puts the turns of sub-agents behind the calls of the last turn that are done."""
        nonlocal came
        turn = found[-1]
        found[-1] = replace(turn, said="", calls=turn.calls[:done])
        for part in others[came : came + more]:
            came += 1
            found.extend(_conversation(part, [], tools, started, came))
        # An agent's message is its last word, whoever worked for it in the meantime: rules look at the last turn.
        found.append(Turn("", turn.said, turn.calls[done:], agent))

    for entry in entries:
        message = entry.message
        if entry.segment < 0:
            continue
        if isinstance(message, Assistant):
            waiting = [] if entry.error is not None else list(message.calls)  # those of an unreadable turn never ran
            calls = tuple(_meant(call, tools) for call in waiting)
            found.append(Turn(message.thinking, message.final, calls, agent))
        elif isinstance(message, ToolResult) and found and waiting:
            turn, call = found[-1], waiting.pop(0)
            at = len(turn.calls) - len(waiting) - 1
            refused = entry.error in ("InvalidArguments", "Unavailable")  # nothing ran, so it was taken for nothing
            record = CallRecord(call.name, dict(call.arguments)) if refused else turn.calls[at]
            answered = _with_command(replace(record, result=message.text, failed=entry.error is not None), started)
            found[-1] = replace(turn, calls=(*turn.calls[:at], answered, *turn.calls[at + 1 :]))
            if answered.name == "agent" and entry.error is None and came < len(others):
                delegated(1, at + 1)
    if found and came < len(others):  # the rollout ended before their results came
        delegated(len(others), len(found[-1].calls))
    return found


def _meant(call: Call, tools: Sequence[str]) -> CallRecord:
    """A call as the harness took it: where calls need not be exact, names that are nearly right are run, too."""
    near = [call.name] if call.name in tools else get_close_matches(call.name[:40].lower(), tools, 1)
    name = near[0] if near else call.name
    known = corrected(call.arguments, arguments_of(name)) if name in TOOLS else {}
    return CallRecord(name, {**call.arguments, **known})


def _with_command(call: CallRecord, started: dict[int, str]) -> CallRecord:
    """A call about a command in the background, with that command: what it wrote may come many turns later."""
    number = re.search(r"\[(\d{1,9}): [^\n]*\]$", call.result)
    if call.name != "background" or number is None or call.failed:
        return call
    command = started.setdefault(int(number[1]), call.arguments.get("command", ""))
    return replace(call, arguments={**call.arguments, "command": command})


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
