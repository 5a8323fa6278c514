"""One candidate on its way to a task, whatever its origin: proven, worded, written, scrubbed, verified.

Every way that does not lead to a task ends in `Refused`. Knows nothing about the order of candidates or what came of
others.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from etude.core.errors import EtudeError
from etude.forge.gates.gates import ANOTHER
from etude.forge.origins.table import AnyOrigin
from etude.forge.steps.add_inputs import add_inputs
from etude.forge.steps.candidate import Candidate
from etude.forge.steps.code_change import CodeChange
from etude.forge.steps.context import MakeContext, Refused, timed
from etude.forge.steps.make_fair import make_fair
from etude.forge.steps.proof import Proof
from etude.forge.steps.verify import deleted_code, scrub_workspace, search_copies, verify_by_check, verify_by_gates
from etude.tasks.format.task import Task
from etude.tasks.grade import grade
from etude.tasks.grading.submission import submission_of

# Each time without the tests that proved odd: they look at their own source or at who runs them. A repository with
# more than a few of them at a time is refused for it.
TRIES: Final = 3


@dataclass(frozen=True)
class MadeTask:
    """A task that passed, in a folder that has no name of its own yet."""

    task: Task
    folder: Path


async def make_task(
    origin: AnyOrigin, context: MakeContext, candidate: Candidate, spent: dict[str, float], tries: int = TRIES
) -> MadeTask:
    """A task below the request's folder under a hidden name. `spent` collects the seconds of each part."""
    request = context.request
    rng = random.Random(f"{request.seed}/{candidate.key}")
    with timed(spent, "trial"):
        proof = await origin.prove(context, candidate, rng)
    if proof.candidate.key != candidate.key:  # a question whose answer was found is another one, with its own words
        rng = random.Random(f"{request.seed}/{proof.candidate.key}")
    instructions = origin.instruct(context, proof, rng)
    if isinstance(proof, CodeChange):
        with timed(spent, "fairness"):
            fair = await make_fair(context, proof, instructions)
        with timed(spent, "inputs"):
            proof = await add_inputs(context, fair)
        instructions = fair.instructions
    task = origin.write(context, proof, instructions, rng.choice(request.prompt_styles))
    try:
        async with _being_made(request.out, task, spent) as folder:
            await _verify(origin, context, proof, folder, spent)
    except Refused as refused:
        if refused.by_odd_tests and tries > 1:
            return await make_task(origin, context, candidate, spent, tries - 1)
        if refused.reason != ANOTHER or not proof.partial:
            raise
        return await make_task(origin, context, replace(candidate, try_all=True), spent, tries)
    return MadeTask(task, folder)


async def _verify(
    origin: AnyOrigin, context: MakeContext, proof: Proof[Any], folder: Path, spent: dict[str, float]
) -> None:
    deleted = deleted_code(proof.removed)
    await scrub_workspace(folder, deleted, spent)
    await asyncio.to_thread(origin.remove_copies, context, proof, folder)
    if proof.gates is not None:
        await verify_by_gates(context, folder, proof.gates, deleted, spent)
    else:
        if deleted:
            await search_copies(context, folder, deleted, spent)
        await verify_by_check(context, folder, spent)
    task = Task.load(folder)
    for name, files in origin.attacks(task).items():
        changes = submission_of(task, dict(files))
        with timed(spent, "attacks"):
            # Where nothing of it reaches the grader, it is doing nothing, which has been graded.
            if changes.files and (await grade(task, context.host, changes, quick=True)).passed:
                raise Refused("a cheat is accepted", name)


@asynccontextmanager
async def _being_made(out: Path, task: Task, spent: dict[str, float]) -> AsyncIterator[Path]:
    """A folder with the task, under a hidden name; removed where it turns out to be none."""
    folder = out / f".{task.name}.making"
    try:
        with timed(spent, "write"):
            await asyncio.to_thread(_save, task, folder)
        yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _save(task: Task, folder: Path) -> None:
    """Writes a task where another of the same name may lie half made."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        task.save(folder)
    except OSError as error:
        raise EtudeError(
            f"cannot write {folder.parent}: {error.strerror}; make room, the same command goes on"
        ) from error
