"""How much a hint helps a model that was fine-tuned: the error rate of a turn with the hint above it against without.

    python benchmarks/learning/hint_lift.py MODEL [--recipe nano-feedback] [--tasks 200] [--samples 8] [--out FILE]

MODEL is a run or a checkpoint. It tries tasks of `rl.tasks` once. At every call whose text or file was not found the
same turn is sampled again from the same tokens, with the hint of feedback above it and without, and its calls are
looked up in the files as they were then. Below a lift of 2 the demonstrations have to be mended before any loss is
judged.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from etude.behaviours.base import steps_of
from etude.behaviours.table import build_behaviours
from etude.core import recipe as recipes
from etude.core.policy import Assistant, Context, Sampling
from etude.forge.curriculum.sources import open_source
from etude.pipeline.find_model import find_model
from etude.policies.engine_client import EngineClient, launch
from etude.rollout.rollout import RolloutSetup, Scored, build_setup, temporary_host
from etude.rollout.scheduler import JobRunner, RolloutJob
from etude.tasks.format.task import Task
from etude.tokens.dialect import Dialect, open_dialect

KINDS = ("text_not_found", "no_such_file")
BAR = 2.0


@dataclass(frozen=True)
class Place:
    """A turn that failed, as tokens without and with its hint, and the files as they were then."""

    plain: tuple[int, ...]
    hinted: tuple[int, ...]
    files: dict[str, str]
    changed: bool  # an edit had worked before: a turn that edits no more is right, too


def places(scored: Scored, kind: str) -> Iterator[Place]:
    for hint in scored.hints:
        site = scored.sites[hint.site]
        if site.kind != f"tool_errors.{kind}":
            continue
        ids = scored.trajectory.segments[hint.segment].ids
        hinted = (*ids[: hint.at], *hint.inserted)
        before, now = files_at(scored, 0), files_at(scored, site.message)
        yield Place(tuple(ids[: hint.start]), hinted, now, before != now)


def files_at(scored: Scored, message: int) -> dict[str, str]:
    """Texts of the workspace when a turn began: what the task had, and the edits that had worked until then."""
    texts = {path: scored.task.workspace.text(path) for path in scored.task.workspace if path.endswith(".py")}
    for step in steps_of(scored.trajectory):
        given = step.call.arguments
        if step.turn < message and step.call.name == "edit" and step.result and step.result.error is None:
            texts[given["path"]] = texts.get(given["path"], "").replace(given["old"], given["new"], 1)
    return texts


def fails(turn: object, place: Place, kind: str) -> bool | None:
    """Whether a call of the turn makes that error; None of a turn that has no call which could, and should."""
    files = place.files
    calls = [call for call in turn.calls if "path" in call.arguments] if isinstance(turn, Assistant) else []
    if kind == "no_such_file":
        return any(call.arguments["path"] not in files for call in calls) if calls else None
    known = [call for call in calls if call.name == "edit" and call.arguments["path"] in files]
    if not known:
        return False if place.changed and isinstance(turn, Assistant) else None
    return any(call.arguments.get("old", "") not in files[call.arguments["path"]] for call in known)


async def again(
    engine: EngineClient, dialect: Dialect, ids: tuple[int, ...], place: Place, kind: str, samples: int
) -> list[bool | None]:
    sampling = Sampling(160, 1.0, stop_ids=dialect.stop_ids)
    asked = [engine.sample(Context((), ids), replace(sampling, seed=seed)) for seed in range(samples)]
    return [fails(dialect.parse_turn(sample.ids or ()), place, kind) for sample in await asyncio.gather(*asked)]


async def lift(
    engine: EngineClient, dialect: Dialect, scored: list[Scored], kind: str, samples: int
) -> dict[str, float]:
    found = [place for each in scored for place in places(each, kind)]
    rates: dict[str, float] = {"places": len(found), "changed": sum(place.changed for place in found)}
    for name in ("plain", "hinted"):
        asked = [again(engine, dialect, getattr(place, name), place, kind, samples) for place in found]
        heard = [value for values in await asyncio.gather(*asked) for value in values]
        known = [value for value in heard if value is not None]
        rates[name], rates[f"{name}_turns"] = sum(known) / max(1, len(known)), len(known)
    # No failure at all with the hint counts as one: the lift is then a lower bound.
    rates["lift"] = rates["plain"] / max(rates["hinted"], 1 / max(1, rates["hinted_turns"]))
    return rates


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    recipe = recipes.load(options.recipe)
    model = find_model(Path(options.model))
    dialect = open_dialect(model, recipe.harness.template)
    setup: RolloutSetup = build_setup(recipe.harness, recipe.reward, recipe.grader, recipe.audit, dialect=dialect)
    behaviours = [{"use": "tool_errors", "classes": list(KINDS)}]
    setup = replace(setup, taught=build_behaviours(behaviours, "here"))
    source = open_source(recipe.rl.tasks, "rl.tasks")
    tasks: list[Task] = list(islice(source.tasks(recipe.rl.first_task + options.first), options.tasks))
    with tempfile.TemporaryDirectory() as logs:
        engine = await launch(model, recipe.engine, log=Path(logs) / "engine.log", decode=dialect.decode)
        try:
            async with temporary_host(recipe.run.sandbox) as host:
                jobs = [RolloutJob(task, seed=number) for number, task in enumerate(tasks)]
                outcomes = await JobRunner(engine, host, setup).run_all(jobs, 64, lambda *_: None)
            scored = [outcome for outcome in outcomes if isinstance(outcome, Scored)]
            lifts = {kind: await lift(engine, dialect, scored, kind, options.samples) for kind in KINDS}
        finally:
            await engine.close()
    sites = Counter(site.kind for each in scored for site in each.sites)
    passed = sum(each.passed for each in scored) / max(1, len(scored))
    return {"tasks": len(scored), "pass_rate": passed, "sites": dict(sites), **lifts}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--recipe", default="nano-feedback")
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="tasks left out behind rl.first_task")
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = asyncio.run(measure(options))
    for kind in KINDS:
        rates = found[kind]
        if not rates["places"]:
            print(f"{kind}: no turn failed so, and nothing can be said of its hint")
            continue
        print(
            f"{kind}: {rates['places']:.0f} turns ({rates['changed']:.0f} behind an edit that worked), sampled again: "
            f"{rates['plain']:.1%} fail without the hint, ",
            end="",
        )
        print(f"{rates['hinted']:.1%} with it; lift {rates['lift']:.2f} (bar {BAR})")
    if options.out:
        options.out.write_text(json.dumps(found) + "\n")
    if options.json:
        print(json.dumps(found))
    return 0 if all(found[kind]["lift"] >= BAR for kind in KINDS) else 1


if __name__ == "__main__":
    sys.exit(main())
