"""End the rollout. Its message is the agent's answer; nothing comes back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from etude.harness.tool_context import ToolContext
from etude.harness.tools.base import Argument, Observation, Tool


class Finish(Tool):
    name = "finish"
    description = "end the work"
    uses_sandbox = False
    arguments = (Argument("message", "what was done, for the user", required=False),)

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> Observation:
        return Observation("", ends=True)
