"""`etude chat`: watch a trained agent solve a task, or talk to a served model."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer

from etude.cli.agents import Agent, own_agent, served_agent
from etude.cli.console import Backend, Json, Overrides, answer
from etude.cli.rollouts import show_rollout


def chat(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="As for serve, or the address of a server: http://...")],
    overrides: Overrides = None,
    number: Annotated[int | None, typer.Option("--task", min=0, help="Which of the benchmark's tasks.")] = None,
    directory: Annotated[Path | None, typer.Option("--dir", help="A task directory of your own instead.")] = None,
    tokens: Annotated[
        Path | None, typer.Option("--tokens", help="Folder of a served model that was trained here: sample its ids.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Another seed, another rollout.")] = 0,
    save: Annotated[Path | None, typer.Option("--save", help="Folder to keep the rollout in.")] = None,
    sandbox: Backend = "local",
    json: Json = False,
) -> None:
    """Watch a trained agent solve a task; or talk to a served model, when there is no task."""

    def work() -> dict[str, Any]:
        from etude.cli.chat_client import is_address, talk

        served = is_address(model)
        if served and number is None and directory is None:
            return talk(model, seed, quiet=json)
        agent = served_agent(model, tokens, overrides or []) if served else own_agent(Path(model), overrides or [])
        return _watch(agent, number or 0, directory, seed, sandbox, save, quiet=json)

    answer(work, lambda found: print(f"saved: {found['saved']}") if "saved" in found else None, json)


def _watch(
    agent: Agent, number: int, directory: Path | None, seed: int, backend: str, save: Path | None, *, quiet: bool
) -> dict[str, Any]:
    """One rollout of a task of the recipe's benchmark, or of one of your own."""
    from etude.core.errors import EtudeError
    from etude.forge.curriculum.sources import open_source
    from etude.rollout.rollout import Scored
    from etude.rollout.store import save_rollout
    from etude.rollout.view import RolloutView
    from etude.tasks.format.task import Task

    name, recipe, setup, start = agent
    task = Task.load(directory) if directory else next(open_source(recipe.bench.tasks).tasks(number), None)
    if task is None:
        raise EtudeError(f"the benchmark has no task number {number}")
    view = None if quiet else RolloutView()

    async def watch() -> Any:
        return await show_rollout(task, await start(), name, setup, seed, backend, view)

    outcome = asyncio.run(watch())
    facts: dict[str, Any] = {"task": task.name, "model": name, "seconds": round(outcome.seconds, 3)}
    if save is not None:
        facts["saved"] = str(save_rollout(outcome, save, f"{task.name}-{seed}"))
    if isinstance(outcome, Scored):
        return facts | {"passed": outcome.passed, "reward": outcome.reward}
    return facts | {"ok": False, "void": outcome.cause, "error": outcome.message}
