"""Docstrings to write: mistakes are found that the removed examples notice.

They are chosen as those of tests to write are (`steps/killed_mutants`). The suite has to be green without the
docstrings.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from etude.forge.languages.base import LocatedTest
from etude.forge.leaks.scrub import CODE
from etude.forge.origins.base import Origin
from etude.forge.origins.docstrings.instruct import instruct
from etude.forge.origins.docstrings.propose import (
    LEAST_EXAMPLES,
    UndocumentedFunctions,
    docstring,
    documented_functions,
    without_docstrings,
)
from etude.forge.steps.context import MakeContext, Refused
from etude.forge.steps.instructions import Instructions
from etude.forge.steps.killed_mutants import LEAST, SHARE, TEST_SH, choose_mistakes, noticed, versions_with_mistakes
from etude.forge.steps.proof import Proof
from etude.forge.steps.trial import refuse_failing
from etude.forge.steps.write import TaskTree, assemble
from etude.tasks.format.config import Documentation, PromptStyle
from etude.tasks.format.task import TESTS, WORKSPACE, Task
from etude.tasks.kinds.docstring_examples import FILE, examples_file, module_name
from etude.tasks.kinds.mutants import needed

SECONDS: Final = 60.0  # that the examples may take over one version of the code
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


class Docstrings(Origin[UndocumentedFunctions, Proof[UndocumentedFunctions]]):
    name = "docstrings"
    label = "documentation"
    turns = (6,)

    def propose(self, context: MakeContext, rng: random.Random) -> Iterator[UndocumentedFunctions]:
        return documented_functions(context.python, rng)

    async def prove(
        self, context: MakeContext, candidate: UndocumentedFunctions, rng: random.Random
    ) -> Proof[UndocumentedFunctions]:
        """The candidate with mistakes; the suite that the agent finds is green, but for docstrings that it runs."""
        found = await _with_mistakes(context, candidate, rng)
        ids = [(piece.path, f".{piece.name}") for piece in found.pieces]
        gone = [
            test
            for test in context.repository.green
            if any(test.partition("::")[0] == path and test.endswith(name) for path, name in ids)
        ]
        await refuse_failing(context, found.changes, gone)
        return Proof(found, removed=found.removed)

    def instruct(self, context: MakeContext, proof: Proof[UndocumentedFunctions], rng: random.Random) -> Instructions:
        return instruct(proof.candidate, rng)

    def write(
        self,
        context: MakeContext,
        proof: Proof[UndocumentedFunctions],
        instructions: Instructions,
        prompt_style: PromptStyle,
    ) -> Task:
        candidate = proof.candidate
        (path,) = candidate.changes
        tree = TaskTree(context.repository, candidate.changes)
        tree.put_mutants(candidate.mutants)
        tree.put_solution([path])
        module = module_name(path, context.repository.environment.paths)
        names = [piece.name for piece in candidate.pieces]
        tree.files |= {
            f"{TESTS}/test.sh": TEST_SH.format(command="python -B /tests/examples.py /tmp/app").encode(),
            f"{TESTS}/examples.py": EXAMPLES,
            f"{TESTS}/functions.txt": "\n".join([str(LEAST_EXAMPLES), path, module, *names, ""]).encode(),
        }
        functions = [piece.id for piece in candidate.pieces]
        task = assemble(
            context,
            candidate,
            instructions,
            prompt_style,
            tree,
            documentation=Documentation(functions=functions, examples=LEAST_EXAMPLES, share=SHARE),
            allowed_paths=[path],
            parameters={"functions": functions},
        )
        return replace(task, files=task.files.replaced({f"{TESTS}/wanted.txt": f"{needed(task)}\n".encode()}))

    def remove_copies(self, context: MakeContext, proof: Proof[UndocumentedFunctions], folder: Path) -> None:
        """Files that show one of the removed examples go, as most are too short for the leak audit; code is refused."""
        repository = context.python
        shown: set[bytes] = set()
        for piece in proof.candidate.pieces:
            for example in docstring(repository.modules[piece.path], repository.definitions[piece.id]).examples:
                if piece.name.rpartition(".")[2] in example.source and example.want:
                    shown.add(f">>> {example.source.splitlines()[0].strip()}".encode())
        for path, data in repository.files.items():
            place = folder / WORKSPACE / path
            if b">>> " not in data or place.is_symlink() or not place.is_file():
                continue
            if shown.intersection(line.strip() for line in place.read_bytes().splitlines()):
                if path.endswith(CODE):
                    raise Refused("leak", f"{path} has the same example")
                place.unlink()


async def _with_mistakes(
    context: MakeContext, candidate: UndocumentedFunctions, rng: random.Random
) -> UndocumentedFunctions:
    """Those that its own examples notice."""
    repository = context.python
    (path,) = candidate.changes
    module = repository.modules[path]
    definitions = [repository.definitions[piece.id] for piece in candidate.pieces]
    tried = versions_with_mistakes(repository, candidate.pieces, rng, without_docstrings(module, definitions))
    shown = [docstring(module, each) for each in definitions]
    whole, *runs = await context.run_variants(
        [dict(candidate.changes), *tried],
        [f"{FILE}::test_{number}" for number in range(len(definitions))],
        changes={FILE: examples_file(module_name(path, repository.environment.paths), shown)},
        until_failure=False,
        each=SECONDS,
    )
    if not whole.complete or len(whole.passed) != len(definitions):
        raise Refused("the examples are not right", "; ".join(whole.texts.values()) or whole.reason)

    def place(test: str) -> LocatedTest | None:
        return LocatedTest(*test.split("::")[:2]) if "::" in test else None

    found = [each for files, run in zip(tried, runs, strict=True) if (each := noticed(files, run, place))]
    chosen = choose_mistakes(found)
    if len(chosen) < LEAST:
        raise Refused("too few mistakes are noticed", f"{len(found)} of {len(tried)}, by examples")
    return replace(candidate, mutants=tuple(mistake.files for mistake in chosen))


ORIGIN: Final = Docstrings()
