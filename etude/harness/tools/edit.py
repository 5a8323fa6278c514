"""Replace one exact piece of a file. It must be there exactly once; otherwise the answer says what is there instead.

No fuzzy matching: it would hide mistakes that training should mend. Only line ends are forgiving: a file with CRLF
keeps it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pydantic

from etude.harness.failures import ToolError
from etude.harness.tool_context import ToolContext
from etude.harness.tools.base import Argument, Observation, Tool
from etude.harness.truncate import clamp

NAMED = 5  # places of a piece that is not unique
COMPARED = 2000  # lines of a file looked through for the nearest one
COMPARED_CHARS = 120  # of each


class Edit(Tool):
    class Settings(pydantic.BaseModel, extra="forbid", frozen=True):
        max_bytes: int = pydantic.Field(4 << 20, ge=1, description="largest file, bytes")
        context: int = pydantic.Field(1, ge=0, description="lines shown around the nearest one after a miss")

    name = "edit"
    description = "replace a text that occurs exactly once in a file"
    arguments = (
        Argument("path", "file"),
        Argument("old", "text to replace, exactly as in the file"),
        Argument("new", "text to put there"),
    )

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> Observation:
        path, old, new = arguments["path"], arguments["old"], arguments["new"]
        if not old:
            raise ToolError("InvalidArguments", "old is empty; to make a file use write")
        if old == new:
            raise ToolError("InvalidArguments", "old and new are the same")
        text = await context.replace(path, old, new, most=self.settings.max_bytes)
        # A model writes plain line ends; asking it for CRLF would teach nothing.
        if text is not None and old not in text and "\r\n" in text and "\r" not in old and "\n" in old + new:
            old, new = old.replace("\n", "\r\n"), new.replace("\n", "\r\n")
            text = await context.replace(path, old, new, most=self.settings.max_bytes)
        if text is None:
            return Observation("ok")
        places = _places(text, old)
        if len(places) > 1:
            lines = ", ".join(str(text.count("\n", 0, place) + 1) for place in places[:NAMED])
            rest = ", ..." if len(places) > NAMED else ""
            raise ToolError(
                "UnexpectedEnvironment", f"old occurs {len(places)} times (lines {lines}{rest}); make it longer"
            )
        raise ToolError("UnexpectedEnvironment", f"old is not in {path}{self._nearest(text, old)}")

    def _nearest(self, text: str, old: str) -> str:
        """The place that was probably meant: a line that is the same but for blanks, or else the most alike."""
        lines = text.split("\n")[:COMPARED]
        target = next((line.strip() for line in old.split("\n") if line.strip()), "")
        stripped = [line.strip() for line in lines]
        if not target:
            return ""
        if target in stripped:
            found, why = stripped.index(target), "blanks or the lines after it differ"
        else:
            scores = [_alike(target, line) for line in stripped]
            found, why = scores.index(max(scores)), "nearest"
            if scores[found] < 0.5:
                return ""
        first = max(0, found - self.settings.context)
        shown = lines[first : found + self.settings.context + 1]
        return f"; {why}, line {found + 1}:\n" + "\n".join(clamp(line, 200) for line in shown)


def _alike(one: str, other: str) -> float:
    """Share of neighbouring characters that two lines have in common. Its time is linear, whatever a model writes."""
    pairs = [Counter(pairwise(line[:COMPARED_CHARS])) for line in (one, other)]
    total = pairs[0].total() + pairs[1].total()
    return 2 * (pairs[0] & pairs[1]).total() / total if total else 0.0


def _places(text: str, piece: str) -> list[int]:
    """Every place of a piece, overlapping ones included: `aa` is twice in `aaa`, so neither is the one."""
    places: list[int] = []
    at = text.find(piece)
    while at >= 0 and len(places) < 1000:
        places.append(at)
        at = text.find(piece, at + 1)
    return places
