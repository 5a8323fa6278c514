"""What one grading run consists of: which tests run as they are, which are mutated, which are canaries.

Drawn anew for each run. Where the tested code shares a process with the tests, several test processes run a part
each: a required test is real in exactly one of them and mutated in the others, so that who forges results has to guess
for each test which is which. Only the grader knows. Knows the task; starts nothing.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import random
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from etude.core.errors import EtudeError
from etude.tasks.format.config import Installed, Suite
from etude.tasks.format.task import Task
from etude.tasks.grading.canaries import Canaries, draw_canaries
from etude.tasks.grading.inherited_tests import InheritedTests, collected
from etude.tasks.grading.test_mutations import MutationSite, find_tests, mutate
from etude.tasks.grading.test_source import parsed, simple_tests, used_names
from etude.tasks.grading.withheld.answers import Answers, answers_of
from etude.tasks.grading.withheld.javascript_rewrite import records_by_test

MOST_MUTATED = 48  # test functions; of a larger suite the second test process runs no more than these
MOST_PROCESSES = 12
# For a repository's tests, where each process costs an interpreter and the imports of the whole package:
FEW_PROCESSES = 3
UNLIKELY = 0.05
MOST_OF_ONE = 16  # required ids of one parametrised test; each task always asks for the same ones
MOST_KEPT = 64  # of a repository's tests that pass before and after; each task always asks for the same ones
FEW_KEPT = 8  # of them, that are mutated too
HOPELESS = 1e-3  # chance of a forger who has to guess
ENTRIES = ("", "src")  # folders of the workspace that imports start from


@dataclass(frozen=True)
class ProcessPlan:
    """What one test process runs (`mark`, `tests`, `run`: all it is given), and what that means."""

    mark: str
    tests: dict[str, str]
    run: tuple[str, ...]
    real: frozenset[str] = frozenset()  # required ids that count
    mutated: frozenset[str] = frozenset()  # as they stand in `run`: must fail
    must_fail: frozenset[str] = frozenset()
    must_pass: frozenset[str] = frozenset()


@dataclass(frozen=True)
class RecordedPlan:
    """What the records of tests without answers are compared with."""

    answers: Answers
    sources: Mapping[str, str]  # test files as the task has them
    names: Mapping[str, str]  # id in the test process -> required id
    owners: Mapping[str, str] = field(default_factory=dict)  # of JavaScript, whose files record: id -> test in its file

    def wrong(self, test: str, records: Mapping[str, str]) -> str:
        """What is wrong with what was recorded for a test; nothing where it is right."""
        try:
            said = self.said(test, records)
        except (ValueError, RecursionError):  # hostile text
            return "its records cannot be read"
        return self.answers.wrong(test, self.sources[self.answers.homes[test]], said)

    def said(self, test: str, records: Mapping[str, str]) -> str:
        """What was recorded for a test, of all that the process told."""
        if test not in self.owners:
            return records.get(self.answers.ids.get(test, test), "")
        path = self.answers.homes[test]
        made = self.answers.rewritten(path, self.sources[path])
        return json.dumps(records_by_test(records.get(path) or "[]", made).get(self.owners[test], []))


@dataclass(frozen=True)
class GradingPlan:
    required: tuple[str, ...]
    parts: tuple[ProcessPlan, ...]
    nonce: str
    suite: Suite
    apart: bool  # the agent's code runs in another process than the tests
    plain: bool  # and nothing but plain values is compared: there is nothing that canaries would have to catch
    packages: tuple[str, ...] = ()  # where pytest is
    installed: Installed | None = None  # the tests are a repository's, and run in its environment
    recorded: RecordedPlan | None = None  # tests are without their answers, which are here
    watch: dict[str, Any] | None = None  # what is watched while tests run (`watched_run`); of no meaning to a grade


@dataclass(frozen=True)
class RequiredTest:
    """A test function and the ids of it that are required: of one that is inherited, those of several classes."""

    path: str
    name: str
    runs: tuple[str, ...]  # what a process is asked for: ids, or of parametrised tests what all their ids start with
    ids: tuple[str, ...]
    mutations: tuple[tuple[MutationSite, ...], ...] = field(repr=False, default=())

    @property
    def location(self) -> tuple[str, str]:
        return self.path, self.name


def draw(task: Task, rng: random.Random | None = None) -> GradingPlan:
    """A plan for one run of the task's tests."""
    # The system's source and not a seeded one: the tested code could follow a seed.
    rng = rng or random.SystemRandom()
    facts = task.facts
    if facts.suite is None:
        raise EtudeError(f"task {task.name} names no suite in [metadata.etude], so its tests cannot be graded safely")
    # Doing nothing passes all of pass_to_pass.
    if not facts.fail_to_pass and not facts.held_out:
        raise EtudeError(f"task {task.name} has no fail_to_pass and no held_out tests: doing nothing would solve it")
    if facts.environment is not None:
        return _draw_repository(task, facts.environment, rng)
    required = (*facts.fail_to_pass, *facts.pass_to_pass, *facts.held_out)
    # A byte order mark is no part of the module's text for the parser that counts offsets.
    sources = {path: task.tests.text(path).removeprefix("\ufeff") for path in task.tests if path.endswith(".py")}
    functions = test_functions(task, required, sources)
    plain = all(function.name in simple_tests(sources[function.path]) for function in functions)
    apart = plain if facts.grading is None else facts.grading == "apart"
    if apart and plain:
        # Only literals are compared and the code is in another process: one process is enough, and nothing needs
        # mutating.
        parts: tuple[ProcessPlan, ...] = (_part(functions, set(), sources, facts.suite, rng, "few"),)
    else:
        functions = _mutable(functions, sources)
        some = [function for function in functions if function.mutations]
        if len(some) > MOST_MUTATED:
            # Tests that fail before, and held-out ones, decide the grade: they are mutated first.
            decisive = {*task.facts.held_out, *task.facts.fail_to_pass}
            order = sorted(rng.sample(some, len(some)), key=lambda each: decisive.isdisjoint(each.ids))
            some = order[:MOST_MUTATED]
        make = partial(_part, sources=sources, suite=facts.suite, rng=rng, canaries="class")
        parts = several_parts(task, functions, some, rng, make, MOST_PROCESSES, HOPELESS)
    packages = (pytest_folder(task.name),) if facts.suite == "pytest" else ()
    return GradingPlan(required, parts, secrets.token_hex(16), facts.suite, apart, apart and plain, packages)


def _draw_repository(task: Task, installed: Installed, rng: random.Random) -> GradingPlan:
    """The same for a repository's own tests. Its suite need not be small: what costs much is bounded."""
    facts = task.facts
    if facts.suite not in ("pytest", "node"):
        raise EtudeError(f"task {task.name} has an environment, so its tests are pytest's: write suite = 'pytest'")
    required = required_ids(task)
    sources = sources_of(task)
    answers = answers_of(task)
    if answers is not None:
        return recorded_plan(task, answers, required, sources)
    if facts.suite == "node":
        # Imported here: tree-sitter is an extra that only JavaScript tasks need.
        from etude.tasks.grading.javascript_plan import draw_javascript

        return draw_javascript(task, installed, rng)
    functions = _mutable(test_functions(task, required, sources), sources)
    # What a mutation adds is easier to recognise than what it replaces; the last one of each test adds.
    functions = [replace(each, mutations=each.mutations[:-1] or each.mutations) for each in functions]
    some = choose_mutated(task, [each for each in functions if each.mutations], rng)
    make = partial(_part, sources=sources, suite="pytest", rng=rng, canaries="functions")
    parts = several_parts(task, functions, some, rng, make, FEW_PROCESSES, UNLIKELY)
    return GradingPlan(required, parts, secrets.token_hex(16), "pytest", apart=False, plain=False, installed=installed)


def sources_of(task: Task) -> dict[str, str]:
    """The modules among a repository's test files, by path."""
    return {path: task.tests[path].decode().removeprefix("\ufeff") for path in repository_sources(task)}


def recorded_plan(
    task: Task, answers: Answers, required: Sequence[str], sources: Mapping[str, str], whole: bool = False
) -> GradingPlan:
    """One test process that is given tests without answers. `whole` asks for every parameter of each test."""
    tests = {
        path: answers.rewritten(path, text).text if path in answers.files() else text for path, text in sources.items()
    }
    names = {answers.ids.get(test, test): test for test in required}
    scripts = task.facts.suite == "node"  # its ids have numbers in place of parameters, and never change
    run = tuple(dict.fromkeys(name.partition("[")[0] for name in names) if whole and not scripts else names)
    # `real` is in the words of the process.
    part = ProcessPlan(mark=secrets.token_hex(8), tests=tests, run=run, real=frozenset(names))
    functions = repository_functions(task, required, sources) if scripts else []
    owners = {test: function.name for function in functions for test in function.ids}
    recorded = RecordedPlan(answers, sources, names, owners)
    suite: Suite = "node" if scripts else "pytest"
    return GradingPlan(
        *(tuple(required), (part,), secrets.token_hex(16), suite, False, False),
        installed=task.facts.environment,
        recorded=recorded,
    )


def repository_functions(task: Task, required: Sequence[str], sources: Mapping[str, str]) -> list[RequiredTest]:
    """The functions behind the required ids of a repository's tests, whatever it is written in."""
    if task.facts.suite != "node":
        return test_functions(task, required, dict(sources))
    from etude.tasks.grading.javascript_plan import script_files
    from etude.tasks.grading.javascript_plan import test_functions as script_functions

    return script_functions(required, script_files(task, required, sources))


def choose_mutated(task: Task, mutable: Sequence[RequiredTest], rng: random.Random) -> list[RequiredTest]:
    """Which of a repository's tests are mutated: those that fail before first, and a few of the others."""
    decisive = {*task.facts.held_out, *task.facts.fail_to_pass}
    some = [each for each in mutable if not decisive.isdisjoint(each.ids)]
    others = [each for each in mutable if decisive.isdisjoint(each.ids)]
    return rng.sample(some, min(len(some), MOST_MUTATED)) + rng.sample(others, min(len(others), FEW_KEPT))


def required_ids(task: Task) -> tuple[str, ...]:
    """What a repository's task asks for at each grading: all that fails before, and so many of the others."""
    facts = task.facts
    kept = _bounded(facts.pass_to_pass)[:MOST_KEPT]
    return (*_bounded(facts.fail_to_pass), *kept, *_bounded(facts.held_out))


def _bounded(names: Sequence[str]) -> list[str]:
    """So many of each test, in an order that follows from the names alone."""
    found: dict[str, list[str]] = {}
    # By hash and not by name: neighbours in a parametrised table are alike.
    for name in sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest()):
        found.setdefault(name.partition("[")[0], []).append(name)
    return [name for ids in found.values() for name in ids[:MOST_OF_ONE]]


def repository_sources(task: Task) -> list[str]:
    """Modules among a repository's test files. Those in another encoding than Python's own are data."""
    endings = (".js", ".cjs", ".mjs") if task.facts.suite == "node" else (".py",)
    return [path for path in task.tests if path.endswith(endings) and _is_text(task.tests[path])]


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _mutable(functions: Sequence[RequiredTest], sources: dict[str, str]) -> list[RequiredTest]:
    """The functions, with what can be mutated in each: nothing where other tests call it."""
    mutations: dict[tuple[str, str], tuple[tuple[MutationSite, ...], ...]] = {}
    for path in {function.path for function in functions}:
        used = used_names(sources[path])
        for test in find_tests(sources[path]):
            # A test that others call fails for them too when it is changed, and those must stay real.
            if test.name.rpartition(".")[2] not in used:
                mutations[path, test.name] = test.mutations
    return [replace(function, mutations=mutations.get(function.location, ())) for function in functions]


def several_parts(
    task: Task,
    functions: Sequence[RequiredTest],
    some: Sequence[RequiredTest],
    rng: random.Random,
    make: Callable[[Sequence[RequiredTest], set[tuple[str, str]]], ProcessPlan],
    most: int,
    chance: float,
    hidden: int | None = None,
) -> tuple[ProcessPlan, ...]:
    """Every test is real in one process; `some` of them are mutated in all others. `make` writes the part of a process:
    these tests, with those at these locations mutated. Of `hidden` tests a forger has to guess; None is all that are
    held out."""
    # Only held-out tests count for the chance: the agent may have seen the others in the workspace.
    if hidden is None:
        hidden = sum(not set(function.ids).isdisjoint(task.facts.held_out) for function in some)
    count = min(processes_needed(hidden, chance), most) if some else 1
    # Drawn for each test alone, so that one right guess says nothing about the next test.
    real = {function.location: rng.randrange(count) for function in some}
    mutated = [{location for location, at in real.items() if at != number} for number in range(count)]
    # The first process runs everything, the others only what is mutated somewhere.
    return tuple(make(some if number else functions, mutated[number]) for number in range(count))


def processes_needed(hidden: int, chance: float = HOPELESS) -> int:
    """So many that guessing, for each test that the agent never saw, which process has the real one, is hopeless."""
    # With n hidden tests a forger is right with chance count**-n; solved for count. At least 2, or nothing is mutated.
    return min(MOST_PROCESSES, max(2, math.ceil(chance ** (-1 / hidden)))) if hidden else 2


def header(plan: GradingPlan, task: Task, files: dict[str, Any], *, cpu_seconds: int) -> dict[str, Any]:
    """What the process that reports is given."""
    installed = plan.installed
    return {
        "suite": plan.suite if installed is None or plan.suite == "node" else "repository",
        "apart": plan.apart,
        "plain": plan.plain,
        "entries": ENTRIES if installed is None else (*installed.paths, ""),
        "roots": roots(task) if plan.apart else [],
        "packages": plan.packages,
        "files": files,
        "cpu_seconds": cpu_seconds,
        "recorded": plan.recorded is not None,
        "watch": plan.watch,
    }


def roots(task: Task) -> list[str]:
    """Top-level names that the task's code has. What else an agent adds, tests never ask for."""
    names = set()
    for path in [*task.workspace, *task.solution]:
        for entry in ENTRIES:
            if path.startswith(f"{entry}/") or not entry:
                first = path.removeprefix(f"{entry}/" if entry else "").partition("/")[0]
                names.add(first.removesuffix(".py"))
    # A module of the standard library comes first on the path, so tests never get the agent's one.
    return sorted(name for name in names - {"tests"} - sys.stdlib_module_names if name.isidentifier())


def pytest_folder(task: str) -> str:
    """Where the pytest of this interpreter lies."""
    found = importlib.util.find_spec("pytest")
    if found is None or found.origin is None:
        raise EtudeError(f"task {task} has pytest tests, and pytest is not installed: pip install pytest")
    return str(Path(found.origin).parents[1])


def test_functions(task: Task, required: Sequence[str], sources: dict[str, str]) -> list[RequiredTest]:
    """The functions behind the required ids, in the order of the ids."""
    grouped: dict[tuple[str, str], list[str]] = {}
    inherited = InheritedTests(sources)
    for test in required:
        path, name = collected(test)
        if path not in sources:
            raise EtudeError(f"task {task.name} requires {test}, but tests/ has no {path}")
        try:
            parsed(sources[path])
        except (SyntaxError, ValueError, RecursionError) as error:
            raise EtudeError(f"task {task.name}: tests/{path} is not Python: {error}") from None
        # Ids of one inherited test share one function: mutated once, it is mutated for all of them.
        grouped.setdefault(inherited.home(path, name), []).append(test)
    functions = []
    for (path, name), ids in grouped.items():
        runs = dict.fromkeys(each.partition("[")[0] if "::" in each else each for each in ids)
        functions.append(RequiredTest(path, name, tuple(runs), tuple(ids)))
    return functions


def _part(
    functions: Sequence[RequiredTest],
    mutated: set[tuple[str, str]],
    sources: dict[str, str],
    suite: Suite,
    rng: random.Random,
    canaries: Canaries,
) -> ProcessPlan:
    mutations: dict[str, list[tuple[MutationSite, ...]]] = {}
    run: list[str] = []
    for function in functions:
        change = rng.choice(function.mutations) if function.location in mutated else ()
        if change:
            mutations.setdefault(function.path, []).append(change)
        # Other parameters have other ids, so all of a test is asked for where its table of them is mutated.
        exact = canaries == "functions" and not any(site.parameter for site in change)
        run += function.ids if exact else function.runs
    tests = {path: mutate(text, mutations[path], rng) if path in mutations else text for path, text in sources.items()}
    must_fail: list[str] = []
    must_pass: list[str] = []
    if functions:
        path = collected(rng.choice(functions).ids[0])[0]  # where it is collected; it may be written elsewhere
        near = [function.name for function in functions if function.path == path]
        code, must_fail, must_pass = draw_canaries(canaries, path, sources[path], near, suite, rng)
        # At the end, so that the offsets of mutations above it stay right.
        tests[path] = f"{tests[path].rstrip()}\n\n\n{code}"
    run = _shuffled([*run, *must_fail, *must_pass], suite, rng)
    return process_plan(functions, mutated, tests, run, must_fail, must_pass)


def process_plan(
    functions: Sequence[RequiredTest],
    mutated: set[tuple[str, str]],
    tests: dict[str, str],
    run: Sequence[str],
    must_fail: Sequence[str],
    must_pass: Sequence[str],
) -> ProcessPlan:
    """What a process runs, under a new mark, and what that means for these tests."""
    return ProcessPlan(
        # A mark of its own for each process: lines kept from one are forged in another.
        mark=secrets.token_hex(8),
        tests=tests,
        run=tuple(run),
        real=frozenset(name for function in functions if function.location not in mutated for name in function.ids),
        mutated=frozenset(run for function in functions if function.location in mutated for run in function.runs),
        must_fail=frozenset(must_fail),
        must_pass=frozenset(must_pass),
    )


def _shuffled(names: list[str], suite: Suite, rng: random.Random) -> list[str]:
    """In random order, but the tests of one class together: their class is set up once."""
    joint = "::" if suite == "pytest" else "."
    groups: dict[str, list[str]] = {}
    # Order alone must not say which of two tests is the canary.
    for name in rng.sample(names, len(names)):
        groups.setdefault(name.rpartition(joint)[0], []).append(name)
    classes = rng.sample(list(groups), len(groups))
    return [name for group in classes for name in groups[group]]
