"""Tools by name. A built-in one is imported when it is first asked for; `./mine.py:Mine` is the user's own file.

Knows the names of files, nothing of what is in them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from etude.core.component import build, load_class
from etude.core.errors import EtudeError
from etude.harness.tools.base import Tool

TOOLS = {
    "read": "etude.harness.tools.read:Read",
    "edit": "etude.harness.tools.edit:Edit",
    "write": "etude.harness.tools.write:Write",
    "list": "etude.harness.tools.list:List",
    "glob": "etude.harness.tools.glob:Glob",
    "grep": "etude.harness.tools.grep:Grep",
    "run": "etude.harness.tools.run:Run",
    "todo": "etude.harness.tools.todo:Todo",
    "finish": "etude.harness.tools.finish:Finish",
    "delete": "etude.harness.tools.delete:Delete",
    "lints": "etude.harness.tools.lints:Lints",
    "background": "etude.harness.tools.background:Background",
    "search": "etude.harness.tools.search:Search",
    "agent": "etude.harness.tools.agent:Agent",
    "service": "etude.harness.tools.service:Service",
    "docs": "etude.harness.tools.docs:Docs",
}


def build_tools(specs: Sequence[Mapping[str, Any]], where: str = "harness.tools") -> dict[str, Tool]:
    """The tools of a recipe (`[{"use": "read", "max_lines": 100}, ...]`), by the names that the model calls them."""
    tools: dict[str, Tool] = {}
    for number, spec in enumerate(specs):
        place = f"{where}[{number}]"
        tool = build("tool", spec, TOOLS, place)
        if not isinstance(tool, Tool):
            raise EtudeError(f"{place}: {spec['use']} is not a tool; derive it from etude.harness.tools.base.Tool")
        missing = [name for name in ("name", "description") if not isinstance(getattr(tool, name, None), str)]
        if missing:
            raise EtudeError(f"{place}: the tool {spec['use']} lacks its {missing[0]}")
        if tool.name in tools:
            raise EtudeError(f"{place}: two tools are called {tool.name!r}; keep one")
        tools[tool.name] = tool
    return tools


@cache
def arguments_of(name: str) -> tuple[str, ...]:
    """The names of the arguments of a tool of the table."""
    return tuple(argument.name for argument in load_class("tool", name, TOOLS).arguments)
