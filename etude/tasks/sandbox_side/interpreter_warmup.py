"""A suite of our own, run a few times before anything is forked: the interpreter adapts code to what it has seen.

Every test process and worker starts as a fork and would begin with code that never ran; adapting it also writes to
memory that forks share. Nothing of it stays but that. Knows no task.
"""

from __future__ import annotations

import json
import socket
import sys
from typing import Any, Final

from etude.tasks.sandbox_side import unittest_grading
from etude.tasks.sandbox_side.code_process import Worker
from etude.tasks.sandbox_side.tests_in_memory import MemoryFinder
from etude.tasks.sandbox_side.wire_values import encode_call, receive, send

_TIMES: Final = 12  # the interpreter adapts a function after eight calls
_MODULE: Final = "etude_rehearsal"
_SUITE: Final = """
import unittest

class Rehearsal(unittest.TestCase):
    def test_equal(self):
        self.assertEqual([1, {"a": (2, "b")}], [1, {"a": (2, "b")}])

    def test_not_equal(self):
        self.assertEqual([1, 2], [1, 3])

    def test_raises(self):
        with self.assertRaises(ValueError):
            int("x")
"""


def warm_up() -> None:
    for _ in range(_TIMES):
        _run_suite()
        _answer_calls()


def _run_suite() -> None:
    finder = MemoryFinder({f"{_MODULE}.py": _SUITE})
    sys.meta_path.insert(0, finder)
    try:
        names = [f"{_MODULE}.Rehearsal.test_{name}" for name in ("equal", "not_equal", "raises")]
        unittest_grading.run(names, lambda *line: json.loads(json.dumps(line)))
    finally:
        sys.meta_path.remove(finder)
        sys.modules.pop(_MODULE, None)


def _answer_calls() -> None:
    tests, code = socket.socketpair()
    with tests, code:
        worker = Worker(code)
        for call in (encode_call(([1, {"a": (2, "b")}],), {}, _refuse), encode_call(("x",), {}, _refuse)):
            for operation in ("len", "int"):
                send(tests, ["do", operation, *call])
                worker._answer(receive(code))
                receive(tests)


def _refuse(value: Any) -> list[Any]:
    raise TypeError(f"{value!r} is not plain")
