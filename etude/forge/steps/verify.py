"""A written task verified: scrubbed, searched for copies of what was removed, sent through the gates or `check`. The
search for copies is asked of a candidate too, before anything has run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from etude.forge.gates.gates import pass_gates
from etude.forge.gates.withheld_answers import save_answers
from etude.forge.leaks.audit import audit_leaks
from etude.forge.leaks.deleted_code import Deleted
from etude.forge.leaks.scrub import scrub
from etude.forge.steps.candidate import Candidate, RemovedCode
from etude.forge.steps.context import MakeContext, Refused, timed
from etude.forge.steps.proof import Gates
from etude.sandbox.base import WORKSPACE as HOME
from etude.sandbox.base import Layer
from etude.tasks.check import check
from etude.tasks.environment.layers import task_layers
from etude.tasks.format.task import WORKSPACE, Task


def deleted_code(removed: Sequence[RemovedCode]) -> list[Deleted]:
    return [Deleted(piece.path, piece.name, piece.source) for piece in removed]


async def refuse_copied(context: MakeContext, candidate: Candidate) -> None:
    """What scrub and audit would say of the task, before minutes are spent on the way there. Of tests they say nothing
    yet: those that tell will be hidden."""
    repository, store, deleted = context.repository, context.host.store, deleted_code(candidate.pieces)
    with store.scratch() as folder:
        tree = folder / HOME.strip("/")
        await asyncio.to_thread(repository.files.replaced(candidate.changes).write, tree)
        found = (await asyncio.to_thread(scrub, tree, deleted)).refused
        if not found:
            leaks = await audit_leaks(context.host, [repository.environment.layer, Layer("", folder)], deleted)
            found = [(leak.place.removeprefix(f"{HOME}/"), leak.why) for leak in leaks]
    if copies := [f"{place}: {why}" for place, why in found if not repository.is_test(place.partition("!")[0])]:
        raise Refused("leak", "; ".join(copies[:3]))


async def scrub_workspace(folder: Path, deleted: Sequence[Deleted], spent: dict[str, float]) -> None:
    """Caches, history, and every copy of what was deleted; one that cannot go is a leak."""
    with timed(spent, "scrub"):
        scrubbed = await asyncio.to_thread(scrub, folder / WORKSPACE, deleted)
    if not scrubbed.clean:
        raise Refused("leak", "; ".join(f"{path}: {why}" for path, why in scrubbed.refused[:3]))


async def search_copies(
    context: MakeContext, folder: Path, deleted: Sequence[Deleted], spent: dict[str, float]
) -> None:
    """Refuses a task where a copy of what was deleted is left for the agent to find; the gates do this themselves."""
    with timed(spent, "leaks"):
        leaks = await audit_leaks(context.host, task_layers(Task.load(folder), context.host), deleted)
    if leaks:
        raise Refused("leak", "; ".join(str(leak) for leak in leaks[:3]))


async def verify_by_gates(
    context: MakeContext, folder: Path, gates: Gates, deleted: Sequence[Deleted], spent: dict[str, float]
) -> None:
    """The gates of a change of the code."""
    task = Task.load(folder)
    passed: list[str] = []

    def on_gate(gate: str) -> None:
        passed.append(gate)
        context.note(f"{task.name.removeprefix('.').removesuffix('.making')}: {len(passed)} gates passed, last {gate}")

    green = [test for test in gates.green if test not in context.unsteady]
    verdict = await pass_gates(
        task,
        context.repository.environment,
        context.host,
        green=green,
        suite=green if context.endless else None,
        deleted=deleted,
        whole=gates.whole,
        near_duplicate=context.known.near_duplicate,
        least_broken=gates.least_broken,
        others=gates.others,
        on_gate=on_gate,
    )
    for name, seconds in verdict.spent.items():
        spent[f"gate {name}"] = spent.get(f"gate {name}", 0.0) + seconds
    context.unsteady.update(verdict.unsteady)
    if not verdict.valid:
        spent["gate that refused"] = verdict.seconds - sum(verdict.spent.values())
        raise Refused(verdict.reason, verdict.detail, by_odd_tests=bool(verdict.unsteady))
    if verdict.task is not None:
        await asyncio.to_thread(save_answers, verdict.task, folder)


async def verify_by_check(context: MakeContext, folder: Path, spent: dict[str, float]) -> None:
    """The gates of a task that is no change of the code: all that `etude tasks check` asks."""
    with timed(spent, "check"):
        report = await check(Task.load(folder), context.host)
    if report.errors:
        raise Refused(f"lint: {report.errors[0].rule}", str(report.errors[0]))
    for trial in report.trials:
        if not trial.ok:
            wrong = "the grader rejects the reference" if trial.wanted == "accepted" else "a cheat is accepted"
            raise Refused(wrong, str(trial))
