"""Find files by a pattern such as `src/**/*.py`.

Matching is ours, one path component at a time, so that no pattern takes long; `find` in the sandbox names the files.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from typing import Any

import pydantic

from etude.harness.failures import ToolError
from etude.harness.tool_context import ToolContext
from etude.harness.tools.base import Argument, Observation, Tool
from etude.harness.truncate import first_lines


class Glob(Tool):
    class Settings(pydantic.BaseModel, extra="forbid", frozen=True):
        max_entries: int = pydantic.Field(100, ge=1, description="names shown")

    name = "glob"
    description = "find files by a pattern"
    arguments = (
        Argument("pattern", "such as *.py (at any depth) or src/**/test_*.py"),
        Argument("path", "folder to look in; the workspace if left out", required=False),
    )
    reads_only = True

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> Observation:
        pattern, path = arguments["pattern"], arguments.get("path", ".")
        if not pattern or len(pattern) > 500:
            raise ToolError("InvalidArguments", "pattern is empty or too long")
        entries, whole = await context.walk(path)
        base = context.relative(context.locate(path))
        prefix = "" if base == "." else base + "/"
        parts = _parts(pattern)
        files = [entry for entry in entries if not entry.endswith("/")]
        found = [name for name in files if matches(parts, name.removeprefix(prefix).split("/"))]
        return Observation(first_lines(found, self.settings.max_entries, whole))


def _parts(pattern: str) -> list[re.Pattern[str] | None]:
    """The components of a pattern; None is `**`, any number of folders. One component alone matches at any depth."""
    words = [word for word in pattern.split("/") if word not in ("", ".")]
    if len(words) == 1:
        words.insert(0, "**")
    if words and words[-1] == "**":
        words.append("*")
    return [None if word == "**" else re.compile(fnmatch.translate(word)) for word in words]


def matches(parts: list[re.Pattern[str] | None], path: list[str]) -> bool:
    """Whether all components match, by the set of places in the pattern that could be reached so far."""
    reached = _skip({0}, parts)
    for name in path:
        reached = _skip(
            {at if part is None else at + 1 for at in reached if at < len(parts) and _fits(part := parts[at], name)},
            parts,
        )
    return len(parts) in reached


def _fits(part: re.Pattern[str] | None, name: str) -> bool:
    return part is None or part.match(name) is not None


def _skip(reached: set[int], parts: list[re.Pattern[str] | None]) -> set[int]:
    """`**` also stands for no folder at all."""
    found = set(reached)
    for at in range(len(parts)):
        if at in found and parts[at] is None:
            found.add(at + 1)
    return found
