"""A policy that is ordinary code: a generator that yields calls and is sent what they gave.

Each such policy serves one rollout. It sees nothing but the harness's messages, so rules and models do the same work
with the same tools.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence

from etude.core.policy import Assistant, Call, Context, Sample, Sampling, ToolResult
from etude.harness.text_turns import write_turn

Steps = Generator[Sequence[Call], list[str], str]  # returns its last words
_EXIT = re.compile(r"\n?\[(?:exit (\d+)|ended by signal \d+|stopped: [^\]]*)\]\s*$")


class StepPolicy:
    """Plays a generator as a policy."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._began = False

    async def sample(self, context: Context, sampling: Sampling) -> Sample:
        try:
            calls = self._steps.send(_answers(context)) if self._began else next(self._steps)
            turn = Assistant(calls=tuple(calls))
        except StopIteration as end:
            turn = Assistant(calls=(Call("finish", {"message": str(end.value or "")}),))
        self._began = True
        return Sample(write_turn(turn), "stop")


def run(command: str, seconds: int = 60) -> Call:
    return Call("run", {"command": command, "seconds": str(seconds)})


def exit_code(text: str) -> int:
    """How a command of the `run` tool ended: 0, its code, or -1 for one that was stopped."""
    if text.startswith("error: "):
        return -1
    found = _EXIT.search(text)
    return 0 if not found else int(found[1]) if found[1] else -1


def output(text: str) -> str:
    """What it printed."""
    return _EXIT.sub("", text)


def _answers(context: Context) -> list[str]:
    found: list[str] = []
    for message in reversed(context.messages):
        if not isinstance(message, ToolResult):
            break
        found.append(message.text)
    return found[::-1]
