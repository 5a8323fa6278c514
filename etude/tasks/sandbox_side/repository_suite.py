"""A repository's own suite, run by the pytest of its environment: its conftest files, settings, plugins and fixtures.

Unlike in `pytest_grading`, the files of the tests lie in the workspace, where pytest collects them and they find their
data; but what runs is the text that was given (`KeptSources`), whatever the tested code does to the files meanwhile.
Ids are pytest's, relative to the workspace. Chooses, orders and reports; knows nothing of grades.
"""

# Plain strings as paths: they are compared with those of modules and code objects.
# ruff: noqa: PTH118
from __future__ import annotations

import gc
import importlib.util
import os
import random
import sys
from collections.abc import Collection, Generator, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final, Protocol

from etude.tasks.sandbox_side.pytest_grading import OutcomeReporter, said
from etude.tasks.sandbox_side.unittest_grading import Report

if TYPE_CHECKING:
    import pytest


class Watcher(Protocol):
    """Who wants to know which test runs, and before that which file is read; "" is neither."""

    def begin(self, test: str) -> None: ...

    def read(self, path: str) -> None: ...


class KeptSources(MetaPathFinder):
    """Modules that are found on the disk, as always, but are what was given for their path: a text, or a function that
    has the code, of which no text is left."""

    def __init__(self, sources: Mapping[str, str | FunctionType]) -> None:
        self._sources = sources

    def find_spec(self, fullname: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target)
        # What is not a test of ours is imported as always.
        if spec is None or spec.origin is None or spec.origin not in self._sources:
            return None
        given = self._sources[spec.origin]
        kept = _Kept(fullname, spec.origin, given) if isinstance(given, str) else _Held(fullname, spec.origin, given)
        spec.loader = kept
        return spec


class _Kept(SourceFileLoader):
    def __init__(self, fullname: str, path: str, source: str) -> None:
        super().__init__(fullname, path)
        self._source = source

    def get_source(self, fullname: str) -> str:
        return self._source

    def get_code(self, fullname: str) -> CodeType:
        # Never from a cache: a .pyc beside the file may be the agent's.
        return compile(self._source, self.path, "exec", dont_inherit=True)


class _Held(SourceFileLoader):
    """Runs the code and gives it to nobody: asked for text or code it gives what the file says."""

    def __init__(self, fullname: str, path: str, holder: FunctionType) -> None:
        super().__init__(fullname, path)
        self._holder = holder  # a function, as reading its code can be noticed (`detect_source_reading`)

    def exec_module(self, module: ModuleType) -> None:
        exec(self._holder.__code__, module.__dict__)  # noqa: S102 - what importing a module is


HELD_LOADER: Final = _Held.exec_module.__code__  # who runs code that may not be read


class Reporter(OutcomeReporter):
    """The one plugin of ours: keeps the chosen tests, orders them and reports their outcomes."""

    def __init__(
        self, chosen: Collection[str] | None, order: int | None, watcher: Watcher | None, report: Report
    ) -> None:
        import pytest

        super().__init__(report)
        self._chosen, self._order, self._watcher = chosen, order, watcher
        # Marked here, as pytest is there only when a suite runs: after all others have had their say, and around all.
        pytest.hookimpl(trylast=True)(Reporter.pytest_collection_modifyitems)
        pytest.hookimpl(wrapper=True, tryfirst=True)(Reporter.pytest_runtest_protocol)
        pytest.hookimpl(wrapper=True, tryfirst=True)(Reporter.pytest_make_collect_report)

    def pytest_make_collect_report(self, collector: pytest.Collector) -> Generator[None, object, object]:
        path = collector.nodeid if collector.nodeid.endswith(".py") else ""
        if self._watcher is not None:
            self._watcher.read(path)
        try:
            return (yield)
        finally:
            if self._watcher is not None:
                self._watcher.read("")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._report(report.nodeid, "error", said(report))
        elif report.skipped:
            self._report(report.nodeid, "skipped", "")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self._chosen is not None:
            wanted = self._chosen
            # A prefix counts too: mutated parameters have other ids.
            items[:] = [item for item in items if item.nodeid in wanted or item.nodeid.partition("[")[0] in wanted]
        if self._order is not None:
            items[:] = _shuffled(items, random.Random(self._order))

    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        if self._watcher is not None:
            self._watcher.begin(item.nodeid)
        try:
            return (yield)
        finally:
            if self._watcher is not None:
                self._watcher.begin("")


def load_pytest() -> Any:
    """pytest, imported without a search for garbage, of which imports leave none, and left out of every later search.

    Importing it is most of what a short run takes; a tenth of that run went into looking through its objects, at the
    end too, where pytest itself asks for it.
    """
    if "pytest" not in sys.modules:
        gc.disable()
        try:
            importlib.import_module("pytest")
        finally:
            gc.enable()
        gc.freeze()
    return sys.modules["pytest"]


def _shuffled(items: list[Any], rng: random.Random) -> list[Any]:
    """Modules in random order, in each its classes, in each its tests: what shares fixtures stays together."""
    modules: dict[str, dict[str, list[Any]]] = {}
    for item in items:
        kind = item.nodeid.partition("[")[0].rpartition("::")[0]
        modules.setdefault(kind.partition("::")[0], {}).setdefault(kind, []).append(item)
    ordered = []
    for module in rng.sample(list(modules), len(modules)):
        for kind in rng.sample(list(modules[module]), len(modules[module])):
            ordered += rng.sample(modules[module][kind], len(modules[module][kind]))
    return ordered


def run(
    root: str,
    paths: Sequence[str],
    options: Sequence[str],
    report: Report,
    *,
    chosen: Collection[str] | None = None,
    order: int | None = None,
    watcher: Watcher | None = None,
    most_failures: int = 1_000_000,
) -> int:
    """Runs the suite that lies in these files and folders of the workspace, or what is chosen of it; pytest's code."""
    pytest = load_pytest()
    # A file that the agent's change removed is reported as missing tests, not as a usage error.
    there = [path for path in paths if os.path.exists(os.path.join(root, path))]  # noqa: PTH110
    if not there:
        return int(pytest.ExitCode.NO_TESTS_COLLECTED)
    # `--assert=plain`: rewriting would read the file again, which the tested code may have changed.
    fixed = ["--rootdir", root, "-p", "no:cacheprovider", "--assert=plain", "--tb=no", "-q", "--no-header"]
    fixed += ["--continue-on-collection-errors", f"--maxfail={most_failures}"]
    reporter = Reporter(chosen, order, watcher, report)
    return int(pytest.main([*options, *fixed, *_steady(), *there], plugins=[reporter]))


def _steady() -> list[str]:
    """Options that keep installed plugins from running tests elsewhere, in another order or measured."""
    known = {"xdist": ["-n0"], "pytest_cov": ["--no-cov"], "pytest_benchmark": ["--benchmark-disable"]}
    known |= {"pytest_randomly": ["-p", "no:randomly"], "pytest_random_order": ["-p", "no:random_order"]}
    return [option for name, given in known.items() if importlib.util.find_spec(name) for option in given]


def run_as(root: str, sources: Mapping[str, str]) -> list[CodeType]:
    """Sees to it that these modules do what these texts say, while the files on the disk say what they say; the code
    of each."""
    held: dict[str, str | FunctionType] = {}
    made: list[CodeType] = []
    for path, text in sources.items():
        file = os.path.join(root, path)
        made.append(compile(text, file, "exec", dont_inherit=True))
        held[file] = FunctionType(made[-1], {})
    sys.meta_path.insert(0, KeptSources(held))
    return made


def keep(root: str, sources: Mapping[str, str]) -> None:
    """Writes the tests into the workspace and sees to it that this text is what runs."""
    for path, text in sources.items():
        target = os.path.join(root, path)
        os.makedirs(os.path.dirname(target), exist_ok=True)  # noqa: PTH103, PTH120
        with open(target, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:  # noqa: PTH123
            file.write(text)
    sys.meta_path.insert(0, KeptSources({os.path.join(root, path): text for path, text in sources.items()}))
