"""Show a file, or some of its lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pydantic

from etude.harness.failures import ToolError
from etude.harness.tool_context import ToolContext
from etude.harness.tools.base import Argument, Observation, Tool


class Read(Tool):
    class Settings(pydantic.BaseModel, extra="forbid", frozen=True):
        max_lines: int = pydantic.Field(400, ge=1, description="lines shown at once")
        max_chars: int = pydantic.Field(16_000, ge=1, description="characters shown at once")
        max_bytes: int = pydantic.Field(4 << 20, ge=1, description="largest file, bytes")
        numbers: bool = pydantic.Field(False, description="put NUMBER| before each line; costs some tokens a line")

    name = "read"
    description = "show a file or a range of its lines"
    arguments = (
        Argument("path", "file"),
        Argument("start", "first line, from 1", "integer", required=False, least=1),
        Argument("end", "last line", "integer", required=False, least=1),
    )
    reads_only = True

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> Observation:
        path = arguments["path"]
        text = await context.read(path, most=self.settings.max_bytes)
        lines = text.removesuffix("\n").split("\n") if text else []
        start, end = arguments.get("start", 1), arguments.get("end", len(lines))
        if end < start and "end" in arguments:
            raise ToolError("InvalidArguments", f"end {end} is before start {start}")
        if not lines:
            return Observation("[empty]")
        if start > len(lines):
            raise ToolError("UnexpectedEnvironment", f"{path} has {len(lines)} lines")
        chosen = lines[start - 1 : end]
        # Off by default: numbers cost two or three tokens a line, and edit needs none.
        if self.settings.numbers:
            chosen = [f"{number}|{line}" for number, line in enumerate(chosen, start)]
        shown = self._fitting(chosen)
        more = len(chosen) - len(shown)
        if more:
            shown.append(f"[{more} more lines: start {start + len(shown)}]")
        return Observation("\n".join(shown))

    def _fitting(self, lines: list[str]) -> list[str]:
        """As many lines as may be shown; a first line that is too long alone is cut."""
        shown: list[str] = []
        room = self.settings.max_chars
        for line in lines[: self.settings.max_lines]:
            room -= len(line) + 1
            if room < 0:
                break
            shown.append(line)
        return shown or [lines[0][: self.settings.max_chars] + "[line cut]"]
