"""What one grading run of a JavaScript task consists of, as `test_plan` draws it for Python.

Tests and tested code share a process, and what that process says is never believed by itself: several test processes
run the required tests, each test as it is in one of them and mutated in the others, among canaries whose outcome is
known. Who forges what he reports, bends the framework or equals everything cannot know which is which. Starts nothing.
"""

from __future__ import annotations

import random
import re
import secrets
from collections.abc import Mapping, Sequence
from functools import partial

from etude.core.errors import EtudeError
from etude.tasks.format.config import Installed
from etude.tasks.format.task import Task
from etude.tasks.grading.javascript_test_mutations import Mutation, failing, mutate, mutations_of
from etude.tasks.grading.test_mutations import word
from etude.tasks.grading.test_plan import (
    MOST_PROCESSES,
    UNLIKELY,
    GradingPlan,
    ProcessPlan,
    RequiredTest,
    choose_mutated,
    process_plan,
    repository_sources,
    required_ids,
    several_parts,
)
from etude.tasks.javascript.test_source import SUITES, TestFile, Unit, read
from etude.tasks.sandbox_side.node_tests import id_of

Location = tuple[str, str]
Mutations = Mapping[Location, tuple[Mutation, ...]]


def draw_javascript(task: Task, installed: Installed, rng: random.Random) -> GradingPlan:
    """A plan for one run of the task's tests."""
    required = required_ids(task)
    sources = {path: task.tests[path].decode() for path in repository_sources(task)}
    files = script_files(task, required, sources)
    functions = test_functions(required, files)
    mutations = {each.location: found for each in functions if (found := _mutations(files[each.path], each.name))}
    some = choose_mutated(task, [each for each in functions if each.location in mutations], rng)
    # A negated condition, or a function that throws nothing, is known by its first sign: who forges has to guess only
    # where a literal takes the place of another. Without one, all that there is to know was in the workspace.
    unknown = [each for each in some if any(mutation.leaf for mutation in mutations[each.location])]
    hidden = sum(not set(each.ids).isdisjoint(task.facts.held_out) for each in unknown)
    if not hidden:
        raise EtudeError(
            f"task {task.name} has no held-out test with a literal that can be mutated, so forging could not be noticed"
        )
    make = partial(_part, sources=sources, files=files, mutations=mutations, rng=rng)
    # Three, where enough is held out.
    parts = several_parts(task, functions, some, rng, make, MOST_PROCESSES, UNLIKELY, hidden)
    return GradingPlan(required, parts, secrets.token_hex(16), "node", apart=False, plain=False, installed=installed)


def script_files(task: Task, required: Sequence[str], sources: Mapping[str, str]) -> dict[str, TestFile]:
    """The files that the required tests stand in, read."""
    return {path: _file(task, path, sources) for path in dict.fromkeys(test.partition("::")[0] for test in required)}


def _file(task: Task, path: str, sources: Mapping[str, str]) -> TestFile:
    if path not in sources:
        raise EtudeError(f"task {task.name} requires tests of {path}, but tests/ has no such file")
    found = read(sources[path])
    if found is None:
        raise EtudeError(f"task {task.name}: tests/{path} is no JavaScript that can be read")
    return found


def test_functions(required: Sequence[str], files: Mapping[str, TestFile]) -> list[RequiredTest]:
    """The calls that the required tests are written in, in the order of the ids."""
    grouped: dict[Location, list[str]] = {}
    for test in required:
        path, _, name = test.partition("::")
        grouped.setdefault((path, files[path].home(name).path), []).append(test)
    return [
        RequiredTest(path, name, tuple(dict.fromkeys(each.partition("[")[0] for each in ids)), tuple(ids))
        for (path, name), ids in grouped.items()
    ]


def _mutations(file: TestFile, path: str) -> tuple[Mutation, ...]:
    """What can be mutated: nothing in a group, or in a test whose name is given twice."""
    units = file.all_at(path)
    # Of two tests with one name nobody knows which one reported.
    if len(units) != 1 or units[0].parts:
        return ()
    found = mutations_of(file, units[0])
    # What a change adds is easier to tell from a real test than what it replaces, and a literal hardest.
    literals = tuple(change for change in found if change.leaf)
    return literals or tuple(change for change in found if not change.adds) or found


def _part(
    functions: Sequence[RequiredTest],
    mutated: set[Location],
    sources: Mapping[str, str],
    files: Mapping[str, TestFile],
    mutations: Mutations,
    rng: random.Random,
) -> ProcessPlan:
    chosen: dict[str, list[Mutation]] = {}
    for function in functions:
        if function.location in mutated:
            chosen.setdefault(function.path, []).append(rng.choice(mutations[function.location]))
    tests = {path: mutate(text, chosen[path], rng) if path in chosen else text for path, text in sources.items()}
    path = rng.choice(functions).path
    code, must_fail, must_pass = draw_canaries(path, files[path], rng)
    tests[path] = f"{tests[path].rstrip()}\n\n{code}"
    paths = list(dict.fromkeys(function.path for function in functions))
    rng.shuffle(paths)
    run = [test for each in paths for function in functions if function.path == each for test in function.ids]
    return process_plan(functions, mutated, tests, [*run, *must_fail, *must_pass], must_fail, must_pass)


def draw_canaries(path: str, file: TestFile, rng: random.Random) -> tuple[str, list[str], list[str]]:
    """What to append to a test file: its source, ids that must fail, and ids that must pass. None where nothing in
    the file says how a test is made there."""
    maker = _maker(file)
    if maker is None:
        return "", [], []
    callee, like = maker
    fails = failing(file, like)
    asked = fails.partition(".")[0] if ".equal(" in fails else ""  # what is asked: a test of its own, or `assert`
    given = asked if asked != "assert" else ""
    ends = f" {given}.end();" if given and fails.startswith(f"{given}.equal(") else ""  # tape's tests end so
    names = [f"{word(rng)} {word(rng)}" for _ in range(3)]
    same = word(rng)
    bodies = [fails.format(word(rng), word(rng)), fails.format(word(rng), word(rng))]
    bodies.append(fails.format(same, same) if asked else "0")
    code = "".join(
        f"{callee}('{name}', function ({given}) {{ {body};{ends} }});\n"
        for name, body in zip(names, bodies, strict=True)
    )
    ids = [id_of(path, [name]) for name in names]
    return code, ids[:2], ids[2:]


def _maker(file: TestFile) -> tuple[str, Unit] | None:
    """What to call for another test at the end of a file, and a test that is made so."""
    tests = [unit for unit in file.top.units() if not unit.parts and re.fullmatch(r"\w+", unit.callee)]
    found = next((unit for unit in tests if unit.callee not in SUITES), None)
    if found is not None:
        return found.callee, found
    outer = next((unit for unit in file.top.parts if re.fullmatch(r"\w+", unit.callee)), None)
    return (outer.callee, outer) if outer is not None and outer.callee not in SUITES else None
