"""Answers that only look like one: every function that a solution changes returns the same thing.

Works on text alone.
"""

from __future__ import annotations

from etude.tasks.javascript.functions import functions
from etude.tasks.javascript.parsing import parse

STUBS = ("undefined", "null", "true", "[]")


def stubbed(before: bytes, after: bytes, value: str) -> bytes | None:
    """The solution's file with every function that it changes returning `value`; None where it changes none."""
    if parse(after) is None:
        return None
    old = {(each.name, each.node.text) for each in functions(before)}
    changed = [each for each in functions(after) if (each.name, each.node.text) not in old]
    for each in sorted(changed, key=lambda found: -found.body.start_byte):
        body = each.body
        after = after[: body.start_byte] + f"{{ return {value}; }}".encode() + after[body.end_byte :]
    return after if changed else None
