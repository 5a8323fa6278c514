"""A command that a repository should be able to run, what it should print, and the tool by which stage 1 names it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from etude.core.errors import EtudeError
from etude.harness.failures import ToolError
from etude.harness.tool_context import ToolContext
from etude.harness.tools.base import Argument, Observation, Tool
from etude.harness.trajectory import Trajectory
from etude.sandbox.base import CommandResult

Kind = Literal["tests", "import", "version", "script", "other"]
PROPOSALS = 10
TARGETS = 3
_LONGEST = 2000  # characters of a command or a description
_MOST_MATCHED = 200_000  # characters of output that a pattern is tried on


@dataclass(frozen=True)
class Proposal:
    """One command of the ten."""

    command: str  # for a shell, in the workspace
    prints: str  # what it should print, for people and for an agent
    expects: str = ""  # a pattern that its output must hold
    kind: Kind = "other"

    def mismatch(self, result: CommandResult) -> str:
        """Why the result is not what was described, or nothing."""
        if result.timed_out:
            return f"`{self.command}` did not end in time"
        output = (result.stdout + b"\n" + result.stderr).decode("utf-8", "replace")
        if result.code != 0:
            last = (output.strip().splitlines() or ["nothing was printed"])[-1]
            return f"`{self.command}` ended with {result.code}: {last[:300]}"
        if self.expects and not re.search(self.expects, output[-_MOST_MATCHED:]):
            return f"`{self.command}` did not print what it should: {self.prints}"
        return ""


class Propose(Tool):
    """Names one of the ten commands."""

    name = "propose"
    description = "name a command that this repository should be able to run once it is installed"
    arguments = (
        Argument("command", "what to run, in the workspace"),
        Argument("prints", "what it should print, in a sentence"),
        Argument("expects", "a regular expression that its output must match", required=False),
        Argument("kind", "tests, import, version, script or other", required=False),
    )

    def __init__(self) -> None:
        super().__init__(self.Settings())

    async def call(self, arguments: Mapping[str, Any], workbench: ToolContext) -> Observation:
        try:
            read_proposal(arguments)
        except EtudeError as error:
            raise ToolError("InvalidArguments", str(error)) from None
        return Observation("noted")


def read_proposal(arguments: Mapping[str, Any]) -> Proposal:
    command, prints = str(arguments.get("command", "")).strip(), str(arguments.get("prints", "")).strip()
    expects, kind = str(arguments.get("expects", "")), str(arguments.get("kind", "") or "other")
    if not command or not prints or "\0" in command or len(command) + len(prints) > _LONGEST:
        raise EtudeError(f"a proposal needs a command and what it prints, at most {_LONGEST} characters together")
    if kind not in get_args(Kind):
        raise EtudeError(f"kind is one of {', '.join(get_args(Kind))}")
    try:
        re.compile(expects)
    except (re.error, RecursionError) as error:
        raise EtudeError(f"expects is no regular expression: {error}") from None
    return Proposal(command, prints, expects, kind)  # type: ignore[arg-type]  # checked above


def proposals_of(trajectory: Trajectory) -> list[Proposal]:
    """The first ten that were well said, each command once."""
    found: dict[str, Proposal] = {}
    for turn in trajectory.turns:
        for call in turn.calls:
            if call.name == Propose.name:
                try:
                    proposal = read_proposal(call.arguments)
                except EtudeError:
                    continue
                found.setdefault(proposal.command, proposal)
    return list(found.values())[:PROPOSALS]


def choose_targets(proposals: Sequence[Proposal]) -> list[Proposal]:
    """Three of them: the test suite, and the two that say most about the rest. None where no command runs the tests."""
    suites = [each for each in proposals if each.kind == "tests"]
    if not suites:
        return []
    order = ("import", "script", "version", "other", "tests")
    others = sorted((each for each in proposals if each is not suites[0]), key=lambda each: order.index(each.kind))
    chosen = others[:1] + [each for each in others[1:] if each.kind != (others[0].kind if others else "")]
    chosen += [each for each in others if each not in chosen]
    return [suites[0], *chosen[: TARGETS - 1]]
