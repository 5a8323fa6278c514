"""Calls as JSON between tags: Hermes, Qwen2.5 and Qwen3.

<tool_call>
{"name": "read", "arguments": {"path": "a.py"}}
</tool_call>
"""

from __future__ import annotations

from collections.abc import Sequence

from etude.tokens.formats.base import Calls, Format, make_call, read_json
from etude.tokens.vocabulary import MarkedText

OPEN, CLOSE = "<tool_call>", "</tool_call>"


def _read(pieces: Sequence[MarkedText]) -> Calls:
    found = Calls()
    at = 0
    while at < len(pieces):
        if pieces[at].mark != OPEN:
            found.fault = "WrongOrder", f"{CLOSE} stands outside a call"
            return found
        value = read_json(pieces, at)
        if isinstance(value, str):
            # What lacks its end tag was cut off by a limit, and is not told to the model as a mistake in its JSON.
            closed = any(piece.mark == CLOSE for piece in pieces[at:])
            found.fault = ("WrongOrder", value) if closed else ("CutOff", f"a call has no {CLOSE}")
            return found
        said, at, rest = value
        call = make_call(said.get("name"), said.get("arguments", {})) if isinstance(said, dict) else make_call(said, {})
        if isinstance(call, str):
            found.fault = "WrongOrder", call
            return found
        if rest.strip() or at + 1 == len(pieces) or pieces[at + 1].mark != CLOSE:
            found.fault = "CutOff", f"a call has no {CLOSE}"
            return found
        found.calls.append(call)
        if pieces[at + 1].text.strip():
            found.fault = "WrongOrder", "words stand after a call: they come before all calls"
            return found
        at += 2
    return found


HERMES = Format(
    name="hermes",
    marks=(OPEN, CLOSE),
    opener=OPEN,
    call=OPEN,
    read=_read,
    # Qwen3-Coder has the same tags around a call, and another form inside them.
    detect=lambda template: OPEN in template and "<function=" not in template,
)
