"""Tasks whose outcome is a change of code, graded by the task's own tests: all that no other kind owns.

Also what lint asks of every task with tests of its own. Knows ids and sources; runs nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from etude.tasks.format.function_bodies import functions
from etude.tasks.format.task import TESTS, Task
from etude.tasks.kinds.base import FACTS, Finding, OutcomeKind, Severity


class CodeChange(OutcomeKind):
    order = 3  # last: it owns all

    def owns(self, task: Task) -> bool:
        return True

    def lint(self, task: Task) -> Iterator[Finding]:
        return lint_tests(task)


def lint_tests(task: Task) -> Iterator[Finding]:
    """Every id that the facts name exists in tests/, in one list only."""
    facts = task.facts
    if facts.suite is None:
        yield Finding("missing-facts", "note", FACTS, "names no suite, so only tests/test.sh can grade this task")
        return
    if not facts.fail_to_pass and not facts.held_out:
        message = "no test fails before and passes after: doing nothing solves it"
        yield Finding("no-fail-to-pass", "error", FACTS, message)
    if not facts.held_out:
        message = "an answer that knows only the visible inputs is accepted"
        yield Finding("no-held-out-tests", "warning", FACTS, message)
    if not facts.allowed_paths:
        yield Finding("no-allowed-paths", "error", FACTS, "no change ever reaches the grader")
    names = [*facts.fail_to_pass, *facts.pass_to_pass, *facts.held_out]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield Finding("repeated-test-id", "error", FACTS, f"{name} is listed twice")
    known = set(_defined_tests(task))
    for name in names:
        if facts.suite == "node" and test_file(name) in task.tests:
            continue  # its names are made as it runs
        if name not in known and not (name.endswith("]") and name.partition("[")[0] in known):
            # A test can be inherited or made at run time; only a file that is not there is a certain mistake.
            severity: Severity = "warning" if test_file(name) in task.tests else "error"
            yield Finding("unknown-test-id", severity, FACTS, f"{name} is not defined in {TESTS}/")


def test_file(name: str) -> str:
    """The file that an id belongs to: `a/test_b.py::C::test_d`, or `a.test_b.C.test_d` with the class next to last."""
    return name.split("::")[0] if "::" in name else "/".join(name.split(".")[:-2]) + ".py"


def _defined_tests(task: Task) -> Iterator[str]:
    """Ids as the suite spells them: `test_cart.TotalTest.test_sum`, or `test_cart.py::TotalTest::test_sum`."""
    pytest = task.facts.suite == "pytest"
    joint = "::" if pytest else "."
    for path in task.tests:
        if not path.endswith(".py") or task.tests.size(path) > 1 << 20:
            continue
        try:
            tree = ast.parse(task.tests[path])
        except (SyntaxError, ValueError, RecursionError):
            continue
        module = path if pytest else path.removesuffix(".py").replace("/", ".")
        names = (name for name, _ in functions(tree))
        yield from (joint.join([module, *name.split(".")]) for name in names if pytest or "." in name)


KIND = CodeChange()
