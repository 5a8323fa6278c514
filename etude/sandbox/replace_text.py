"""Replace a piece of a file that is there exactly once: for an edit, in one round trip also to another machine.

By `read` and `write` of the protocol where the sandbox has no call of its own (`ReplacesText`). The other tools of the
harness are one call of the protocol each. Knows no backend.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from etude.sandbox.base import Sandbox


@runtime_checkable
class ReplacesText(Protocol):
    """A sandbox to which two calls are two round trips."""

    async def replace_text(self, path: str, old: bytes, new: bytes, *, most: int) -> bytes | None: ...


async def replace_text(sandbox: Sandbox, path: str, old: bytes, new: bytes, *, most: int) -> bytes | None:
    """None when it is done. Otherwise the file is as it was, and this is its start, `most` + 1 bytes of it at most.

    Not done: in a file that holds the piece not once, overlapping places counted, that has more than `most` bytes, or
    that holds a NUL byte.
    """
    if isinstance(sandbox, ReplacesText):
        return await sandbox.replace_text(path, old, new, most=most)
    data = await sandbox.read(path, limit=most + 1)
    at = data.find(old)
    if len(data) > most or b"\0" in data or at < 0 or data.find(old, at + 1) >= 0:
        return data
    await sandbox.write(path, data[:at] + new + data[at + len(old) :])
    return None
