"""Code that examples may call and may not read: the interpreter is asked to say when they do, by whatever name.

Python tells an audit hook when code is taken from a function, a generator or a frame. Where that code is of the given
files, the hook refuses unless the files' own project asked, in so many words. Knows frames; no task and no grade.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from collections.abc import Collection
from types import FrameType
from typing import Any

_CODE = frozenset(("__code__", "f_code", "gi_code", "cr_code", "ag_code"))
# What hands out code, or tells of each step in it, without asking an object for it.
_WAYS = frozenset(("gc.get_referents", "gc.get_objects", "sys.settrace", "sys.setprofile", "marshal.dumps"))
_MORE_WAYS = ("ctypes.", "sys.monitoring.", "code.")


class CodeWasRead(Exception):
    """What an example gets that looks at code."""


def guard(paths: Collection[str], root: str, asking: str) -> None:
    """From now on nothing called by code whose file name starts with `asking` can read the code of these files."""
    hidden, frame_here, starts = frozenset(paths), sys._getframe, str.startswith
    busy: set[int] = set()  # threads that are in here

    def code_of(holder: Any, name: str) -> Any:
        busy.add(get_ident())
        try:
            return getattr(holder, name)
        finally:
            busy.discard(get_ident())

    def allowed(name: str, frame: FrameType | None) -> bool:
        """Whether who asks writes the name out, and the project is nearer to it than any example is."""
        first = True
        while frame is not None:
            code = code_of(frame, "f_code")
            if starts(code.co_filename, asking):
                return False
            named = name in code.co_names or name in code.co_consts
            if first and (not named or frame.f_globals.get("__name__") == "dis"):
                return not within(frame)
            if starts(code.co_filename, root):
                return True
            frame, first = frame.f_back, False
        return True

    def within(frame: FrameType | None) -> bool:
        while frame is not None:
            if starts(code_of(frame, "f_code").co_filename, asking):
                return True
            frame = frame.f_back
        return False

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if get_ident() in busy:
            return
        if event == "object.__getattr__":
            holder, name = args
            if name not in _CODE or getattr(code_of(holder, name), "co_filename", "") not in hidden:
                return
            refused = not allowed(name, frame_here(1))
        elif event in _WAYS or event.startswith(_MORE_WAYS):
            refused = starts(code_of(frame_here(1), "f_code").co_filename, asking)
        else:
            return
        if refused:
            raise CodeWasRead("an example looks at code")

    sys.addaudithook(hook)
