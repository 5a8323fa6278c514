"""Fixtures of the forge: small repositories; and the tests of many katas run in one other process: plain unittest, no
sandbox, a few milliseconds each."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from etude.tasks.format.task import Task
from tests.forge.javascript_repository import bench, laid, script_made, script_shop
from tests.forge.small_repositories import (
    build_repository,
    history,
    run,
    shop_repo,
    shop_repository,
    small_shop_files,
    workspace_alone_is_audited,
)

__all__ = [  # fixtures
    "bench",
    "build_repository",
    "history",
    "laid",
    "run",
    "script_made",
    "script_shop",
    "shop_repo",
    "shop_repository",
    "small_shop_files",
    "workspace_alone_is_audited",
]

# For each job: modules made from text, the ids loaded and run, everything forgotten again.
RUNNER = """
import importlib.abc, importlib.util, json, signal, sys, unittest


class Texts(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    files = {}

    def find_spec(self, name, path, target=None):
        place = name.replace(".", "/")
        package = place + "/__init__.py" in self.files
        if package or place + ".py" in self.files:
            return importlib.util.spec_from_loader(name, self, is_package=package)

    def exec_module(self, module):
        place = module.__name__.replace(".", "/")
        text = self.files.get(place + ".py") or self.files[place + "/__init__.py"]
        exec(compile(text, place, "exec"), module.__dict__)


class Result(unittest.TestResult):
    def _exc_info_to_string(self, error, test):
        return ""  # nobody reads it, and it takes most of the time


def stop(*given):
    raise TimeoutError


def run(job):
    Texts.files = job["files"]
    known = set(sys.modules)
    passed = {}
    for name in job["ids"]:
        result = Result()
        signal.setitimer(signal.ITIMER_PROF, 0.5)  # a changed loop may never end; processor time, as machines are busy
        unittest.defaultTestLoader.loadTestsFromName(name).run(result)
        signal.setitimer(signal.ITIMER_PROF, 0)
        passed[name] = result.testsRun == 1 and result.wasSuccessful() and not result.skipped
        if job["quick"] and not passed[name]:
            break
    for name in set(sys.modules) - known:
        del sys.modules[name]
    return passed


import difflib, traceback  # now, so that they are not forgotten with the rest
signal.signal(signal.SIGPROF, stop)
sys.meta_path.insert(0, Texts())
json.dump([run(job) for job in json.load(sys.stdin)], sys.stdout)
"""

Run = Callable[..., list[dict[str, bool]]]


@pytest.fixture(scope="session")
def run_all() -> Run:
    """Which tests pass for each (task, files that replace the workspace's): all that its facts name.

    `quick` stops a task at its first failure.
    """

    def run(jobs: list[tuple[Task, Mapping[str, bytes]]], *, quick: bool = False) -> list[dict[str, bool]]:
        asked: list[dict[str, Any]] = []
        for task, changes in jobs:
            files = {**task.workspace, **changes, **task.tests}
            facts = task.facts
            ids = [*facts.fail_to_pass, *facts.held_out, *facts.pass_to_pass]
            text = {path: data.decode() for path, data in files.items() if path.endswith(".py")}
            asked.append({"files": text, "ids": ids, "quick": quick})
        done = subprocess.run(
            [sys.executable, "-I", "-B", "-S", "-c", RUNNER],
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        results: list[dict[str, bool]] = json.loads(done.stdout)
        return results

    return run
