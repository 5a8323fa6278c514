"""What one suite of attacks came to."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class SuiteResult:
    """How many attacks were tried and caught, and what else went wrong."""

    suite: str
    tried: int = 0
    missed: list[str] = field(default_factory=list)  # attacks that succeeded, or that nobody noticed
    false_alarms: list[str] = field(default_factory=list)  # honest work that was accused
    broken: list[str] = field(default_factory=list)  # attacks that did not do what they should: they prove nothing
    rows: dict[str, dict[str, int]] = field(default_factory=dict)  # counts by family, where a suite keeps them
    seconds: float = 0.0

    @property
    def caught(self) -> int:
        return self.tried - len(self.missed)

    @property
    def ok(self) -> bool:
        return bool(self.tried) and not (self.missed or self.false_alarms or self.broken)

    def facts(self) -> dict[str, Any]:
        return {"ok": self.ok, "caught": self.caught, **asdict(self)}
