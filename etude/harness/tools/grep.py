r"""Search files for a regular expression, line by line.

The pattern is the model's, so it runs where it can do no harm: `grep` in the sandbox, under a time limit. Patterns are
POSIX extended ones, for which grep needs no backtracking, with `\d` and `\D` on top since every model writes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pydantic

from etude.harness.failures import ToolError
from etude.harness.tool_context import SKIPPED, ToolContext
from etude.harness.tools.base import Argument, Observation, Tool
from etude.harness.truncate import clamp, first_lines
from etude.tokens.tokenizer import to_text

# $1 pattern, $2 folder or file, $3 file name pattern. Sorted, so that a cut list is always cut at the same place.
# /dev/null makes grep name the file even when there is only one.
SCRIPT = rf"""
[ -e "$2" ] || exit 4
grep -E -e "$1" /dev/null; [ $? -lt 2 ] || exit 3
find -H "$2" \( {" -o ".join(f"-name {name}" for name in SKIPPED)} \) -prune -o -type f -name "$3" -print0 |
sort -z | xargs -0 grep -nIE -e "$1" /dev/null
exit 0
"""


class Grep(Tool):
    class Settings(pydantic.BaseModel, extra="forbid", frozen=True):
        seconds: float = pydantic.Field(10.0, gt=0, description="time limit")
        max_lines: int = pydantic.Field(50, ge=1, description="lines shown")
        max_line_chars: int = pydantic.Field(200, ge=1, description="characters shown of one line")

    name = "grep"
    description = "find lines that match a regular expression"
    arguments = (
        Argument("pattern", "extended regular expression"),
        Argument("path", "file or folder; the workspace if left out", required=False),
        Argument("files", "only files with such names, as *.py", required=False),
    )
    reads_only = True

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> Observation:
        pattern, path = arguments["pattern"], arguments.get("path", ".")
        if not pattern:
            raise ToolError("InvalidArguments", "pattern is empty")
        where = context.locate(path)
        words = [translate(pattern), "./" + context.relative(where), arguments.get("files", "*")]
        result = await context.run(["sh", "-c", SCRIPT, "grep", *words], seconds=self.settings.seconds)
        if result.timed_out:
            raise ToolError("Timeout", "the search took too long; use a simpler pattern or a smaller folder")
        if result.code == 4:
            raise ToolError("UnexpectedEnvironment", f"{path}: no such file or folder")
        if result.code == 3:
            reason = to_text(result.stderr).strip().rpartition(": ")[2]
            raise ToolError("InvalidArguments", f"pattern is not a regular expression: {clamp(reason, 100)}")
        lines = to_text(result.stdout).removesuffix("\n").split("\n") if result.stdout else []
        shown = [clamp(_named(line), self.settings.max_line_chars) for line in lines]
        return Observation(first_lines(shown, self.settings.max_lines, not result.truncated))


def _named(line: str) -> str:
    """`./src/a.py:3:text` without what the model does not need."""
    return line.removeprefix("./").removeprefix("./")


def translate(pattern: str) -> str:
    r"""`\d` and `\D` in POSIX words. Inside brackets only `\d` can be said, and there without its own brackets."""
    out: list[str] = []
    at, inside = 0, False
    while at < len(pattern):
        character = pattern[at]
        if character == "\\" and at + 1 < len(pattern):
            after = pattern[at + 1]
            if after == "d":
                out.append("0-9" if inside else "[0-9]")
            elif after == "D" and not inside:
                out.append("[^0-9]")
            else:
                out.append(character + after)
            at += 2
            continue
        if character == "[" and not inside:
            inside = True
            # A bracket right after the opening (or its ^) is a plain character.
            lead = 2 if pattern[at + 1 : at + 2] == "^" else 1
            if pattern[at + lead : at + lead + 1] == "]":
                lead += 1
            out.append(pattern[at : at + lead])
            at += lead
            continue
        if character == "]":
            inside = False
        out.append(character)
        at += 1
    return "".join(out)
