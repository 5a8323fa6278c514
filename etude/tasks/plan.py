"""What one grading run consists of: which tests run as they are, which are changed, which are canaries.

Drawn anew for each run. Where the tested code shares a process with the tests, several judges run a part each: a
required test is real for exactly one of them and changed for the others, so that who forges results has to guess for
each test which is which. Only this process knows. Knows the task; starts nothing.
"""

from __future__ import annotations

import importlib.util
import math
import random
import re
import secrets
import string
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from etude.errors import EtudeError
from etude.tasks.config import Suite
from etude.tasks.format import Task
from etude.tasks.reading import known_calls, parsed, simple_tests, test_base
from etude.tasks.twists import Place, find_tests, twist, word

FEW_CANARIES = 3  # that must fail, where tests and tested code are apart
MOST_CHANGED = 48  # test functions; of a larger suite the second judge runs no more than these
MOST_JUDGES = 12
HOPELESS = 1e-3  # chance of a forger who has to guess
ENTRIES = ("", "src")  # folders of the workspace that imports start from


@dataclass(frozen=True)
class Part:
    """What one judge runs (`mark`, `tests`, `run`: all it is told), and what that means."""

    mark: str
    tests: dict[str, str]
    run: tuple[str, ...]
    real: frozenset[str] = frozenset()  # required ids that count
    changed: frozenset[str] = frozenset()  # as they stand in `run`: must fail
    must_fail: frozenset[str] = frozenset()
    must_pass: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Plan:
    required: tuple[str, ...]
    parts: tuple[Part, ...]
    nonce: str
    suite: Suite
    apart: bool  # the agent's code runs in another process than the tests
    plain: bool  # and nothing but plain values is compared: there is nothing that canaries would have to catch
    packages: tuple[str, ...] = ()  # where pytest is


@dataclass(frozen=True)
class Function:
    """A test function and the ids of it that are required."""

    path: str
    name: str
    run: str  # what a judge is asked for: the id, or for a parametrised test what all of its ids start with
    ids: tuple[str, ...]
    changes: tuple[tuple[Place, ...], ...] = field(repr=False, default=())


def draw(task: Task, rng: random.Random | None = None) -> Plan:
    """A plan for one run of the task's tests."""
    rng = rng or random.SystemRandom()
    facts = task.facts
    if facts.suite is None:
        raise EtudeError(f"task {task.name} names no suite in [metadata.etude], so its tests cannot be graded safely")
    required = (*facts.fail_to_pass, *facts.pass_to_pass, *facts.held_out)
    if not facts.fail_to_pass:
        raise EtudeError(f"task {task.name} has no fail_to_pass tests: doing nothing would solve it")
    sources = {path: task.tests.text(path).removeprefix("\ufeff") for path in task.tests if path.endswith(".py")}
    functions = test_functions(task, required, sources)
    plain = all(function.name in simple_tests(sources[function.path]) for function in functions)
    apart = plain if facts.grading is None else facts.grading == "apart"
    if apart and plain:
        parts: tuple[Part, ...] = (_part(functions, set(), sources, facts.suite, rng, canaries=FEW_CANARIES),)
    else:
        parts = _several_parts(task, functions, sources, facts.suite, rng)
    packages = (pytest_folder(task.name),) if facts.suite == "pytest" else ()
    return Plan(required, parts, secrets.token_hex(16), facts.suite, apart, apart and plain, packages)


def _several_parts(
    task: Task, functions: Sequence[Function], sources: dict[str, str], suite: Suite, rng: random.Random
) -> tuple[Part, ...]:
    """Every function is real for one judge; those that can be changed are changed for all others."""
    paths = {function.path for function in functions}
    changes = {path: {test.name: test.changes for test in find_tests(sources[path])} for path in paths}
    functions = [replace(function, changes=changes[function.path].get(function.name, ())) for function in functions]
    changeable = [function for function in functions if function.changes]
    if len(changeable) > MOST_CHANGED:
        telling = {*task.facts.held_out, *task.facts.fail_to_pass}
        order = sorted(rng.sample(changeable, len(changeable)), key=lambda each: telling.isdisjoint(each.ids))
        changeable = order[:MOST_CHANGED]
    hidden = sum(not set(function.ids).isdisjoint(task.facts.held_out) for function in changeable)
    count = judges_needed(hidden) if changeable else 1
    real = {function.run: rng.randrange(count) for function in changeable}
    return tuple(
        _part(
            changeable if number else functions, {run for run, at in real.items() if at != number}, sources, suite, rng
        )
        for number in range(count)
    )


def judges_needed(hidden: int) -> int:
    """So many that guessing, for each test that the agent never saw, which judge has the real one, is hopeless."""
    return min(MOST_JUDGES, max(2, math.ceil(HOPELESS ** (-1 / hidden)))) if hidden else 2


def header(plan: Plan, task: Task, files: dict[str, Any], *, seconds: float, cpu_seconds: int) -> dict[str, Any]:
    """What the runner itself is told."""
    return {
        "suite": plan.suite,
        "apart": plan.apart,
        "plain": plan.plain,
        "parts": len(plan.parts),
        "entries": ENTRIES,
        "roots": roots(task),
        "packages": plan.packages,
        "files": files,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
    }


def roots(task: Task) -> list[str]:
    """Top-level names that the task's code has. What else an agent adds, tests never ask for."""
    names = set()
    for path in [*task.workspace, *task.solution]:
        for entry in ENTRIES:
            if path.startswith(f"{entry}/") or not entry:
                first = path.removeprefix(f"{entry}/" if entry else "").partition("/")[0]
                names.add(first.removesuffix(".py"))
    return sorted(name for name in names - {"tests"} - sys.stdlib_module_names if name.isidentifier())


def pytest_folder(task: str) -> str:
    """Where the pytest of this interpreter lies."""
    found = importlib.util.find_spec("pytest")
    if found is None or found.origin is None:
        raise EtudeError(f"task {task} has pytest tests, and pytest is not installed: pip install pytest")
    return str(Path(found.origin).parents[1])


def test_functions(task: Task, required: Sequence[str], sources: dict[str, str]) -> list[Function]:
    """The functions behind the required ids, in the order of the ids."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for name in required:
        grouped.setdefault(_place(name), []).append(name)
    functions = []
    for (path, name), ids in grouped.items():
        if path not in sources:
            raise EtudeError(f"task {task.name} requires {ids[0]}, but tests/ has no {path}")
        try:
            parsed(sources[path])
        except (SyntaxError, ValueError, RecursionError) as error:
            raise EtudeError(f"task {task.name}: tests/{path} is not Python: {error}") from None
        run = ids[0].partition("[")[0] if "::" in ids[0] else ids[0]
        functions.append(Function(path, name, run, tuple(ids)))
    return functions


def _place(name: str) -> tuple[str, str]:
    """(file, `Class.method`) of an id."""
    if "::" in name:
        path, *rest = name.partition("[")[0].split("::")
        return path, ".".join(rest)
    if name.count(".") < 2:
        raise EtudeError(f"{name!r} is no test's id: write module.Class.method, or path.py::test for pytest")
    module, kind, method = name.rsplit(".", 2)
    return f"{module.replace('.', '/')}.py", f"{kind}.{method}"


def _part(
    functions: Sequence[Function],
    changed: set[str],
    sources: dict[str, str],
    suite: Suite,
    rng: random.Random,
    canaries: int | None = None,
) -> Part:
    changes: dict[str, list[tuple[Place, ...]]] = {}
    for function in functions:
        if function.run in changed:
            changes.setdefault(function.path, []).append(rng.choice(function.changes))
    tests = {path: twist(text, changes[path], rng) if path in changes else text for path, text in sources.items()}
    run = [function.run for function in functions]
    must_fail: list[str] = []
    must_pass: list[str] = []
    if functions:
        path = rng.choice([function.path for function in functions])
        code, must_fail, must_pass = _canaries(path, sources[path], functions, suite, rng, canaries)
        tests[path] = f"{tests[path].rstrip()}\n\n\n{code}"
    return Part(
        mark=secrets.token_hex(8),
        tests=tests,
        run=tuple(_shuffled([*run, *must_fail, *must_pass], suite, rng)),
        real=frozenset(name for function in functions if function.run not in changed for name in function.ids),
        changed=frozenset(changed),
        must_fail=frozenset(must_fail),
        must_pass=frozenset(must_pass),
    )


def _canaries(
    path: str, source: str, functions: Sequence[Function], suite: Suite, rng: random.Random, most: int | None
) -> tuple[str, list[str], list[str]]:
    """A class of tests as nobody wrote them: its source, the ids that must fail, and those that must pass."""
    near = [function.name.split(".") for function in functions if function.path == path]
    kind = next((names[0] for names in near if len(names) == 2), "Tests")
    kind = word(rng).capitalize() + kind
    same, one, two = word(rng), word(rng), word(rng)
    number = rng.randrange(2, 1000)
    failing = [
        f'self.assertEqual("{one}", "{two}")',
        f"self.assertEqual([{number}, 1], [{number}, 2])",
        rng.choice([f"self.assertTrue({number} < 1)", f'self.assertIn("{one}", ["{two}"])', "self.assertIsNone(0)"]),
        f"self.assertEqual({{{number}: 1}}, {{{number}: 2}})",
        "with self.assertRaises(ValueError):\n            pass",
        f"assert {number} == {number + 1}",
    ]
    calls = known_calls(source)
    failing = failing if most is None else rng.sample(failing, most - bool(calls))
    if calls:  # the tested code's own answer against a word that it cannot know
        failing.append(f'self.assertEqual({rng.choice(calls)}, "{two}")')
    passing = [f'self.assertEqual("{same}", "{same}")']
    names = rng.sample(_method_names([names[-1] for names in near], rng, len(failing) + 1), len(failing) + 1)
    lines = [f"class {kind}({test_base(source)}):"]
    for name, body in zip(names, failing + passing, strict=True):
        lines += [f"    def {name}(self):", f"        {body}", ""]
    ids = [_id(path, kind, name, suite) for name in names]
    return "\n".join(lines), ids[:-1], ids[-1:]


def _method_names(known: list[str], rng: random.Random, count: int) -> list[str]:
    """Names like those that are there."""
    numbered = any(re.search(r"\d$", name) for name in known)
    made: set[str] = set()
    while len(made) < count + 2:
        stem = rng.choice(known) if known else "test_it"
        new = f"{stem.rstrip(string.digits)}{rng.randrange(1, 60)}" if numbered else f"test_{word(rng)[:6]}"
        if new not in known and new.startswith("test"):
            made.add(new)
        if not any(name.startswith("test") for name in known):
            known = ["test_1"]
    return sorted(made)


def _id(path: str, kind: str, method: str, suite: Suite) -> str:
    if suite == "pytest":
        return f"{path}::{kind}::{method}"
    return f"{path.removesuffix('.py').replace('/', '.')}.{kind}.{method}"


def _shuffled(names: list[str], suite: Suite, rng: random.Random) -> list[str]:
    """In random order, but the tests of one class together: their class is set up once."""
    joint = "::" if suite == "pytest" else "."
    groups: dict[str, list[str]] = {}
    for name in rng.sample(names, len(names)):
        groups.setdefault(name.rpartition(joint)[0], []).append(name)
    classes = rng.sample(list(groups), len(groups))
    return [name for group in classes for name in groups[group]]
