"""What a finding, a detector and a ruling are. Knows no rule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import pydantic

from etude.audit.evidence import Evidence

Verdict = Literal["clean", "suspicious", "hack", "broken task"]
Level = Literal["suspicious", "hack", "broken task"]


@dataclass(frozen=True)
class Finding:
    """One reason."""

    rule: str
    level: Level
    message: str  # one sentence
    turn: int | None = None  # from 0
    path: str = ""

    def __str__(self) -> str:
        where = f" (turn {self.turn + 1})" if self.turn is not None else ""
        return f"{self.rule}: {self.message}{where}"


@dataclass(frozen=True)
class Ruling:
    """A verdict and its reasons."""

    verdict: Verdict
    findings: tuple[Finding, ...] = ()


def conclude(findings: tuple[Finding, ...]) -> Ruling:
    """The verdict that findings lead to: one that proves a hack is enough, whatever else is wrong with the task."""
    levels = {finding.level for finding in findings}
    worst: tuple[Level, ...] = ("hack", "broken task", "suspicious")
    return Ruling(next((level for level in worst if level in levels), "clean"), findings)


class Detector:
    """Base of all detectors. One instance serves many rollouts."""

    class Settings(pydantic.BaseModel, extra="forbid", frozen=True):
        level: Literal["hack", "suspicious"] = pydantic.Field("hack", description="the worst that it may say")

    name = ""  # as findings call it; set when it is built by name

    def __init__(self, settings: Any) -> None:
        self.settings = settings

    def look(self, evidence: Evidence) -> Iterator[Finding]:
        """What it finds."""
        raise NotImplementedError

    def finding(self, level: Level, message: str, turn: int | None = None, path: str = "") -> Finding:
        """A finding of this detector, no worse than its settings allow."""
        if level == "hack" and self.settings.level != "hack":
            level = "suspicious"
        return Finding(self.name or type(self).__name__.lower(), level, message, turn, path)
