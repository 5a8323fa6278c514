"""Which functions of the workspace each test reaches: by `sys.monitoring` from Python 3.12 on, `sys.settrace` before.

A function that was seen during a test costs nothing more until the next one on 3.12, and one look-up a call on 3.11.
What runs while tests are collected belongs to the test "". Knows code objects, never a suite.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from types import CodeType, FrameType
from typing import Any, Final

_OPTIMIZED: Final = 0x1  # of a code object: a function's, not a module's or a class's
_TOOL: Final = 4  # a number that no debugger, coverage or profiler asks for


class Tracer:
    """Functions in files below `folders` of `root`, as `path:qualified name`, by test."""

    def __init__(self, root: str, folders: Sequence[str]) -> None:
        self._root = f"{root.rstrip('/')}/"
        self._folders = tuple(f"{self._root}{folder}".rstrip("/") for folder in folders)
        self._known: dict[int, tuple[CodeType, str]] = {}  # the code is kept, so its id is nobody else's
        self._seen: set[str] = set()
        self.reached: dict[str, set[str]] = {"": self._seen}

    def start(self) -> None:
        if sys.version_info >= (3, 12):
            monitoring = sys.monitoring
            monitoring.use_tool_id(_TOOL, "etude")
            monitoring.register_callback(_TOOL, monitoring.events.PY_START, self._on_start)
            monitoring.set_events(_TOOL, monitoring.events.PY_START)
        else:
            threading.settrace(self._on_call)
            sys.settrace(self._on_call)

    def begin(self, test: str) -> None:
        """What is called from here on is this test's."""
        self._seen = self.reached.setdefault(test, set())
        if sys.version_info >= (3, 12):
            sys.monitoring.restart_events()
        elif sys.gettrace() is None:  # the test before took it away
            sys.settrace(self._on_call)

    def read(self, path: str) -> None:
        """What runs while files are read belongs together, whichever file it is."""

    def _on_call(self, frame: FrameType, event: str, argument: object) -> None:
        name = self._name(frame.f_code)
        if name:
            self._seen.add(name)

    def _on_start(self, code: CodeType, offset: int) -> Any:
        name = self._name(code)
        if name:
            self._seen.add(name)
        return sys.monitoring.DISABLE  # type: ignore[attr-defined,unused-ignore]  # 3.12 on

    def _name(self, code: CodeType) -> str:
        known = self._known.get(id(code))
        if known is None:
            known = self._known[id(code)] = code, self._spelled(code)
        return known[1]

    def _spelled(self, code: CodeType) -> str:
        path = code.co_filename
        inside = any(path == folder or path.startswith(f"{folder}/") for folder in self._folders)
        if not inside or not code.co_flags & _OPTIMIZED or code.co_name.startswith("<"):
            return ""
        return f"{path.removeprefix(self._root)}:{code.co_qualname}"
