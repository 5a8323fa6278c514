"""The terminal in place of a tool: `cat`, `grep`, `sed -i` and the like through `run`, where the agent has the tool.

Published runs collapsed to the terminal alone. Only plain commands count: one that pipes or tests does more than a
tool would.
"""

from __future__ import annotations

import re

from etude.behaviours.base import Behaviour, Site, steps_of
from etude.harness.trajectory import Trajectory

NAME = "terminal_only"
# By tool: the commands that do what it does.
INSTEAD: dict[str, re.Pattern[str]] = {
    "edit": re.compile(r"(?:sed|perl)\s+(?:\S+\s+)*?-\w*i"),
    "write": re.compile(r"(?:cat|echo|printf|tee)\b[^|&;]*>{1,2}\s*\S+|cat\s*>"),
    "read": re.compile(r"(?:cat|head|tail|less|more|nl)\s+[^|&;>]+$|sed\s+-n\s+[^|&;>]+$"),
    "grep": re.compile(r"(?:e?grep|rg|ag)\s+[^|&;>]+$"),
    "glob": re.compile(r"find\s+[^|&;>]+$"),
    "delete": re.compile(r"rm\s+(?:-f\s+)?[^-|&;>\s][^|&;>]*$"),
    "list": re.compile(r"ls(?:\s+[^|&;>]+)?$"),
}


class TerminalOnly(Behaviour):
    def sites(self, trajectory: Trajectory) -> list[Site]:
        found = []
        for step in steps_of(trajectory):
            if step.call.name != "run":
                continue
            command = step.call.arguments.get("command", "").strip()
            tool = next((t for t, rule in INSTEAD.items() if t in trajectory.tools and rule.match(command)), None)
            if tool is not None:
                found.append(Site(step.turn, f"{NAME}.{tool}", f"There is a tool for this: {tool}."))
        return found
