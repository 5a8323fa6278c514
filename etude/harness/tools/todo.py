"""Keep a list of what is to be done. The model writes it anew each time; it lives beside the sandbox, not in it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pydantic

from etude.harness.failures import ToolError
from etude.harness.tool_context import ToolContext
from etude.harness.tools.base import Argument, Observation, Tool

STATES = {" ": "open", "~": "begun", "x": "done", "-": "dropped"}
ITEM = re.compile(r"(?:[-*] )?\[([ ~xX-])\] +(\S.*)")


class Todo(Tool):
    class Settings(pydantic.BaseModel, extra="forbid", frozen=True):
        max_items: int = pydantic.Field(50, ge=1, description="items in the list")

    name = "todo"
    description = "write the list of steps anew"
    uses_sandbox = False
    arguments = (Argument("items", "one a line: [ ] open, [~] begun, [x] done, [-] dropped"),)

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> Observation:
        items: list[tuple[str, str]] = []
        for line in filter(str.strip, arguments["items"].split("\n")):
            found = ITEM.fullmatch(line.strip())
            if found is None:
                raise ToolError("InvalidArguments", "each line of items starts with [ ], [~], [x] or [-]")
            items.append((STATES[found[1].lower()], found[2]))
        if len(items) > self.settings.max_items:
            raise ToolError("InvalidArguments", f"there are more than {self.settings.max_items} items")
        context.state[self.name] = items
        counts = Counter(state for state, _ in items)
        summary = [f"{counts[state]} {state}" for state in STATES.values() if counts[state]]
        return Observation(", ".join(summary) or "none")

    def remembered(self, context: ToolContext) -> str:
        items: list[tuple[str, str]] = context.state.get(self.name, [])
        marks = {state: mark for mark, state in STATES.items()}
        return "\n".join(["Steps:", *(f"[{marks[state]}] {text}" for state, text in items)]) if items else ""
