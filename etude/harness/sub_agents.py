"""Sub-agents: a piece of work given to a context of its own, in the same sandbox and within the same limits.

    parent:     ... call of agent | ---------------------- | its last words as the result ...
    sub-agent:                    | system, task, turns ... |    its own segments, cause "sub-agent"

While it works its trajectory is its own. When the whole rollout has ended, `join` puts the entries and segments of all
sub-agents behind those of the agent, so that each conversation stays in one piece; a segment's parent says from where
it left. One segment is one training sequence here as everywhere, and all share the rollout's outcome.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from etude.core.policy import Assistant
from etude.core.settings import AgentLimits
from etude.harness.failures import ToolError
from etude.harness.summary import estimated_tokens
from etude.harness.trajectory import Parent, Trajectory


@dataclass(frozen=True)
class SubAgent:
    """What one of them did, and where it was called."""

    trajectory: Trajectory
    segment: int  # of the agent, or its context where nobody has ids
    offset: int  # tokens of that segment

    @property
    def sampling_seconds(self) -> float:
        return sum(entry.seconds for entry in self.trajectory.entries if isinstance(entry.message, Assistant))

    @property
    def tokens(self) -> int:
        if not self.trajectory.segments:
            return estimated_tokens(self.trajectory.messages)
        return sum(len(segment.ids) - segment.copied for segment in self.trajectory.segments)

    @property
    def answer(self) -> str:
        """What the agent that called it reads."""
        stop = self.trajectory.stop
        words = self.trajectory.last_words or "[it said nothing]"
        return words if stop in ("finish", "final") else f"{words}\n[it was stopped: {stop or 'a failure'}]"

    def join(self, trajectory: Trajectory) -> None:
        """Puts its work behind the agent's own."""
        entries, segments = len(trajectory.entries), len(trajectory.segments)
        # Without ids an entry's segment is the number of its context.
        first = segments or 1 + max((entry.segment for entry in trajectory.entries), default=0)
        for segment in self.trajectory.segments:
            segment.messages = [number + entries for number in segment.messages]
            if segment.parent is None:
                segment.cause, segment.parent = "sub-agent", Parent(self.segment, self.offset)
            else:
                segment.parent = Parent(segment.parent.segment + segments, segment.parent.offset)
            trajectory.segments.append(segment)
        for number, entry in enumerate(self.trajectory.entries):
            purpose = "sub-agent" if number == 0 else entry.purpose
            trajectory.entries.append(replace(entry, segment=entry.segment + first, purpose=purpose))


def limits_left(
    limits: AgentLimits, most_turns: int, turns: int, sampled: int, seconds: float, tokens: int | None
) -> AgentLimits:
    """What a sub-agent may use: the rest of the rollout, but for one turn that reads its answer.

    `tokens` are those left to all contexts together, where the rollout may have several.
    """
    turns, sampled = min(most_turns, limits.turns - turns - 1), limits.sampled_tokens - sampled - 1
    if turns < 1 or sampled < 1 or seconds <= 0 or (tokens is not None and tokens < limits.context_tokens):
        raise ToolError("InvalidArguments", "too little of the rollout's turns, tokens or time is left for that")
    return replace(limits, turns=turns, sampled_tokens=sampled, seconds=seconds, rollout_tokens=tokens or 0)
