"""Python that reviewers would send back: a few rules on the lines that the agent wrote. Linters know more."""

from __future__ import annotations

import re

import pydantic

from etude.behaviours.base import Behaviour, Site
from etude.behaviours.written_code import written_code
from etude.harness.trajectory import Trajectory

NAME = "style"
RULES: dict[str, tuple[re.Pattern[str], str]] = {
    "bare_except": (re.compile(r"\s*except\s*:"), "Name the exception that you expect instead of a bare except."),
    "star_import": (re.compile(r"\s*from\s+\S+\s+import\s+\*"), "Import names one by one, not with a star."),
    "mutable_default": (
        re.compile(r"\s*(?:async\s+)?def\s.*=\s*(?:\[\]|\{\}|set\(\)|list\(\)|dict\(\))"),
        "A default that can be changed is shared by all calls: use None.",
    ),
    "debug_print": (
        re.compile(r"\s*(?:print\(\s*f?[\"'](?:debug|here|xxx|>>>|---)|breakpoint\(\)|import pdb)", re.I),
        "Take prints and breakpoints for debugging out again.",
    ),
    "trailing_blank": (re.compile(r".*\S[ \t]+$"), "Leave no blanks at the ends of lines."),
}


class Style(Behaviour):
    class Settings(pydantic.BaseModel, extra="forbid", frozen=True):
        longest: int = pydantic.Field(120, ge=40, description="characters of a line")

    settings: Settings

    def sites(self, trajectory: Trajectory) -> list[Site]:
        found = []
        for change in written_code(trajectory):
            if not change.path.endswith(".py"):
                continue
            lines = change.new_lines
            broken = [(name, hint) for name, (rule, hint) in RULES.items() if any(map(rule.match, lines))]
            if any(len(line) > self.settings.longest for line in lines):
                broken.append(("long_line", f"Keep lines within {self.settings.longest} characters."))
            found += [Site(change.step.turn, f"{NAME}.{name}", hint) for name, hint in broken]
        return found
