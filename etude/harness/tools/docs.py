"""Search documentation that lies in a folder of this machine: what the web would be, the same in every rollout.

The folder is the recipe's: .md, .rst and .txt files that whoever trains has chosen. It is read once and never changed.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pydantic

from etude.core.errors import EtudeError
from etude.harness.code_search.index import CodeIndex
from etude.harness.failures import ToolError
from etude.harness.tool_context import ToolContext
from etude.harness.tools.base import Argument, Observation, Tool
from etude.harness.truncate import shorten

HEADING = re.compile(r"^(?=#{1,4} )|^(?=\S.*\n[=~^-]{3,}$)", re.MULTILINE)
LARGEST = 2_000_000  # bytes of a page


class Docs(Tool):
    class Settings(pydantic.BaseModel, extra="forbid", frozen=True):
        folder: str = pydantic.Field("", description="folder of documentation on this machine; empty: there is none")
        max_sections: int = pydantic.Field(3, ge=1, description="sections shown")
        max_chars: int = pydantic.Field(1500, ge=1, description="characters shown of one")

    name = "docs"
    description = "search the documentation"
    arguments = (Argument("question", "what to look for, in plain words"),)
    reads_only = True

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        if settings.folder and not Path(settings.folder).is_dir():
            raise EtudeError(f"the folder of documentation {settings.folder} does not exist")
        self.index, self.sections, self.reading = CodeIndex(), dict[str, str](), asyncio.Lock()

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> Observation:
        if not self.settings.folder:
            raise ToolError("Unavailable", "there is no documentation here")
        async with self.reading:  # shared by all rollouts, which only read it
            if not self.sections:  # both at once: a call may be given up while the thread still reads
                self.index, self.sections = await asyncio.to_thread(_read, Path(self.settings.folder))
            found = await asyncio.to_thread(self.index.search, arguments["question"][:2000], self.settings.max_sections)
        shown = [f"{each.path}\n{shorten(self.sections[each.path], self.settings.max_chars)}" for each in found]
        return Observation("\n\n".join(shown) or "[nothing]")


def _read(folder: Path) -> tuple[CodeIndex, dict[str, str]]:
    index, sections = CodeIndex(), dict[str, str]()
    for file in sorted(path for path in folder.rglob("*") if path.suffix in (".md", ".rst", ".txt")):
        if file.is_file() and not file.is_symlink() and file.stat().st_size <= LARGEST:
            text = file.read_text(encoding="utf-8", errors="replace")
            for number, section in enumerate(filter(str.strip, HEADING.split(text)), start=1):
                name = f"{file.relative_to(folder)}, section {number}"
                sections[name] = section.strip()
                index.put(name, section)
    return index, sections
