"""Make a file, or replace all of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pydantic

from etude.harness.failures import ToolError
from etude.harness.tool_context import ToolContext
from etude.harness.tools.base import Argument, Observation, Tool


class Write(Tool):
    class Settings(pydantic.BaseModel, extra="forbid", frozen=True):
        max_chars: int = pydantic.Field(1_000_000, ge=1, description="longest text")
        end_line: bool = pydantic.Field(True, description="end the last line of a text that does not")

    name = "write"
    description = "make a file or replace it"
    arguments = (Argument("path", "file"), Argument("text", "all of its text"))

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> Observation:
        text = arguments["text"]
        if len(text) > self.settings.max_chars:
            raise ToolError("InvalidArguments", f"text is longer than {self.settings.max_chars} characters")
        if self.settings.end_line and text and not text.endswith("\n"):
            text += "\n"
        await context.write(arguments["path"], text)
        return Observation("ok")
