"""Tests as modules that never lie on a disk where the agent's code could read them.

A test file `a/test_b.py` is the module `a.test_b`, and also `tests.a.test_b` for suites that say so. Knows no suite.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

FOLDER = "/tests"  # where their code says it lies


class MemoryFinder(MetaPathFinder, Loader):
    def __init__(self, sources: Mapping[str, str]) -> None:
        self._sources = sources
        self._folders = {"/".join(path.split("/")[:depth]) for path in sources for depth in range(path.count("/") + 1)}

    def find_spec(self, fullname: str, _: object = None, target: object = None) -> ModuleSpec | None:
        path = fullname.replace(".", "/")
        path = "" if path == "tests" else path.removeprefix("tests/")
        if f"{path}.py" in self._sources:
            return self._spec(fullname, f"{path}.py")
        if path in self._folders or path == "":
            return self._spec(fullname, f"{path}/__init__.py".lstrip("/"), package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        assert spec is not None and spec.origin is not None
        source = self._sources.get(spec.origin.removeprefix(f"{FOLDER}/"), "")
        exec(compile(source, spec.origin, "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - the task's tests

    def _spec(self, fullname: str, path: str, package: bool = False) -> ModuleSpec:
        spec = ModuleSpec(fullname, self, origin=f"{FOLDER}/{path}", is_package=package)
        spec.has_location = True  # so that __file__ is set
        return spec


def module_of(path: str) -> str:
    """`a/test_b.py` -> `a.test_b`."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
