"""A pytest suite: chosen tests, collected from memory, with no configuration and no plugin but its own.

Ids read `path.py::Class::method[parameters]`. The conftest files are the task's own; pytest looks for none. pytest
itself is imported only when a task needs it. Knows nothing of where the tested code runs.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.tasks.sandbox_side.tests_in_memory import FOLDER, module_of
from etude.tasks.sandbox_side.unittest_grading import Report

if TYPE_CHECKING:
    import pytest


class OutcomeReporter:
    """The end of each test, reported once: what went wrong first counts."""

    def __init__(self, report: Report) -> None:
        import pytest

        self._report = report
        self._outcome: dict[str, tuple[str, str]] = {}
        # Marked here, as pytest is there only when a suite runs.
        pytest.hookimpl(wrapper=True, tryfirst=True)(OutcomeReporter.pytest_runtest_call)

    def pytest_runtest_call(self) -> Generator[None, None, None]:
        os.environ.pop("PYTEST_CURRENT_TEST", None)  # tells code that it is being tested
        try:
            yield
        except KeyboardInterrupt as interrupt:  # the test's own: nobody sits at a keyboard, and other tests wait
            raise AssertionError("KeyboardInterrupt") from interrupt

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        expected = hasattr(report, "wasxfail")
        status = {"skipped": "xfailed", "passed": "xpassed"}.get(report.outcome, "failed") if expected else ""
        status = status or ("error" if report.failed and report.when != "call" else report.outcome)
        before = self._outcome.get(report.nodeid)
        if before is None or (before[0] == "passed" and status != "passed"):
            self._outcome[report.nodeid] = (status, "" if report.passed else said(report))
        if report.when == "teardown":
            self._report(report.nodeid, *self._outcome[report.nodeid])


def said(report: pytest.CollectReport | pytest.TestReport) -> str:
    """What went wrong, in a line."""
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = str(crash.message if crash is not None else report.longreprtext).strip().splitlines()
    return (lines or [""])[0 if crash is not None else -1][:300]


class Chosen(OutcomeReporter):
    """The one plugin: collects and runs what was chosen, and reports the outcomes. Comes before pytest's own hooks."""

    def __init__(self, ids: Sequence[str], conftests: Sequence[str], report: Report) -> None:
        super().__init__(report)
        self._ids, self._conftests = ids, conftests

    def pytest_collection(self, session: pytest.Session) -> bool:
        self._report("", "ready", "")
        for module in self._conftests:  # may load the tested code
            session.config.pluginmanager.register(importlib.import_module(module))
        found: dict[str, list[pytest.Item]] = {}
        for path in dict.fromkeys(name.partition("::")[0] for name in self._ids):
            for item in self._collect(session, path):
                found.setdefault(item.nodeid.partition("[")[0], []).append(item)
        session.items = [item for name in self._ids for item in found.get(name, [])]
        session.testscollected = len(session.items)
        return True

    def _collect(self, session: pytest.Session, path: str) -> Iterator[pytest.Item]:
        import pytest

        class MemoryModule(pytest.Module):
            """A test module that is imported by its name, not by its file."""

            def _getobj(self) -> Any:
                return importlib.import_module(module_of(path))

        module = MemoryModule.from_parent(session, path=Path(FOLDER) / path, nodeid=path)
        yield from session.genitems(module)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """What cannot be imported has no tests; say so for those that were to come from it."""
        if report.failed:
            for name in self._ids:
                if name.startswith(f"{report.nodeid}::"):
                    self._report(name, "error", said(report))


def run(ids: Sequence[str], sources: Mapping[str, str], report: Report) -> None:
    """Runs these tests in this order; an id without parameters means all of that test's."""
    import pytest

    conftests = sorted((path for path in sources if path.rpartition("/")[2] == "conftest.py"), key=len)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    options = ["--noconftest", "-p", "no:cacheprovider", "--assert=plain", "-s", "-q", "--no-header"]
    plugin = Chosen(ids, [module_of(path) for path in conftests], report)
    pytest.main(["-c", os.devnull, "--rootdir", "/", *options], plugins=[plugin])
