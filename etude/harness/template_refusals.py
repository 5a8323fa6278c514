"""Whose fault it is that a chat template refuses to go on: the model's turn, or ours for using that template.

The template is shown the same conversation with a plain call of a known tool in place of the last turn, or of all
turns. If it takes one of these, the model was at fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from etude.core.errors import EtudeError
from etude.core.policy import Assistant, Call, Message, ToolResult
from etude.tokens.dialect import Dialect, ToolSchema
from etude.tokens.render import Rendered


def takes_plain_turn(
    dialect: Dialect, seen: Sequence[Message], tools: Sequence[ToolSchema], after: Sequence[Message] = ()
) -> bool:
    """Whether the template would go on after another last turn, or had the model said nothing but that.

    `seen` is the context with the turn behind which it refuses, `after` what it would have to take there.
    """
    turns = [number for number, message in enumerate(seen) if isinstance(message, Assistant)] or [len(seen)]
    name = tools[0].name if tools else ""
    plain: list[Message] = [Assistant(calls=(Call(name),)), ToolResult(name, "ok")] if name else [Assistant(final="ok")]
    for first in (turns[-1], turns[0]):
        with suppress(EtudeError):
            if dialect.extend(Rendered(), [*seen[:first], *plain, *after], open_turn=bool(name or after), tools=tools):
                return True
    return False
