"""Pay for short code, charge for commands that failed."""

import pydantic

from etude.core.policy import ToolResult
from etude.reward.base import Part


class Tidy(Part):
    class Settings(pydantic.BaseModel, extra="forbid"):
        growth: int = pydantic.Field(20, ge=1, description="added lines that cost the whole of it")
        failed_call: float = pydantic.Field(0.1, ge=0, description="cost of a tool call that failed")

    def score(self, rollout):
        grown = 0
        for file in rollout.changes.files:
            before = rollout.task.workspace.get(file.path, b"")
            grown += (file.data or b"").count(b"\n") - before.count(b"\n")
        entries = rollout.trajectory.entries
        failed = sum(entry.error is not None for entry in entries if isinstance(entry.message, ToolResult))
        return 1 - max(0, grown) / self.settings.growth - self.settings.failed_call * failed
