"""A hint above one sampled turn, as tokens: what a teacher sees where the student saw none.

The segment is replayed with the model's dialect up to the turn, the hint is said by the user right above it, and the
ids that were sampled follow as they are. A hint that would change any token before it is dropped: some templates
rewrite history when the user speaks. Knows no behaviour and no loss.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from etude.core.errors import EtudeError
from etude.core.policy import Assistant, Message, User
from etude.harness.trajectory import Segment, Trajectory
from etude.tokens.dialect import Dialect, ToolSchema
from etude.tokens.render import Rendered

OPENING = "Hint: "  # what demonstrations of heeding a hint begin with, and so every hint


@dataclass(frozen=True)
class Hinted:
    """The teacher's tokens are ids[:at] + inserted + ids[start:end] of one segment's ids."""

    site: int  # place in the rollout's sites
    segment: int
    at: int  # where the hint stands: what is before it is unchanged
    inserted: tuple[int, ...]
    start: int  # the sampled turn
    end: int


def hint_message(hint: str) -> User:
    """A hint as the model reads it."""
    return User(OPENING + hint)


def place_hints(
    trajectory: Trajectory, hints: Sequence[tuple[int, str]], dialect: Dialect, tools: Sequence[ToolSchema] = ()
) -> list[Hinted]:
    """The hints, each (entry of the turn, text), that can be put above their turns; the others are left out.

    Several hints for one turn are one, under the number of the first. Empty texts say nothing and are left out too.
    """
    if level := trajectory.terms.effort:  # a template that states it wrote so above every turn
        dialect = dialect.stating_effort(level) or dialect
    by_turn: dict[int, list[int]] = defaultdict(list)
    for number, (entry, text) in enumerate(hints):
        if text and 0 <= entry < len(trajectory.entries) and trajectory.entries[entry].segment >= 0:
            by_turn[entry].append(number)
    found = []
    for place, segment in enumerate(trajectory.segments):
        here = {entry: numbers for entry, numbers in by_turn.items() if trajectory.entries[entry].segment == place}
        if here:
            wanted = {entry: (numbers[0], " ".join(hints[n][1] for n in numbers)) for entry, numbers in here.items()}
            found += _replay(trajectory, place, segment, wanted, dialect, tools)
    return sorted(found, key=lambda each: each.site)


def _replay(
    trajectory: Trajectory,
    place: int,
    segment: Segment,
    wanted: dict[int, tuple[int, str]],
    dialect: Dialect,
    tools: Sequence[ToolSchema],
) -> list[Hinted]:
    """One pass over a segment: at each turn that has a hint, the hint is written, looked at and taken back."""
    turns = _own_turns(segment)
    rendered, waiting, last = Rendered(), list[Message](), 0
    found = []
    for number, entry in enumerate(segment.messages):
        record = trajectory.entries[entry]
        if not (isinstance(record.message, Assistant) and record.segment == place and number in turns):
            waiting.append(record.message)
            continue
        start, end = turns[number]
        if not dialect.extend(rendered, waiting, open_turn=False, tools=tools):
            break
        waiting = []
        if entry in wanted:
            inserted = _insert(rendered, wanted[entry][1], segment.ids[:start], last, dialect, tools)
            if inserted is not None:
                at, ids = inserted
                found.append(Hinted(wanted[entry][0], place, at, ids, start, end))
        if entry == max(wanted) or not dialect.extend(rendered, (), open_turn=True, tools=tools):
            break
        # Where the dialect writes anything else than it did in the rollout, nothing behind it can be trusted.
        if rendered.ids != segment.ids[:start]:
            break
        dialect.append_sampled(rendered, segment.ids[start:end])
        last = end
    return found


def _insert(
    rendered: Rendered, hint: str, before: list[int], last: int, dialect: Dialect, tools: Sequence[ToolSchema]
) -> tuple[int, tuple[int, ...]] | None:
    """Where a hint leaves the tokens `before` a turn, and what stands from there to the turn; `rendered` stays.

    None if it cannot be written, or if any token up to `last`, the end of the last sampled turn, would change.
    """
    mark = rendered.mark()
    try:
        if not dialect.extend(rendered, [hint_message(hint)], open_turn=True, tools=tools):
            return None
        ids = list(rendered.ids)
    except EtudeError:  # a template that refuses a user who speaks twice
        return None
    finally:
        rendered.rewind(mark)
    at = next((i for i, (a, b) in enumerate(zip(ids, before, strict=False)) if a != b), min(len(ids), len(before)))
    return (at, tuple(ids[at:])) if at >= max(1, last) else None


def _own_turns(segment: Segment) -> dict[int, tuple[int, int]]:
    """Where the sampled tokens of each turn lie, by the number of its message in the segment."""
    turns: dict[int, tuple[int, int]] = {}
    for span in segment.rendered.spans:
        if span.own and span.message < len(segment.messages) and segment.origins[span.start] != "environment":
            start, _ = turns.get(span.message, (span.start, 0))
            turns[span.message] = start, span.end
    return turns
