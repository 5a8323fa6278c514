"""A unittest suite: chosen tests, each outcome reported as soon as it is known.

Ids read `module.Class.method`. Only a test that ran to its end without a word counts as passed; skipped and expected
failures are called what they are. Knows nothing of where the tested code runs.
"""

from __future__ import annotations

import importlib
import traceback
import unittest
from collections.abc import Callable, Sequence
from typing import Any

Report = Callable[[str, str, str], None]  # id, status, text
WORST = ("passed", "xfailed", "xpassed", "skipped", "failed", "error")


class ReportingResult(unittest.TestResult):
    def __init__(self, report: Report) -> None:
        super().__init__()
        self._report = report
        self._status, self._text = "", ""

    def startTest(self, test: unittest.TestCase) -> None:
        self._status, self._text = "", ""

    def stopTest(self, test: unittest.TestCase) -> None:
        self._report(test.id(), self._status or "error", self._text)

    def addSuccess(self, test: unittest.TestCase) -> None:
        self._note("passed")

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self._note("failed", err)

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        self._note("error", err)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._note("skipped", text=reason)

    def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:
        self._note("xfailed", err)

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        self._note("xpassed")

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        if err is not None:
            self._note("failed" if issubclass(err[0], test.failureException) else "error", err)

    def _note(self, status: str, error: Any = None, text: str = "") -> None:
        """The worst that happened to a test is its outcome: a failing clean-up outweighs a success."""
        if not self._status or WORST.index(status) > WORST.index(self._status):
            self._status, self._text = status, text or last_line(error)


def last_line(error: Any) -> str:
    """What an exception says, short."""
    if error is None:
        return ""
    try:
        return traceback.format_exception_only(error[0], error[1])[-1].strip()[:300]
    except Exception:  # a __str__ of the agent's
        return str(error[0].__name__)[:300]


def run(ids: Sequence[str], report: Report) -> None:
    """Runs these tests in this order. One that cannot be loaded is reported as an error."""
    suite = unittest.TestSuite()
    for name in ids:
        module, kind, method = name.rsplit(".", 2)
        try:
            found = getattr(importlib.import_module(module), kind)
            if not (isinstance(found, type) and issubclass(found, unittest.TestCase)):
                raise TypeError(f"{module}.{kind} is no TestCase")
            suite.addTest(found(method))
        except BaseException as error:  # whatever importing the tested code did
            report(name, "error", last_line((type(error), error)))
    suite.run(ReportingResult(report))
