"""Run a command in the sandbox's shell.

Each command has a shell of its own, so nothing can hang between two of them; only the folder is carried from one to
the next. The command is one word of the shell's own arguments, never part of a script that we put together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pydantic

from etude.harness.failures import ToolError
from etude.harness.tool_context import ToolContext
from etude.harness.tools.base import Argument, Observation, Tool
from etude.harness.truncate import shorten
from etude.sandbox.base import CommandResult
from etude.tokens.tokenizer import to_text

# $1 command, $2 folder, $3 the workspace in case that folder is gone. Both streams of the command go to standard
# output, in their order; the folder that it ends in goes to standard error, also when the command calls exit. A command
# that writes there itself can only mislead itself.
SCRIPT = 'exec 3>&2 2>&1; cd -- "$2" || cd -- "$3" || exit; trap \'pwd -P >&3 2>/dev/null\' EXIT; eval "$1"'
MAX_OUTPUT = 1 << 20  # bytes taken from the sandbox before cutting
# Test runners report how long they took: noise that makes equal rollouts differ.
TIMES = re.compile(
    r"(?m)\b(tests?|ran|passed|failed|errors?|skipped|deselected|xfailed|xpassed|warnings?)"
    r" in [\d.]+s(?: \([\d:]+\))?(?= =+$|$)"
)


class Run(Tool):
    class Settings(pydantic.BaseModel, extra="forbid", frozen=True):
        seconds: float = pydantic.Field(30.0, gt=0, description="time limit of a command that names none")
        max_seconds: float = pydantic.Field(600.0, gt=0, description="longest time limit a command may name")
        max_chars: int = pydantic.Field(8_000, ge=1, description="characters shown of its output")
        shell: str = pydantic.Field("bash", description="shell; sh is taken where it is not installed")
        hide_times: bool = pydantic.Field(True, description="leave out how long test runs took")

    name = "run"
    description = "run a shell command"
    arguments = (
        Argument("command", "what to run; cd lasts until the next one"),
        Argument("seconds", "time limit", "integer", required=False, least=1),
    )

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> Observation:
        seconds = min(arguments.get("seconds", self.settings.seconds), self.settings.max_seconds)
        result = await self._run(arguments["command"], seconds, context)
        output = to_text(result.stdout).rstrip("\n")
        if self.settings.hide_times:
            output = TIMES.sub(r"\1", output)
        shown = shorten(output, self.settings.max_chars)
        if result.timed_out:
            return Observation(f"{shown}\n[stopped: out of time]".lstrip("\n"), "Timeout")
        if result.oom:
            shown += "\n[stopped: out of memory]"
        elif result.code < 0:
            shown += f"\n[ended by signal {-result.code}]"
        elif result.code > 0 or not shown:
            shown += f"\n[exit {result.code}]"
        return Observation(shown.lstrip("\n"))

    async def _run(self, command: str, seconds: float, context: ToolContext) -> CommandResult:
        # A container may have no bash; what worked once is tried first from then on.
        for shell in dict.fromkeys((context.state.get(self.name, self.settings.shell), "sh")):
            words = [shell, "-c", SCRIPT, shell, command, context.directory, context.root]
            result = await context.run(words, seconds=seconds, max_output=MAX_OUTPUT)
            directory = to_text(result.stderr).removesuffix("\n")
            if directory.startswith("/") and "\n" not in directory:
                context.directory = directory
                context.state[self.name] = shell
                return result
            if result.code != 127:  # ended before it could say where it was
                return result
        raise ToolError("UnexpectedEnvironment", f"there is no shell: neither {self.settings.shell} nor sh")
