"""Keep a command running while the work goes on: start it, read what it wrote since, stop it.

Nothing that was started outlives the sandbox, and grading begins after the sandbox is gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pydantic

from etude.harness.failures import ToolError
from etude.harness.tool_context import ToolContext
from etude.harness.tools.base import Argument, Observation, Tool
from etude.harness.truncate import shorten
from etude.sandbox.base import Process
from etude.tokens.tokenizer import to_text


class Background(Tool):
    class Settings(pydantic.BaseModel, extra="forbid", frozen=True):
        max_running: int = pydantic.Field(4, ge=1, description="commands that may run at once")
        max_seconds: int = pydantic.Field(30, ge=0, description="longest wait for one of them to end")
        max_chars: int = pydantic.Field(4_000, ge=1, description="characters shown of what it wrote")

    name = "background"
    description = "run a command while other work goes on, read what it wrote, stop it"
    arguments = (
        Argument("command", "what to start", required=False),
        Argument("id", "of one that was started: what it wrote since", "integer", required=False, least=1),
        Argument("seconds", "wait so long for it to end", "integer", required=False, least=0),
        Argument("stop", "end it", "flag", required=False),
    )

    async def begin(self, context: ToolContext) -> None:
        context.state[self.name] = []  # before any sub-agent, so that all have the same list and the same limit

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> Observation:
        started: list[Process] = context.state.setdefault(self.name, [])
        number, stop = arguments.get("id", len(started) + 1), arguments.get("stop", False)
        if ("command" in arguments) == ("id" in arguments):
            raise ToolError("InvalidArguments", f"{self.name} needs either a command to start or the id of one")
        if "id" in arguments and number > len(started):
            raise ToolError("InvalidArguments", f"id is {number}, and {len(started)} were started")
        if "command" in arguments:
            if sum(process.running for process in started) >= self.settings.max_running:
                raise ToolError("InvalidArguments", f"{self.settings.max_running} commands run already; stop one")
            started.append(await context.spawn(["sh", "-c", 'exec 2>&1; eval "$1"', "sh", arguments["command"]]))
        process = started[number - 1]
        wait = min(arguments.get("seconds", 0), self.settings.max_seconds)
        ended = await process.kill() if stop else await process.wait(context.seconds(wait) if wait else 0)
        written = process.output()[0] if ended is None else ended.stdout
        state = "running" if ended is None else "stopped" if stop else f"exit {ended.code}"
        shown = shorten(to_text(written).rstrip("\n"), self.settings.max_chars)
        return Observation(f"{shown}\n[{number}: {state}]".lstrip("\n"))

    def remembered(self, context: ToolContext) -> str:
        running = [str(n) for n, each in enumerate(context.state.get(self.name, []), 1) if each.running]
        return f"Running in the background: {', '.join(running)}" if running else ""
