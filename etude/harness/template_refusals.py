"""Whose fault it is that a chat template refuses to go on: the model's turn, or ours for using that template.

The template is shown the same conversation with a plain call of a known tool in place of the last turn. If it takes
that, the turn was at fault.
"""

from __future__ import annotations

from collections.abc import Sequence

from etude.core.errors import EtudeError
from etude.core.policy import Assistant, Call, Message, ToolResult
from etude.tokens.dialect import Dialect, ToolSchema
from etude.tokens.render import Rendered


def takes_plain_turn(dialect: Dialect, seen: Sequence[Message], tools: Sequence[ToolSchema]) -> bool:
    """Whether the template would go on after another last turn; `seen` is the context with the turn that it refuses."""
    last = max((number for number, message in enumerate(seen) if isinstance(message, Assistant)), default=len(seen))
    name = tools[0].name if tools else ""
    plain: list[Message] = [Assistant(calls=(Call(name),)), ToolResult(name, "ok")] if name else [Assistant(final="ok")]
    try:
        return dialect.extend(Rendered(), [*seen[:last], *plain], open_turn=bool(name), tools=tools)
    except EtudeError:
        return False
