"""How the tools did over some trajectories: calls, errors by class, reliability, and how often calls came together.

Reliability is the share of calls that did not fail for a reason that the harness, a service or the machine answers
for (ProviderError, Timeout, HarnessBug); what the model got wrong is counted beside it. Knows no file and no logger.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from etude.core.policy import Assistant, Call, ToolResult
from etude.harness.failures import ErrorClass
from etude.harness.trajectory import Trajectory

OURS: tuple[ErrorClass, ...] = ("ProviderError", "Timeout", "HarnessBug")


@dataclass
class ToolCounts:
    """One tool."""

    calls: int = 0
    errors: Counter[ErrorClass] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def reliability(self) -> float:
        return 1 - sum(self.errors[error] for error in OURS) / self.calls if self.calls else 1.0


@dataclass
class HarnessMetrics:
    """All tools, and the turns that called them."""

    tools: dict[str, ToolCounts] = field(default_factory=dict)  # calls of tools that do not exist are under ""
    turns: int = 0
    calling_turns: int = 0
    parallel_turns: int = 0  # with more than one call
    malformed_turns: int = 0  # that broke the format
    cut_turns: int = 0  # that the token limit cut off
    summaries: int = 0
    bad_summaries: int = 0  # cut off, unreadable or empty
    stops: Counter[str] = field(default_factory=Counter)

    @property
    def parallel_rate(self) -> float:
        return self.parallel_turns / self.calling_turns if self.calling_turns else 0.0

    @property
    def total(self) -> ToolCounts:
        everything = ToolCounts()
        for counts in self.tools.values():
            everything.calls += counts.calls
            everything.errors += counts.errors
            everything.seconds += counts.seconds
        return everything

    def flat(self) -> dict[str, float | int]:
        """Names and numbers for a metrics log."""
        values: dict[str, float | int] = {
            "turns": self.turns,
            "parallel_rate": self.parallel_rate,
            "malformed_turns": self.malformed_turns,
            "cut_turns": self.cut_turns,
            "summaries": self.summaries,
            "bad_summaries": self.bad_summaries,
            "reliability": self.total.reliability,
        }
        for name, counts in sorted(self.tools.items()):
            label = name or "unknown"
            values |= {f"{label}.calls": counts.calls, f"{label}.reliability": counts.reliability}
            values |= {f"{label}.{error}": count for error, count in sorted(counts.errors.items())}
        return values


def measure(trajectories: Iterable[Trajectory]) -> HarnessMetrics:
    metrics = HarnessMetrics()
    for trajectory in trajectories:
        metrics.stops[trajectory.stop] += 1
        known = set(trajectory.tools)
        waiting: list[Call] = []
        for entry in trajectory.entries:
            # The history of an earlier conversation is no work of this rollout.
            if entry.segment < 0:
                continue
            if entry.purpose == "sub-agent":
                _count_finish(waiting, metrics)
                waiting = []
            if entry.purpose == "summary" and isinstance(entry.message, Assistant):
                metrics.summaries += 1
                metrics.bad_summaries += entry.error is not None or not entry.message.final
                waiting = []
            elif isinstance(entry.message, Assistant):
                metrics.turns += 1
                # A limit that cut a turn says nothing about whether the model knows the format.
                cut = entry.stop == "length"
                metrics.cut_turns += entry.error is not None and cut
                metrics.malformed_turns += entry.error is not None and not cut
                waiting = [] if entry.error is not None else list(entry.message.calls)
                metrics.calling_turns += bool(waiting)
                metrics.parallel_turns += len(waiting) > 1
            elif isinstance(entry.message, ToolResult) and waiting:
                # Until November 2026 a bug ended the rollout, before calls beside it had their results.
                failed = [number for number, call in enumerate(waiting) if call.name == entry.message.name]
                name = waiting.pop(failed[0] if failed and entry.error == "HarnessBug" else 0).name
                counts = metrics.tools.setdefault(name if name in known else "", ToolCounts())
                counts.calls += 1
                counts.seconds += entry.seconds
                if entry.error is not None:
                    counts.errors[entry.error] += 1
        if trajectory.stop == "finish" or (waiting and waiting[0].name == "finish"):
            _count_finish(waiting, metrics)
    return metrics


def _count_finish(waiting: list[Call], metrics: HarnessMetrics) -> None:
    """The call that ended a conversation has no result."""
    if waiting:
        metrics.tools.setdefault(waiting[0].name, ToolCounts()).calls += 1
