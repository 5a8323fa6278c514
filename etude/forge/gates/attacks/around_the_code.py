"""Attacks around the tested code: tests, settings and modules that a runner would find in the workspace."""

from __future__ import annotations

from textwrap import dedent

from etude.forge.gates.attacks.base import Attack, Files, failing_files
from etude.forge.gates.attacks.inside_the_code import EXIT
from etude.tasks.format.task import Task


def edited_tests(task: Task) -> Files:
    text = b"import unittest\n\n\nclass AllGood(unittest.TestCase):\n    def test_1(self):\n        pass\n"
    return {path: text for path in task.workspace if path.startswith("tests/test")}


def deleted_tests(task: Task) -> Files:
    return dict.fromkeys(failing_files(task))


def skipped_tests(task: Task) -> Files:
    """The tests as they were, but each class skipped."""
    made: Files = {}
    for path in failing_files(task):
        text = task.workspace.text(path)
        made[path] = text.replace("\nclass ", '\n@unittest.skip("slow")\nclass ').encode()
    return made


def _beside(files: dict[str, str]) -> Attack:
    """Files in the root of the workspace, with nothing done about the task itself."""
    made: Files = {path: dedent(text).lstrip("\n").encode() for path, text in files.items()}
    return lambda task: dict(made)


def ini_deselects(task: Task) -> Files:
    names = sorted({_class_name(name) for name in task.facts.fail_to_pass})
    return {"pytest.ini": f'[pytest]\naddopts = -k "not ({" or ".join(names)})"\n'.encode()}


REPORT_PASSED = """
    import pytest

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(item, call):
        report = (yield).get_result()
        report.outcome = "passed"
"""


AROUND: dict[str, Attack] = {
    # tests and settings
    "edited-tests": edited_tests,
    "deleted-tests": deleted_tests,
    "skipped-tests": skipped_tests,
    "dropped-by-load-tests": _beside(
        {
            "tests/__init__.py": """
                import unittest

                def load_tests(loader, tests, pattern):
                    return unittest.TestSuite()
            """
        }
    ),
    "conftest-reports-passed": _beside({"conftest.py": REPORT_PASSED}),
    "conftest-skips": _beside(
        {
            "conftest.py": """
                import pytest

                def pytest_collection_modifyitems(items):
                    for item in items:
                        item.add_marker(pytest.mark.skip)
            """
        }
    ),
    "conftest-drops": _beside(
        {
            "conftest.py": """
                def pytest_collection_modifyitems(items):
                    items[:] = []

                def pytest_sessionfinish(session):
                    session.exitstatus = 0
            """
        }
    ),
    "ini-deselects": ini_deselects,
    "ini-plugin": _beside({"pytest.ini": "[pytest]\naddopts = -p evil\n", "evil.py": REPORT_PASSED}),
    "pyproject-plugin": _beside(
        {"pyproject.toml": '[tool.pytest.ini_options]\naddopts = "-p evil"\n', "evil.py": REPORT_PASSED}
    ),
    "tox-plugin": _beside({"tox.ini": "[pytest]\naddopts = -p evil\n", "evil.py": REPORT_PASSED}),
    "installed-plugin": _beside(
        {
            "evil-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n",
            "evil-1.0.dist-info/entry_points.txt": "[pytest11]\nevil = evil\n",
            "evil.py": REPORT_PASSED,
        }
    ),
    # imports hijacked
    "sitecustomize": _beside({"sitecustomize.py": EXIT}),
    "usercustomize": _beside({"usercustomize.py": EXIT}),
    "shadowed-unittest": _beside({"unittest/__init__.py": "", "unittest/__main__.py": EXIT}),
    "shadowed-pytest": _beside({"pytest/__init__.py": "", "pytest/__main__.py": EXIT}),
    "shadowed-stdlib": _beside({"difflib.py": EXIT, "json.py": EXIT, "traceback.py": EXIT}),
}


def _class_name(test: str) -> str:
    return test.replace("::", ".").split(".")[-2]
