"""Show what lies in a folder, a few levels deep, sorted by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pydantic

from etude.harness.tool_context import ToolContext
from etude.harness.tools.base import Argument, Observation, Tool
from etude.harness.truncate import first_lines


class List(Tool):
    class Settings(pydantic.BaseModel, extra="forbid", frozen=True):
        depth: int = pydantic.Field(2, ge=1, description="levels of folders shown")
        max_entries: int = pydantic.Field(200, ge=1, description="names shown")

    name = "list"
    description = "show the files of a folder"
    arguments = (Argument("path", "folder; the workspace if left out", required=False),)
    reads_only = True

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> Observation:
        # Two levels: enough to find one's way, and a large repository does not fill the context.
        entries, whole = await context.walk(arguments.get("path", "."), depth=self.settings.depth)
        # A folder whose content is shown needs no line of its own.
        parents = {entry.rstrip("/").rpartition("/")[0] + "/" for entry in entries}
        shown = [entry for entry in entries if entry not in parents]
        return Observation(first_lines(shown, self.settings.max_entries, whole))
