"""What somebody who follows a script writes when asked for a summary, and where the script goes on from one.

A summary says what is left, and no more: small models pay for each word. Who goes file by file says only the next one,
since the task or that file says what comes behind it: a list of five takes 55 tokens, an eighth of a small context, and
each path is one more to miscopy. From a summary the script goes on by reading the next file that is left, since what
was read before it is gone. All follows from the text, nothing is remembered.
"""

from __future__ import annotations

from collections.abc import Sequence

from etude.core.policy import Assistant, Message, User

CHANGES = ("edit", "write")


def summary_words(turns: Sequence[Assistant], said: int) -> str:
    """The summary after so many turns of a script."""
    if _file_by_file(turns):
        return f"Next: {next(iter(_named(turns[said:])), 'nothing')}."
    return f"Left: {', '.join(_changed(turns[said:])) or 'nothing'}."


def turns_before(turns: Sequence[Assistant], messages: Sequence[Message]) -> int:
    """How many turns of a script come before this context: none unless it begins with a summary of them."""
    first = next((message.text for message in messages if isinstance(message, User)), "")
    if "\nSummary " not in first:
        return 0
    found = [said for said in range(len(turns) + 1) if summary_words(turns, said) in first]
    return _resume(turns, found[0]) if found else 0


def _resume(turns: Sequence[Assistant], said: int) -> int:
    """The turn that reads the first file left, or the one that changes it; behind all changes where none is left."""
    left = _named(turns[said:]) if _file_by_file(turns) else _changed(turns[said:])
    if not left:
        changing = [number for number, turn in enumerate(turns) if _changed([turn])]
        return changing[-1] + 1 if changing else said
    return next(number for number, turn in enumerate(turns) if left[0] in _named([turn]))


def _file_by_file(turns: Sequence[Assistant]) -> bool:
    """Whether each file is changed by the turn behind the one that reads it."""
    first = {path: number for number, turn in reversed(list(enumerate(turns))) for path in _changed([turn])}
    return bool(first) and all(number and path in _named([turns[number - 1]]) for path, number in first.items())


def _named(turns: Sequence[Assistant]) -> list[str]:
    """Files that are read or changed, in the order of their first mention."""
    calls = (call for turn in turns for call in turn.calls if call.name in ("read", *CHANGES))
    return list(dict.fromkeys(call.arguments.get("path", "") for call in calls))


def _changed(turns: Sequence[Assistant]) -> list[str]:
    calls = (call for turn in turns for call in turn.calls if call.name in CHANGES)
    return list(dict.fromkeys(call.arguments.get("path", "") for call in calls))
