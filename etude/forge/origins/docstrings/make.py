"""One set of functions without docstrings on its way to a task: mistakes found that the removed examples notice.

Mistakes come from `bugs`, and are chosen as those of tests to write are (`probe`). Then the task has to pass: the suite
is green without the docstrings, no copy of them is left, the reference notices all, cheats are rejected (`check`).
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path
from typing import Final

from etude.forge.environments.suite_run import run_variants
from etude.forge.languages.base import TestFunction
from etude.forge.languages.python.repository import PythonRepository
from etude.forge.leaks.scrub import CODE
from etude.forge.origins.docstrings.instruct import tell_documentation
from etude.forge.origins.docstrings.propose import LEAST_EXAMPLES, docstring, without_docstrings
from etude.forge.origins.test_writing.make import ASSERTED, SHARE, Mistake, choose_mistakes, mistakes
from etude.forge.origins.test_writing.propose import LEAST_MISTAKES as LEAST
from etude.forge.steps.candidate import Candidate, Documenting
from etude.forge.steps.code_change import (
    MadeTask,
    MakeContext,
    Refused,
    being_made,
    failing,
    judge_by_check,
    search_copies,
    timed,
)
from etude.forge.steps.instructions import Instructions
from etude.forge.steps.write import assemble, put
from etude.tasks.format.config import Documentation, PromptStyle
from etude.tasks.format.files import Files, Kind
from etude.tasks.format.task import SOLUTION, TESTS, WORKSPACE, Task, solve_script
from etude.tasks.kinds.docstring_examples import FILE, examples_file, module_name
from etude.tasks.kinds.mutants import FOLDER, needed

# For Harbor's own verifier, which asks less than ours: once as it is, once with each mistake.
TEST_SH: Final = b"""#!/bin/sh
cd /app
cp -R /app /tmp/app
noticed=0
tried() { python -B /tests/examples.py /tmp/app > /dev/null 2>&1; }
if tried; then
  for mutant in /tests/mutants/*; do
    cp -R "$mutant/." /app/
    tried
    if [ $? -eq 1 ]; then noticed=$((noticed + 1)); fi
    cp -R /tmp/app/. /app/
  done
fi
if [ "$noticed" -ge "$(cat /tests/wanted.txt)" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
EXAMPLES: Final = b"""import ast
import doctest
import importlib
import sys

least, file, module, *names = open("/tests/functions.txt").read().split()
body = ast.parse(open(f"{sys.argv[1]}/{file}").read()).body
sys.path.insert(0, "")
known = vars(importlib.import_module(module))
failed = 0
for name in names:
    found = body
    for part in name.split("."):
        node = [each for each in found if getattr(each, "name", "") == part][-1]
        found = node.body
    case = doctest.DocTestParser().get_doctest(ast.get_docstring(node) or "", dict(known), name, None, None)
    if sum(bool(each.want) for each in case.examples) < int(least):
        sys.exit(2)
    failed += doctest.DocTestRunner(verbose=False).run(case).failed
sys.exit(1 if failed else 0)
"""


async def make_documentation(shop: MakeContext, candidate: Candidate, spent: dict[str, float]) -> MadeTask:
    """A task below `wanted.out` under a hidden name. `spent` is told the seconds of each part."""
    assert isinstance(candidate, Documenting)
    rng = random.Random(f"{shop.wanted.seed}/{candidate.key}")
    with timed(spent, "trial"):
        found = await _noticed(shop, candidate, rng)
        await _run_rest(shop, found)
    told = tell_documentation(found, rng)
    task = write_documentation(shop.python, found, told, rng.choice(shop.wanted.prompt_styles), shop.wanted.seed)
    async with being_made(shop, task, spent) as folder:
        with timed(spent, "leaks"):
            await asyncio.to_thread(_take_out_copies, shop.python, found, folder / WORKSPACE)
            await search_copies(shop, folder, found.removed)
        await judge_by_check(shop, folder, spent)
    return MadeTask(task, folder)


async def _noticed(shop: MakeContext, asked: Documenting, rng: random.Random) -> Documenting:
    """The candidate with mistakes that its own examples notice."""
    world = shop.python
    (path,) = asked.changes
    module = world.modules[path]
    definitions = [world.definitions[piece.id] for piece in asked.pieces]
    tried = mistakes(world, asked.pieces, rng, without_docstrings(module, definitions))
    text = examples_file(module_name(path, world.environment.paths), [docstring(module, each) for each in definitions])
    each = 60.0
    whole, *runs = await run_variants(
        shop.host,
        world.environment,
        shop.workspace,
        [dict(asked.changes), *tried],
        tests=[f"{FILE}::test_{number}" for number in range(len(definitions))],
        changes={FILE: text},
        until_failure=False,
        each=each,
        timeout=(1 + len(tried)) * each + 30,
    )
    if not whole.complete or len(whole.passed) != len(definitions):
        raise Refused("the examples are not right", "; ".join(whole.texts.values()) or whole.reason)
    found: list[Mistake] = []
    for files, run in zip(tried, runs, strict=True):
        failed = [test for test, outcome in run.outcomes.items() if outcome in ("failed", "error")]
        if run.complete and failed:
            by = frozenset(TestFunction(*test.split("::")[:2]) for test in failed if "::" in test)
            found.append(Mistake(files, by, any(ASSERTED.search(run.texts.get(test, "")) for test in failed)))
    chosen = choose_mistakes([mistake for mistake in found if mistake.by])
    if len(chosen) < LEAST:
        raise Refused("too few mistakes are noticed", f"{len(found)} of {len(tried)}, by examples")
    return replace(asked, mutants=tuple(mistake.files for mistake in chosen))


async def _run_rest(shop: MakeContext, asked: Documenting) -> None:
    """The suite that the agent finds is green; where it runs docstrings, those are gone."""
    ids = [(piece.path, f".{piece.name}") for piece in asked.pieces]
    gone = [
        test
        for test in shop.world.green
        if any(test.partition("::")[0] == path and test.endswith(name) for path, name in ids)
    ]
    if failed := await failing(shop, asked.changes, gone=gone):
        raise Refused("another test fails", ", ".join(failed[:3]))


def _take_out_copies(world: PythonRepository, asked: Documenting, tree: Path) -> None:
    """Files that show one of the removed examples go, as most are too short for the leak audit; code is refused."""
    shown: set[bytes] = set()
    for piece in asked.pieces:
        for example in docstring(world.modules[piece.path], world.definitions[piece.id]).examples:
            if piece.name.rpartition(".")[2] in example.source and example.want:
                shown.add(f">>> {example.source.splitlines()[0].strip()}".encode())
    for path, data in world.files.items():
        place = tree / path
        if b">>> " not in data or place.is_symlink() or not place.is_file():
            continue
        lines = {line.strip() for line in place.read_bytes().splitlines()}
        if lines & shown:
            if path.endswith(CODE):
                raise Refused("leak", f"{path} has the same example")
            place.unlink()


def write_documentation(
    world: PythonRepository, asked: Documenting, told: Instructions, prompt_style: PromptStyle, seed: int
) -> Task:
    """The task, in memory."""
    files: dict[str, bytes] = {}
    kinds: dict[str, Kind] = {}
    (changed,) = asked.changes
    for path, data in world.files.items():
        put(files, kinds, world, f"{WORKSPACE}/{path}", path, asked.changes.get(path, data))
    put(files, kinds, world, f"{SOLUTION}/{changed}", changed, world.files[changed])
    for number, mutant in enumerate(asked.mutants, start=1):
        files |= {f"{TESTS}/{FOLDER}/{number:02}/{path}": data for path, data in mutant.items()}
    module = module_name(changed, world.environment.paths)
    names = [piece.name for piece in asked.pieces]
    files |= {
        f"{TESTS}/test.sh": TEST_SH,
        f"{TESTS}/examples.py": EXAMPLES,
        f"{TESTS}/functions.txt": "\n".join([str(LEAST_EXAMPLES), changed, module, *names, ""]).encode(),
        "solution/solve.sh": solve_script("/app"),
    }
    functions = [piece.id for piece in asked.pieces]
    task = assemble(
        world,
        asked,
        told,
        prompt_style,
        seed,
        Files(files, kinds),
        documentation=Documentation(functions=functions, examples=LEAST_EXAMPLES, share=SHARE),
        allowed_paths=[changed],
        parameters={"functions": functions},
    )
    return replace(task, files=task.files.replaced({f"{TESTS}/wanted.txt": f"{needed(task)}\n".encode()}))
