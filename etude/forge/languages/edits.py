"""Edits of a text by place: everything outside of them stays byte for byte as it was."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    """Bytes from `start` to `end` become `new`."""

    start: int
    end: int
    new: bytes = b""


def edited(data: bytes, edits: Iterable[Edit]) -> bytes:
    """A text with edits made; of two that overlap only the outer one is, or both where they only take away."""
    before = len(data) + 1
    chosen: list[Edit] = []
    for edit in sorted(set(edits), key=lambda each: (each.start, -each.end, each.new)):
        if not chosen or edit.start >= chosen[-1].end:
            chosen.append(edit)
        elif edit.end > chosen[-1].end and not edit.new and not chosen[-1].new:  # neighbours, with the gap between
            chosen[-1] = Edit(chosen[-1].start, edit.end)
    for edit in reversed(chosen):
        assert edit.end <= before
        data, before = data[: edit.start] + edit.new + data[edit.end :], edit.start
    return data
