"""Show the problems that a linter finds and that were not there when the rollout began.

The linter is `python_problems`, which needs nothing but an interpreter in the sandbox, or the recipe's own command
that prints lines of `file:line: text`. A problem is the same when file and text are: lines move when code is edited.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pydantic

from etude.harness.failures import ToolError
from etude.harness.tool_context import ToolContext
from etude.harness.tools import python_problems
from etude.harness.tools.base import Argument, Observation, Tool
from etude.harness.truncate import clamp, first_lines
from etude.tokens.tokenizer import to_text

LINE = re.compile(r"(?P<file>[^:\n]+):(?P<line>\d+):(?:\d+:)? *(?P<text>\S.*)")


class Problem(NamedTuple):
    file: str
    line: int
    text: str


class Lints(Tool):
    class Settings(pydantic.BaseModel, extra="forbid", frozen=True):
        command: list[str] = pydantic.Field([], description="a linter of the sandbox and its words; empty: our own")
        python: str = pydantic.Field("python3", description="interpreter in the sandbox that runs our own")
        seconds: float = pydantic.Field(20.0, gt=0, description="time limit")
        max_lines: int = pydantic.Field(30, ge=1, description="problems shown")

    name = "lints"
    description = "show problems in the code that were not there at the start"
    arguments = (Argument("path", "only those of this file or folder", required=False),)
    reads_only = True

    async def begin(self, context: ToolContext) -> None:
        try:
            context.state[self.name] = [[problem.file, problem.text] for problem in await self._found(context)]
        except ToolError as error:
            context.state[self.name] = error.text

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> Observation:
        where = context.relative(context.locate(arguments.get("path", ".")))
        before = context.state.get(self.name, [])
        if isinstance(before, str):  # nobody knows what is new
            raise ToolError("Unavailable", before)
        known, new = Counter(map(tuple, before)), []
        for problem in await self._found(context):
            if known[problem.file, problem.text] > 0:
                known[problem.file, problem.text] -= 1
            elif where == "." or problem.file == where or problem.file.startswith(f"{where}/"):
                new.append(clamp(f"{problem.file}:{problem.line}: {problem.text}", 300))
        return Observation(first_lines(new, self.settings.max_lines, whole=True) if new else "no new problems")

    async def _found(self, context: ToolContext) -> list[Problem]:
        """All problems of the workspace."""
        own = [self.settings.python, "-I", "-c", Path(python_problems.__file__).read_text()]
        result = await context.run(self.settings.command or own, seconds=self.settings.seconds, max_output=4 << 20)
        if result.timed_out:
            raise ToolError("Timeout", "the linter took too long")
        if result.code in (126, 127):
            raise ToolError("Unavailable", f"there is no linter here: {(self.settings.command or own)[0]}")
        lines = to_text(result.stdout).splitlines()
        if self.settings.command:
            read = [
                Problem(m["file"].removeprefix("./"), int(m["line"]), m["text"]) for m in map(LINE.match, lines) if m
            ]
        else:
            read = [_problem(line) for line in lines if line.startswith("{") and line.endswith("}")]
        return sorted(read)


def _problem(line: str) -> Problem:
    """What our own linter wrote; the interpreter in the sandbox may be the agent's."""
    try:
        found = Problem(**json.loads(line))
    except (ValueError, TypeError, RecursionError):
        found = Problem("", -1, "")
    if [type(each) for each in found] != [str, int, str] or found.line < 0:
        raise ToolError("UnexpectedEnvironment", "what the linter wrote cannot be read")
    return found
