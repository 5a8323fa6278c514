"""Text of users, tools and files, made safe to pass through a chat template.

A template mixes its own marks with text that may spell the same ones, and afterwards nobody can tell them apart. So
whatever spells a control token is hidden behind a placeholder before the template sees it, and put back, as plain text,
between the control tokens that the template wrote. The beginning of a control token at the end of a text is hidden too,
since the template may write another text right behind it. Knows no messages and no template.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

OPEN, CLOSE = "etudeMARK", "q"  # around the name of a mark; plain letters, so no filter and no JSON changes it


def mark(name: str) -> str:
    return f"{OPEN}{name}{CLOSE}"


class Hiding:
    """The placeholders for one vocabulary's control tokens."""

    def __init__(self, control: Collection[str]) -> None:
        begun = {one[:length] for one in control for length in range(1, len(one))}
        self._texts = [OPEN, *control, *sorted(begun - set(control))]  # a placeholder's number is the place here
        self._numbers = {text: number for number, text in enumerate(self._texts)}
        self._begun, self._longest = begun, max(map(len, begun), default=0)
        longest_first = sorted([OPEN, *control], key=len, reverse=True)
        self._spelled = re.compile("|".join(map(re.escape, longest_first)))
        self._placeholder = re.compile(rf"{OPEN}(\d+){CLOSE}")

    def hide(self, text: str) -> str:
        tail = ""
        for length in range(min(self._longest, len(text)), 0, -1):
            if text[-length:] in self._begun:
                text, tail = text[:-length], self._mark(text[-length:])
                break
        return self._spelled.sub(lambda found: self._mark(found.group()), text) + tail

    def hide_json(self, value: Any) -> Any:
        """Hides in every text of a JSON value, keys included."""
        if isinstance(value, str):
            return self.hide(value)
        if isinstance(value, Mapping):
            return {self.hide(str(key)): self.hide_json(inner) for key, inner in value.items()}
        return [self.hide_json(inner) for inner in value] if isinstance(value, list | tuple) else value

    def hides(self, text: str) -> bool:
        return OPEN in text

    def show(self, text: str) -> str:
        """Puts back what placeholders stand for."""
        return self._placeholder.sub(lambda found: self._texts[int(found[1])], text)

    def _mark(self, text: str) -> str:
        return mark(str(self._numbers[text]))
