"""HTML that cannot be broken by what it shows: every text is escaped unless it was made here.

Characters that are no text (control characters, stray surrogates, marks that turn the reading direction) come out as
visible escapes. Knows nothing of what is written.
"""

from __future__ import annotations

import html
from collections.abc import Iterable

from etude.rollout.view import printable


class Html(str):
    """Finished markup."""

    __slots__ = ()


Child = str | int | None | Iterable["Child"]


def text(value: str | int) -> Html:
    """A text as markup."""
    return value if isinstance(value, Html) else Html(html.escape(printable(str(value)), quote=True))


def join(*children: Child) -> Html:
    """Markup of several children; texts are escaped, None is nothing."""
    parts: list[str] = []
    for child in children:
        if isinstance(child, str | int):
            parts.append(text(child))
        elif child is not None:
            parts.append(join(*child))
    return Html("".join(parts))


def tag(name: str, *children: Child, **attributes: str | int | float | bool | None) -> Html:
    """An element. `class_` is class, `aria_label` is aria-label; an attribute that is None or False is left out."""
    given = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        shown = key.rstrip("_").replace("_", "-")
        given.append(f" {shown}" if value is True else f' {shown}="{text(str(value))}"')
    return Html(f"<{name}{''.join(given)}>{join(*children)}</{name}>")
