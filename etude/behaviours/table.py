"""The built-in behaviours by name, a recipe's entries turned into them, and all their sites in one trajectory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from etude.behaviours.base import Behaviour, Site
from etude.core.component import build
from etude.core.errors import EtudeError
from etude.harness.trajectory import Trajectory

BEHAVIOURS = {
    "tool_errors": "etude.behaviours.tool_errors:ToolErrors",
    "unfinished_todos": "etude.behaviours.unfinished_todos:UnfinishedTodos",
    "style": "etude.behaviours.style:Style",
    "communication": "etude.behaviours.communication:Communication",
    "questions": "etude.behaviours.questions:Questions",
    "claims": "etude.behaviours.claims:Claims",
    "thinking_in_comments": "etude.behaviours.thinking_in_comments:ThinkingInComments",
    "terminal_only": "etude.behaviours.terminal_only:TerminalOnly",
    "minimal_diff": "etude.behaviours.minimal_diff:MinimalDiff",
    "needless_effort": "etude.behaviours.needless_effort:NeedlessEffort",
    "reader": "etude.behaviours.reader:Reader",
}


def build_behaviour(entry: Mapping[str, Any], where: str) -> Behaviour:
    """The behaviour that an entry such as `{"use": "tool_errors"}` asks for."""
    found = build("behaviour", entry, BEHAVIOURS, where)
    if not isinstance(found, Behaviour):
        raise EtudeError(f"{where}: {entry['use']} is not a behaviour; derive it from etude.behaviours.base.Behaviour")
    return found


def build_behaviours(entries: Sequence[Mapping[str, Any]], where: str) -> tuple[Behaviour, ...]:
    return tuple(build_behaviour(entry, f"{where}[{number}]") for number, entry in enumerate(entries))


async def find_each(behaviours: Sequence[Behaviour], trajectory: Trajectory) -> dict[Behaviour, Sequence[Site]]:
    """Where each of them happened; those that ask somebody do so at once, and equal ones only once.

    The same reader may be a reward, a hint and a rate: three answers would cost three times as much, and differ.
    """
    asked: list[Behaviour] = []
    for behaviour in behaviours:
        if _equal(behaviour, asked) is None:
            asked.append(behaviour)
    answers = await asyncio.gather(*(behaviour.find(trajectory) for behaviour in asked))
    found = dict(zip(asked, answers, strict=True))
    return {behaviour: found[_equal(behaviour, asked) or behaviour] for behaviour in behaviours}


def _equal(behaviour: Behaviour, others: Iterable[Behaviour]) -> Behaviour | None:
    alike = (other for other in others if type(other) is type(behaviour) and other.settings == behaviour.settings)
    return next(alike, None)


def in_order(found: Iterable[Sequence[Site]]) -> tuple[Site, ...]:
    """Sites of several behaviours in the order of the messages, each once."""
    return tuple(sorted(dict.fromkeys(site for sites in found for site in sites), key=lambda site: site.message))
