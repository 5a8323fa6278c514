"""Commands about rollouts: `etude rollout` makes one, `regrade` and `export` read saved ones again."""

from __future__ import annotations

import asyncio
import json as jsonlib
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from etude.cli.agents import own_agent
from etude.cli.console import Backend, Json, Overrides, Seed, answer, table

if TYPE_CHECKING:
    from etude.core.policy import Policy
    from etude.rollout.rollout import Outcome, RolloutSetup
    from etude.rollout.view import RolloutView
    from etude.tasks.format.task import Task

SavedRollouts = Annotated[Path, typer.Argument(help="A saved rollout, or a folder of them.")]


def rollout(
    task: Annotated[Path, typer.Argument(help="Task directory.")],
    overrides: Overrides = None,
    policy: Annotated[
        str,
        typer.Option(
            "--policy",
            help="reference, null, stub, attack:NAME, a run or model (runs/quickstart), an engine (unix:/path, "
            "http://...), or a hosted model (openai:https://host/v1?model=NAME; the rest as endpoint.KEY=VALUE).",
        ),
    ] = "reference",
    model: Annotated[Path | None, typer.Option("--model", help="Folder with the tokenizer of the engine.")] = None,
    save: Annotated[Path | None, typer.Option("--save", help="Folder to keep the rollout in.")] = None,
    sandbox: Backend = "local",
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Let a policy try a task once, shown as it happens."""

    def work() -> dict[str, Any]:
        from dataclasses import asdict

        from etude.bench.runner import setup_of
        from etude.core import recipe as recipes
        from etude.pipeline.find_model import find_model
        from etude.policies.table import hosted_policy, is_hosted, make_policy, needs_no_model
        from etude.rollout.rollout import Scored
        from etude.rollout.store import save_rollout
        from etude.rollout.view import RolloutView
        from etude.tasks.format.task import Task
        from etude.tokens.dialect import open_dialect

        words, hosted = overrides or [], is_hosted(policy)
        recipe, loaded = recipes.load(None, words), Task.load(task)
        made: Any = None
        if needs_no_model(policy):
            dialect = open_dialect(find_model(model), recipe.harness.template) if model is not None else None
            setup = setup_of(recipe, dialect, hosted)
            made = (
                hosted_policy(policy, recipe.endpoint, setup.tools, dialect)
                if hosted
                else make_policy(policy, loaded, dialect, seed)
            )
        else:
            agent = own_agent(Path(policy), words)
            setup = agent.setup
        view = None if json else RolloutView()

        async def act() -> Outcome:
            acts = made if made is not None else await agent.start()
            return await show_rollout(loaded, acts, policy, setup, seed, sandbox, view)

        outcome = asyncio.run(act())
        facts: dict[str, Any] = {"task": loaded.name, "policy": policy, "seconds": round(outcome.seconds, 3)}
        if hosted:
            facts["spent"] = made.spent
        if save is not None:
            facts["saved"] = str(save_rollout(outcome, save, f"{loaded.name}-{seed}"))
        if isinstance(outcome, Scored):
            grade = outcome.grade
            facts |= {"passed": outcome.passed, "reward": outcome.reward, "parts": outcome.parts}
            facts |= {"reason": grade.reason, "tests": grade.tests, "backend": grade.backend}
            return facts | {"effort": asdict(outcome.trajectory.effort)}
        return facts | {"ok": False, "void": outcome.cause, "retry": outcome.retry, "error": outcome.message}

    answer(work, lambda found: print(f"saved: {found['saved']}") if "saved" in found else None, json)


def regrade(folder: SavedRollouts, overrides: Overrides = None, sandbox: Backend = "local", json: Json = False) -> None:
    """Grade saved rollouts again, without a model."""

    def work() -> dict[str, Any]:
        from etude.bench.runner import setup_of
        from etude.core import recipe as recipes
        from etude.core.errors import EtudeError
        from etude.core.progress import track
        from etude.rollout.rollout import temporary_host
        from etude.rollout.store import Regraded, saved_rollouts
        from etude.rollout.store import regrade as grade_again

        setup = setup_of(recipes.load(None, overrides or []), None)
        total = sum(1 for _ in saved_rollouts(folder))
        if not total:
            raise EtudeError(f"{folder} holds no saved rollout; `etude rollout TASK --save {folder}` makes one")

        async def grade_all() -> list[Regraded]:
            found = []
            async with temporary_host(sandbox) as host:
                with track("grading", total=total, unit="rollouts") as bar:
                    async for graded in grade_again(folder, host, setup):
                        found.append(graded)
                        bar.advance(1)
            return found

        regraded = asyncio.run(grade_all())
        rows = [
            {
                "rollout": graded.before.path.name,
                "before": graded.before.passed,
                "after": graded.after.passed,
                "reward": graded.after.reward,
                "reason": graded.after.grade.reason,
            }
            for graded in regraded
        ]
        changed = sum(graded.changed for graded in regraded)
        return {"rollouts": rows, "graded": len(rows), "left_out": total - len(rows), "changed": changed}

    def show(found: dict[str, Any]) -> None:
        word = {True: "passed", False: "failed"}
        rows = [(row["rollout"], word[row["before"]], word[row["after"]], row["reason"]) for row in found["rollouts"]]
        table(("rollout", "before", "now", "reason"), rows)
        print(f"{found['graded']} graded, {found['changed']} changed, {found['left_out']} void and left out")

    answer(work, show, json)


def export(
    folder: SavedRollouts,
    out: Annotated[Path, typer.Option("--out", help="Folder for the documents, one below it for each rollout.")],
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Write the trajectories of saved rollouts as ATIF 1.8 documents, for other people's viewers."""

    def work() -> dict[str, Any]:
        from etude.core import durable
        from etude.core import recipe as recipes
        from etude.core.errors import EtudeError
        from etude.harness.atif import file_name, to_atif
        from etude.harness.tools.base import schema_of
        from etude.harness.tools.table import build_tools
        from etude.rollout.store import load_rollout, saved_rollouts

        tools = [schema_of(tool) for tool in build_tools(recipes.load(None, overrides or []).harness.tools).values()]
        written = 0
        for path in saved_rollouts(folder):
            if (trajectory := load_rollout(path).trajectory) is None:
                continue
            target = out / path.name
            target.mkdir(parents=True, exist_ok=True)
            for number, document in enumerate(to_atif(trajectory, path.name, tools)):
                durable.write_whole(target / file_name(number), jsonlib.dumps(document, indent=1) + "\n")
            written += 1
        if not written:
            raise EtudeError(f"no saved rollout in {folder} has a trajectory")
        return {"exported": written, "folder": str(out)}

    answer(work, lambda found: print(f"{found['exported']} trajectories in {found['folder']}"), json)


async def show_rollout(
    task: Task,
    policy: Policy,
    name: str,
    setup: RolloutSetup,
    seed: int,
    backend: str,
    view: RolloutView | None,
) -> Outcome:
    """One rollout in sandboxes of its own, shown as it happens. The policy is closed where it can be."""
    from etude.policies.endpoint.policy import EndpointPolicy
    from etude.policies.engine_client import EngineClient
    from etude.rollout.rollout import run_rollout, temporary_host

    on_event = view.on_event if view else None
    async with AsyncExitStack() as stack:
        if isinstance(policy, EngineClient | EndpointPolicy):  # scripts hold nothing that would have to be closed
            await stack.enter_async_context(policy)
        host = await stack.enter_async_context(temporary_host(backend))
        outcome = await run_rollout(task, policy, host, setup, policy_name=name, seed=seed, on_event=on_event)
    if view:
        view.show_outcome(outcome)
    return outcome
