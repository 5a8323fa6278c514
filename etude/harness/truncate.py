"""Long text cut in its middle, always at the same place: the head and the tail stay, and a line says what went.

Knows nothing of tokens; limits are in characters, so that the cut does not depend on a tokenizer.
"""

from __future__ import annotations


def shorten(text: str, most: int) -> str:
    """The text, or its first and last lines with a count between them. The count comes on top of `most` characters."""
    if len(text) <= most:
        return text
    lines = text.split("\n")
    # Both ends stay: a test run says what it does first, and what failed last.
    head = _fitting(lines, most // 2)
    tail = _fitting(lines[::-1], most - most // 2)
    if head and tail:
        left_out = len(lines) - head - tail
        what = "line" if left_out == 1 else "lines"
        return "\n".join([*lines[:head], f"[{left_out} {what} left out]", *lines[len(lines) - tail :]])
    first, last = most // 2, most - most // 2
    return f"{text[:first]}[{len(text) - most} characters left out]{text[len(text) - last :]}"


def first_lines(lines: list[str], most: int, whole: bool) -> str:
    """A list, one entry a line, and how many more there are; not `whole` means that nobody counted them."""
    if not lines:
        return "[nothing]"
    rest = ["[many more]"] if not whole else [f"[{len(lines) - most} more]"] if len(lines) > most else []
    return "\n".join(lines[:most] + rest)


def clamp(line: str, most: int) -> str:
    """One line, cut at its end."""
    return line if len(line) <= most else line[:most] + "..."


def _fitting(lines: list[str], most: int) -> int:
    """How many of the first lines fit into `most` characters, their line ends included."""
    used = 0
    for count, line in enumerate(lines):
        used += len(line) + 1
        if used > most:
            return count
    return len(lines)
