"""Delete a file, or a folder with all that is in it where the recipe allows that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pydantic

from etude.harness.failures import ToolError
from etude.harness.tool_context import ToolContext
from etude.harness.tools.base import Argument, Observation, Tool
from etude.harness.truncate import clamp
from etude.tokens.tokenizer import to_text


class Delete(Tool):
    class Settings(pydantic.BaseModel, extra="forbid", frozen=True):
        seconds: float = pydantic.Field(10.0, gt=0, description="time limit")
        folders: bool = pydantic.Field(False, description="take folders too, with all that is in them")

    name = "delete"
    description = "delete a file"
    arguments = (Argument("path", "file"),)

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> Observation:
        path = arguments["path"]
        where = context.locate(path)
        if where == context.root:
            raise ToolError("InvalidArguments", f"{path} is the workspace itself")
        words = ["rm", *(["-r"] if self.settings.folders else []), "--", where]  # a link goes, not where it points
        result = await context.run(words, seconds=self.settings.seconds)
        if result.timed_out:
            raise ToolError("Timeout", f"deleting {path} took too long")
        if result.code != 0:
            reason = to_text(result.stderr).strip().rpartition(": ")[2] or "cannot be deleted"
            raise ToolError("UnexpectedEnvironment", f"{path}: {clamp(reason.lower(), 100)}")
        return Observation("ok")
