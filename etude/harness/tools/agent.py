"""Give a piece of work to a sub-agent: the same model in a context of its own. Its last words are what comes back.

It works in the same sandbox, and its turns, tokens and seconds are those of the rollout. It cannot call another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pydantic

from etude.harness.failures import HarnessFailure, ToolError
from etude.harness.tool_context import ToolContext
from etude.harness.tools.base import Argument, Observation, Tool
from etude.harness.truncate import shorten


class Agent(Tool):
    class Settings(pydantic.BaseModel, extra="forbid", frozen=True):
        max_turns: int = pydantic.Field(10, ge=1, description="turns of one sub-agent, within those of the rollout")
        max_chars: int = pydantic.Field(4_000, ge=1, description="characters shown of its last words")

    name = "agent"
    description = "let a sub-agent do a piece of the work and tell what it found"
    arguments = (Argument("task", "what to do or to find out; it knows nothing else"),)
    samples = True

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> Observation:
        if not arguments["task"].strip():
            raise ToolError("InvalidArguments", "task is empty")
        if context.delegate is None:
            raise ToolError("Unavailable", "a sub-agent cannot call another one")
        try:
            answer = await context.delegate(arguments["task"], self.settings.max_turns)
        except HarnessFailure as failure:  # before its first turn: the prompt, which the model wrote, does not fit
            if failure.trajectory is None or failure.trajectory.turns:
                raise
            raise ToolError("InvalidArguments", "the task is too long for a context of its own") from failure
        return Observation(shorten(answer, self.settings.max_chars))
