"""Two tasks of one repository as one harder task: both pieces are missing, both have to come back.

What only one of the two changed comes from that one; a file that both changed is merged line by line, and where the two
meet in the same lines the pair gives no task. A test file and its withheld answers come from the task that holds some
of its tests out. The result is checked like any other task before it counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from etude.forge.steps.git_history import merged
from etude.sandbox.hosts import StoringHost
from etude.tasks.check import check
from etude.tasks.format.config import Withheld
from etude.tasks.format.file_tree import Files, Kind
from etude.tasks.format.task import SOLUTION, TESTS, WORKSPACE, Task
from etude.tasks.grading.withheld.answers import FILE as ANSWERS
from etude.tasks.grading.withheld.answers import Answers, answers_of

HARDEST = 5  # the highest level


def pairs(tasks: Sequence[Task]) -> Iterator[tuple[Task, Task]]:
    """Those that come from the same repository, in the same environment, with nothing deleted in common."""
    for first, second in combinations(tasks, 2):
        mine, yours = first.facts, second.facts
        same = mine.environment is not None and mine.environment == yours.environment
        same = same and bool(mine.fail_to_pass and yours.fail_to_pass)  # not where an answer or tests are asked for
        if same and not set(mine.deleted) & set(yours.deleted):
            yield first, second


def combine(first: Task, second: Task) -> Task | None:
    """The combined task; None where both changed the same lines, each in its own way."""
    workspace, tests = _merged(first, second), _tests(first, second)
    if workspace is None or tests is None:
        return None
    mine, yours = first.facts, second.facts
    broken = [*mine.fail_to_pass, *yours.fail_to_pass]
    hidden = [*mine.held_out, *yours.held_out]
    asked = {*broken, *hidden}
    # A test that one of the two breaks cannot stay green in both.
    kept = [test for test in mine.pass_to_pass if test in set(yours.pass_to_pass) and test not in asked]
    facts = mine.model_copy(
        update={
            "family": f"{mine.family} + {yours.family}",
            "provenance": f"{mine.provenance} + {yours.provenance}",
            "level": min(HARDEST, max(mine.level, yours.level) + 1),
            "fail_to_pass": list(dict.fromkeys(broken)),
            "held_out": [test for test in dict.fromkeys(hidden) if test not in broken],
            "pass_to_pass": kept,
            "deleted": [*mine.deleted, *yours.deleted],
            "allowed_paths": list(dict.fromkeys([*mine.allowed_paths, *yours.allowed_paths])),
            "withheld": _withheld(mine.withheld, yours.withheld),
        }
    )
    if (answers := _answers(first, second, [*facts.fail_to_pass, *kept, *facts.held_out], tests)) is None:
        return None
    files = {
        path: data for path, data in first.files.items() if not path.startswith((WORKSPACE, SOLUTION, "instructions/"))
    }
    files |= {f"{TESTS}/{path}": owner.tests[path] for path, owner in tests.items()} | answers
    files |= {f"{WORKSPACE}/{path}": data for path, data in workspace.items()}
    files |= {f"{SOLUTION}/{path}": data for task in (first, second) for path, data in task.solution.items()}
    files[f"{TESTS}/ids.txt"] = "\n".join([*facts.fail_to_pass, *kept, *facts.held_out, ""]).encode()
    for path in (path for path in first.files if path.startswith("instructions/") and path in second.files):
        files[path] = _both(first.files.text(path), second.files.text(path)).encode()
    sources = {**_kinds(second), **_kinds(first)}
    name = f"{first.name}--{second.name.rpartition('-')[2]}"
    return Task(
        name,
        _both(first.instruction, second.instruction),
        first.config,
        facts,
        Files(files, {path: kind for path, kind in sources.items() if path in files}),
    )


def _merged(first: Task, second: Task) -> dict[str, bytes] | None:
    """The workspace with both changes. What a file was before a task stands in its solution, or else in its tests."""
    files: dict[str, bytes] = {}
    for path in {*first.workspace, *second.workspace}:
        mine, yours = first.workspace.get(path), second.workspace.get(path)
        if mine == yours or not _touches(second, path):
            found = mine
        elif not _touches(first, path):
            found = yours
        else:
            before = first.solution.get(path, first.tests.get(path))
            if mine is None or yours is None or before is None or (found := merged(mine, before, yours)) is None:
                return None
        if found is not None:
            files[path] = found
    return files


def _touches(task: Task, path: str) -> bool:
    """Whether the task's workspace has a file otherwise than the repository. Its tests may have more than that had."""
    return path in task.solution or (path in task.tests and task.workspace.get(path) != task.tests[path])


def _tests(first: Task, second: Task) -> dict[str, Task] | None:
    """Whose copy of each test file counts: the one from which tests were held out. None where both did, differently."""
    owners: dict[str, Task] = {}
    for path in {*first.tests, *second.tests} - {ANSWERS, "ids.txt", "test.sh"}:
        both = path in first.tests and path in second.tests
        if both and _touches(first, path) and _touches(second, path) and first.tests[path] != second.tests[path]:
            return None
        owners[path] = second if path not in first.tests or (both and _touches(second, path)) else first
    return owners


def _answers(first: Task, second: Task, required: Sequence[str], owners: Mapping[str, Task]) -> dict[str, bytes] | None:
    """The file of withheld answers, each from the task whose test file counts; None where one is not known there."""
    known = {task.name: answers_of(task) for task in (first, second)}
    if not any(known.values()):
        return {}
    if not all(known.values()):
        return None
    homes = {test: path for answers in known.values() if answers for test, path in answers.homes.items()}
    by_test: dict[str, dict[str, Any]] = {"records": {}, "homes": {}, "ids": {}}
    by_file: dict[str, dict[str, Any]] = {"demoted": {}, "left": {}, "cut": {}}
    for test in required:
        answers = known[owners[homes[test]].name] if homes.get(test) in owners else None
        if answers is None or test not in answers.records:
            return None
        for name, values in by_test.items():
            if test in (given := getattr(answers, name)):
                values[test] = given[test]
    for path, owner in owners.items():
        for name, values in by_file.items():
            if path in (given := getattr(known[owner.name], name)):
                values[path] = given[path]
    found: dict[str, Any] = {**by_test, **by_file}
    return {f"{TESTS}/{ANSWERS}": Answers(**found).write()}


def _withheld(mine: Withheld | None, yours: Withheld | None) -> Withheld | None:
    """What the answers of both are worth; their assertions are added up too."""
    if mine is None or yours is None:
        return None
    assertions = mine.assertions + yours.assertions
    unshared = mine.unshared * mine.assertions + yours.unshared * yours.assertions
    return Withheld(
        plan=mine.plan,
        bits=mine.bits + yours.bits,
        tests=mine.tests + yours.tests,
        unrecorded=mine.unrecorded + yours.unrecorded,
        solutions=min(mine.solutions, yours.solutions),
        assertions=assertions,
        unshared=unshared / assertions if assertions else 0.0,
    )


def _kinds(task: Task) -> dict[str, Kind]:
    return {path: task.files.kind(path) for path in task.files if task.files.kind(path) != "file"}


def _both(first: str, second: str) -> str:
    return f"Two things.\n\n{first.strip()}\n\nAnd separately:\n\n{second.strip()}\n"


async def combine_checked(
    tasks: Sequence[Task], out: Path, count: int, host: StoringHost, on_made: Callable[[], None]
) -> tuple[list[Path], dict[str, int]]:
    """Writes at most `count` combined tasks below `out`, each checked; those, and why other pairs were rejected.

    One that is there already counts as made, so that a command which was stopped goes on.
    """
    made: list[Path] = []
    rejected: Counter[str] = Counter()
    for first, second in pairs(tasks):
        if len(made) == count:
            break
        target = out / f"{first.name}--{second.name}"
        if not target.exists() and (why := await make_pair(first, second, target, host)):
            rejected[why] += 1
            continue
        made.append(target)
        on_made()
    return made, dict(rejected)


async def make_pair(first: Task, second: Task, target: Path, host: StoringHost) -> str:
    """Writes the two as one task, if they can be one and it passes its check; else why not."""
    found = combine(first, second)
    if found is None:
        return "both change the same lines"
    if not (await check(found, host)).ok:
        return "the check did not pass"
    found.save(target)
    return ""
