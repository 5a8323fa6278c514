"""Show where the functions and classes of a Python file are."""

import re

import pydantic

from etude.harness.failures import ToolError
from etude.harness.tools.base import Argument, Observation, Tool

DEFINITION = re.compile(r"\s*(?:async )?(?:def|class) \w+")


class Outline(Tool):
    class Settings(pydantic.BaseModel, extra="forbid"):
        max_entries: int = pydantic.Field(40, ge=1, description="definitions shown")

    name = "outline"
    description = "show the functions and classes of a Python file"
    arguments = (
        Argument("path", "Python file"),
        Argument("top", "only those that are not indented", "flag", required=False),
    )
    reads_only = True

    async def call(self, arguments, context):
        path = arguments["path"]
        if not path.endswith(".py"):
            raise ToolError("InvalidArguments", f"{path} is not a Python file")
        text = await context.read(path, most=1_000_000)
        found = []
        for number, line in enumerate(text.split("\n"), start=1):
            definition = DEFINITION.match(line)
            if definition and not (arguments.get("top") and line[0].isspace()):
                found.append(f"{number} {definition[0]}")
        more = len(found) - self.settings.max_entries
        if more > 0:
            found[self.settings.max_entries :] = [f"[{more} more]"]
        return Observation("\n".join(found) or "[nothing]")
