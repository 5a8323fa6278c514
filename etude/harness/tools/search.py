"""Find the files that a question in plain words is about.

Words of the question against identifiers, paths and comments, and, where the recipe names trained vectors, words that
mean the same. The index is of the workspace as it is at each call.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pydantic

from etude.harness.code_search.embedding import WordVectors
from etude.harness.code_search.workspace import WorkspaceIndex
from etude.harness.failures import ToolError
from etude.harness.tool_context import ToolContext
from etude.harness.tools.base import Argument, Observation, Tool
from etude.harness.truncate import clamp

LONGEST_LINE = 300  # characters; the name of a definition may be as long as its file


class Search(Tool):
    class Settings(pydantic.BaseModel, extra="forbid", frozen=True):
        vectors: str = pydantic.Field(
            "", description="file of word vectors (`etude model search-vectors`); empty: words alone"
        )
        max_files: int = pydantic.Field(5, ge=1, description="files shown")

    name = "search"
    description = "find the code that a question is about"
    arguments = (Argument("question", "what the code does, in plain words"),)

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self.vectors = WordVectors.load(Path(settings.vectors)) if settings.vectors else None

    async def begin(self, context: ToolContext) -> None:
        context.state[self.name] = WorkspaceIndex.empty(self.vectors)  # before any sub-agent, so that all share it

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> Observation:
        if not arguments["question"].strip():
            raise ToolError("InvalidArguments", "question is empty")
        index: WorkspaceIndex = context.state.setdefault(self.name, WorkspaceIndex.empty(self.vectors))
        found = await index.search(arguments["question"][:2000], self.settings.max_files, context)
        lines = [clamp(f"{each.path}:{each.line} {each.name}".rstrip(), LONGEST_LINE) for each in found]
        return Observation("\n".join(lines) or "[nothing]")
