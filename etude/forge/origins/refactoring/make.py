"""One refactoring on its way to a task: the edited tree proven green, its tests red without it, written, gated.

    the whole edit made        every test that was green still is, under the same id, and nothing stayed behind
    only the tests edited      those that notice fail: they judge; the others must not care
    gates                      as for all edits of the code, with cheats of this origin

The workspace is the repository as it is; `tests/` has the test files in their new form and one more that looks for what
was left behind; the reference is the edit of code, tests and documents.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from etude.forge.environments.suite_run import SuiteRun, run_suite
from etude.forge.languages.base import TestFunction
from etude.forge.languages.python.repository import PythonRepository
from etude.forge.languages.python.source import Module
from etude.forge.origins.refactoring.instruct import kind_of, tell_refactoring
from etude.forge.steps.candidate import Candidate, Refactoring
from etude.forge.steps.choose_functions import LEAST_TESTS
from etude.forge.steps.code_change import MadeTask, MakeContext, Refused, being_made, judge_by_gates, scrub_all, timed
from etude.forge.steps.instructions import Instructions
from etude.forge.steps.write import allowed_paths, assemble, beside_tests, choose_kept, put
from etude.tasks.format.config import PromptStyle, Refactor
from etude.tasks.format.files import Files, Kind
from etude.tasks.format.task import SOLUTION, TESTS, WORKSPACE, Task, solve_script

MOST_ASKED: Final = 120  # ids of the repository's own that have to pass at each grading
MOST_SECONDS: Final = 4.0  # that those may take together


@dataclass(frozen=True)
class _Proven:
    """What running it showed."""

    noticing: tuple[str, ...]  # the repository's own tests in their new form that fail before
    proof: tuple[str, ...]  # those of what was left behind, which fail before too
    kept: tuple[str, ...]  # tests that pass before and after


async def make_refactoring(shop: MakeContext, candidate: Candidate, spent: dict[str, float]) -> MadeTask:
    """A task below `wanted.out` under a hidden name. `spent` is told the seconds of each part."""
    assert isinstance(candidate, Refactoring)
    with timed(spent, "trial"):
        proven = await _prove(shop, candidate)
    wanted = shop.wanted
    rng = random.Random(f"{wanted.seed}/{candidate.key}")
    told = tell_refactoring(candidate, rng)
    task = write_refactoring(shop.python, candidate, proven, told, rng.choice(wanted.prompt_styles), wanted.seed)
    async with being_made(shop, task, spent) as folder:
        await scrub_all(folder, [], spent)
        green = [*proven.noticing, *proven.proof, *proven.kept]
        whole = shop.world.files.replaced(_whole(candidate))
        await judge_by_gates(shop, folder, spent, green=green, deleted=[], whole=whole)
    return MadeTask(task, folder)


def _whole(asked: Refactoring) -> dict[str, bytes | None]:
    path, text = asked.proof
    return {**asked.edits, path: text}


def _tests_alone(world: PythonRepository, asked: Refactoring) -> dict[str, bytes | None]:
    return {path: data for path, data in _whole(asked).items() if world.is_test(path)}


async def _prove(shop: MakeContext, asked: Refactoring) -> _Proven:
    world, timeout = shop.python, 5 * shop.base.seconds + 30

    async def run(changes: Mapping[str, bytes | None], tests: Sequence[str] | None = None) -> SuiteRun:
        found = await run_suite(
            shop.host, world.environment, shop.workspace, changes=changes, tests=tests, timeout=timeout
        )
        if not found.complete:
            raise Refused("the suite does not come to its end", found.reason)
        return found

    green = [test for test in world.green if test not in shop.unsteady and not _is_gone(world, asked, test)]
    whole = _whole(asked)
    after = await run(whole)
    failed = [test for test in green if test not in after.passed]
    if failed:
        again = (await run(whole, failed)).passed.intersection(failed)
        shop.unsteady.update(again)
        if stay := [test for test in failed if test not in again]:
            raise Refused("the edit breaks a test", _said(stay, after))
    names = [f"{asked.proof[0]}::{name}" for name in _functions(asked.proof[1])]
    if left := [test for test in names if test not in after.passed]:
        raise Refused("the edit leaves something behind", _said(left, after))
    before = await run(_tests_alone(world, asked))
    # What lies outside of the tests' own files may be edited, and so changed, by whoever does the work.
    steady = [test for test in green if test not in shop.unsteady and test.partition("::")[0] in world.tests]
    noticing = [test for test in steady if test not in before.passed]
    proof = [test for test in names if test not in before.passed]
    if not noticing:
        raise Refused("no test notices")
    if not proof or len(noticing) + len(proof) < LEAST_TESTS:
        raise Refused("too few tests notice", ", ".join(noticing[:3]))
    kept = [test for test in steady if test in before.passed]
    return _Proven(tuple(_chosen(world, asked, noticing)), tuple(proof), tuple(kept))


def _is_gone(world: PythonRepository, asked: Refactoring, test: str) -> bool:
    """Whether a test in the code itself, a doctest, gets another id."""
    path, _, name = test.partition("::")
    return path not in world.tests and (asked.edits.get(path, b"") is None or asked.old in re.findall(r"\w+", name))


def _chosen(world: PythonRepository, asked: Refactoring, noticing: Sequence[str]) -> list[str]:
    """So many of the tests that notice, whole functions: those first that speak of what changes."""
    new = asked.new if asked.how != "move" else asked.dotted[1].rpartition(".")[2]
    places: dict[TestFunction, list[str]] = {}
    for test in noticing:
        if world.place(test) == world.collected(test) or not world.place(test).name:
            places.setdefault(world.collected(test), []).append(test)

    def speaks(place: TestFunction) -> bool:
        data = asked.edits.get(place.path)
        module = Module.read(place.path, data) if data is not None else None
        found = module.definitions.get(place.name) if module is not None else None
        return module is not None and found is not None and new in module.source(found)

    chosen: set[str] = set()
    seconds = 0.0
    for place in sorted(places, key=lambda place: not speaks(place)):
        tests = places[place]
        more = sum(world.took.get(test, 0.0) for test in tests)
        if not chosen or (len(chosen) + len(tests) <= MOST_ASKED and seconds + more <= MOST_SECONDS):
            chosen.update(tests)
            seconds += more
    return [test for test in noticing if test in chosen]


def _functions(text: bytes) -> list[str]:
    module = Module.read("test.py", text)
    assert module is not None
    return [name for name in module.definitions if name.startswith("test_")]


def _said(tests: Collection[str], run: SuiteRun) -> str:
    first = next(iter(tests))
    lines = run.texts.get(first, run.texts.get(first.partition("::")[0], "")).strip().splitlines()
    return f"{first}{f' and {len(tests) - 1} more' if len(tests) > 1 else ''}: {lines[-1] if lines else 'not there'}"


def write_refactoring(
    world: PythonRepository,
    asked: Refactoring,
    proven: _Proven,
    told: Instructions,
    prompt_style: PromptStyle,
    seed: int,
) -> Task:
    """The task, in memory."""
    rng = random.Random(f"{seed}/{asked.key}/kept")
    changed = replace(asked, changes={path: data for path, data in asked.edits.items() if not world.is_test(path)})
    read = {test.partition("::")[0] for test in (*proven.noticing, *proven.proof)}
    pass_to_pass = choose_kept(world, changed, proven.kept, rng, read)
    files: dict[str, bytes] = {}
    kinds: dict[str, Kind] = {}
    for path, data in world.files.items():
        put(files, kinds, world, f"{WORKSPACE}/{path}", path, data)
        if world.is_test(path) or beside_tests(world, path):
            put(files, kinds, world, f"{TESTS}/{path}", path, asked.edits.get(path, data))
    for path, after in asked.edits.items():
        if after is not None:
            files[f"{SOLUTION}/{path}"] = after
            if world.files.get(path) is not None and world.files.kind(path) != "file":
                kinds[f"{SOLUTION}/{path}"] = world.files.kind(path)
    removed = [path for path, after in asked.edits.items() if after is None]
    ids = [*proven.noticing, *pass_to_pass, *proven.proof]
    files |= {
        f"{TESTS}/{asked.proof[0]}": asked.proof[1],
        f"{TESTS}/test.sh": world.manner.test_script,
        f"{TESTS}/ids.txt": "\n".join([*ids, ""]).encode(),
        "solution/solve.sh": solve_script("/app", removed),
    }
    return assemble(
        world,
        asked,
        told,
        prompt_style,
        seed,
        Files(files, kinds),
        fail_to_pass=list(proven.noticing),
        pass_to_pass=pass_to_pass,
        held_out=list(proven.proof),
        allowed_paths=_allowed(world, changed, asked),
        removed=removed,
        refactor=Refactor(
            kind=kind_of(asked),
            symbol="" if asked.how == "move" else asked.pieces[0].id,
            old=asked.old,
            new=asked.new,
        ),
    )


def _allowed(world: PythonRepository, changed: Candidate, asked: Refactoring) -> list[str]:
    """The project's folders, a new one among them, the documents that change; and the tests that do, by name: what
    lies in the task's own is laid over them."""
    found = allowed_paths(world, changed)
    if asked.how == "move" and f"{asked.old.rpartition('/')[0]}/*.py" in found:
        folder = asked.new.rpartition("/")[0]
        found = [*(path for path in found if not path.startswith(f"{folder}/")), f"{folder}/*.py"]
    return [*found, *(path for path in sorted(asked.edits) if world.is_test(path))]
