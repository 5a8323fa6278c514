"""Ask the services that stand beside the repository: its issue tracker, logs, metrics.

Which there are, the task declares; where it declares none, every call is answered with an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pydantic

from etude.harness.failures import ToolError
from etude.harness.tool_context import ToolContext
from etude.harness.tools.base import Argument, Observation, Tool
from etude.harness.truncate import shorten

LONGEST_QUERY = 500  # characters that are looked at


class Service(Tool):
    class Settings(pydantic.BaseModel, extra="forbid", frozen=True):
        max_chars: int = pydantic.Field(4_000, ge=1, description="characters shown of an answer")

    name = "service"
    description = "ask a service beside the repository: issues, logs or metrics"
    arguments = (
        Argument("name", "issues, logs or metrics"),
        Argument("query", "words to look for, the number of an issue, or the name of a metric", required=False),
    )
    reads_only = True

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> Observation:
        if context.backend is None:
            raise ToolError("Unavailable", "this task has no services")
        # In a thread: many records and a long query must not stop other rollouts.
        answer = await asyncio.to_thread(
            context.backend.ask, arguments["name"], arguments.get("query", "")[:LONGEST_QUERY]
        )
        return Observation(shorten(answer, self.settings.max_chars))
