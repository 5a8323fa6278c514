"""What the policy sees of a trajectory, and its tokens: how messages are appended behind those that are there.

A chat template may write old messages differently once new ones follow. What was sampled is never changed for that:
a new segment then begins, with the whole conversation as the template has it now.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from etude.core.errors import EtudeError
from etude.core.policy import Assistant, Call, Message, ToolResult
from etude.harness.summary import common_prefix, estimated_tokens
from etude.harness.trajectory import Appended, Cause, Parent, Segment, Trajectory
from etude.tokens.dialect import Dialect, ToolSchema
from etude.tokens.render import Rendered


@dataclass
class Conversation:
    """Without a dialect it has messages and no tokens, and nothing is appended to segments."""

    trajectory: Trajectory
    dialect: Dialect | None
    schemas: list[ToolSchema]
    context: list[int] = field(default_factory=list)  # entries of the trajectory that the policy sees

    @property
    def seen(self) -> tuple[Message, ...]:
        """What the policy sees."""
        return tuple(self.trajectory.entries[number].message for number in self.context)

    @property
    def size(self) -> int:
        """Tokens of the context; estimated where nobody has their ids."""
        if self.dialect is None:
            return estimated_tokens(self.seen)
        return len(self.trajectory.segments[-1].ids)

    def append(self, messages: Sequence[Message], numbers: Sequence[int], *, most: int, open_turn: bool) -> bool:
        """Appends to the segment, or to a new one that takes its place. False: the tokens would not fit."""
        done = self.append_to(self.trajectory.segments[-1], messages, numbers, most=most, open_turn=open_turn)
        if done != "rewrite":
            return done == "done"
        segment = self.rewritten(messages, numbers, most=most, open_turn=open_turn)
        if segment is None:
            return False
        self.trajectory.segments.append(segment)
        return True

    def append_to(
        self, segment: Segment, messages: Sequence[Message], numbers: Sequence[int], *, most: int, open_turn: bool
    ) -> Appended:
        assert self.dialect is not None
        return segment.append(messages, numbers, self.dialect, most=most, open_turn=open_turn, tools=self.schemas)

    def append_one_of(self, forms: Sequence[Message], number: int, *, most: int) -> Message | None:
        """Appends the form of a message that leaves most of the tokens before it as they are, and opens a turn.

        None: no form fits. Where the template refuses those that might, its refusal is raised.
        """
        found: list[tuple[int, Message, Segment]] = []
        refused: EtudeError | None = None
        segment = self.trajectory.segments[-1]
        for message in forms:
            try:
                done = self.append_to(segment, [message], [number], most=most, open_turn=True)
                if done == "done":
                    return message
                if done == "full":
                    return None
                if anew := self.rewritten([message], [number], most=most, open_turn=True):
                    found.append((common_prefix(segment.ids, anew.ids), message, anew))
            except EtudeError as error:
                refused = error
        if found:
            _, message, anew = max(found, key=lambda each: each[0])
            self.trajectory.segments.append(anew)
            return message
        if refused is not None:
            raise refused
        return None

    def takes_plain_turn(self, after: Sequence[Message] = ()) -> bool:
        """Whose fault it is that the template refuses to go on, to what it would have to take `after` the last turn.

        It is shown the same conversation with a plain call of a known tool in place of the last turn, or of all turns.
        If it takes one of these the model's turn was at fault; if not, we are, for using that template.
        """
        assert self.dialect is not None
        seen, tools = self.seen, self.schemas
        turns = [number for number, message in enumerate(seen) if isinstance(message, Assistant)] or [len(seen)]
        name = tools[0].name if tools else ""
        called: list[Message] = [Assistant(calls=(Call(name),)), ToolResult(name, "ok")]
        plain = called if name else [Assistant(final="ok")]
        open_turn = bool(name or after)
        for first in (turns[-1], turns[0]):
            with suppress(EtudeError):
                if self.dialect.extend(Rendered(), [*seen[:first], *plain, *after], open_turn=open_turn, tools=tools):
                    return True
        return False

    def rewritten(
        self,
        messages: Sequence[Message],
        numbers: Sequence[int],
        *,
        most: int,
        open_turn: bool,
        cause: Cause = "rewrite",
    ) -> Segment | None:
        """The whole conversation again, as the template has it now: context for what is sampled from here on.

        None: it would not fit.
        """
        segments = self.trajectory.segments
        segment = Segment(cause, Parent(len(segments) - 1, len(segments[-1].ids)))
        whole, numbers = [*self.seen, *messages], [*self.context, *numbers]
        if self.append_to(segment, whole, numbers, most=most, open_turn=open_turn) != "done":
            return None
        new = (span.start for span in segment.rendered.spans if span.message >= len(self.context))
        segment.copied = next(new, len(segment.ids))
        return segment
