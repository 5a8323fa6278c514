"""`etude chat`: watch a trained agent solve a task, or talk to a served model."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from etude.cli.console import Backend, Json, Overrides, answer
from etude.cli.rollouts import setup_of, show_rollout

if TYPE_CHECKING:
    from etude.core.policy import Policy
    from etude.core.recipe import Recipe
    from etude.rollout.rollout import RolloutSetup


def chat(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="As for serve, or the address of a server: http://...")],
    overrides: Overrides = None,
    number: Annotated[int | None, typer.Option("--task", min=0, help="Which of the benchmark's tasks.")] = None,
    directory: Annotated[Path | None, typer.Option("--dir", help="A task directory of your own instead.")] = None,
    tokens: Annotated[
        Path | None, typer.Option("--tokens", help="Folder of a served model that was trained here: sample its ids.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Another seed, another attempt.")] = 0,
    sandbox: Backend = "local",
    json: Json = False,
) -> None:
    """Watch a trained agent solve a task; or talk to a served model, when there is no task."""

    def work() -> dict[str, Any]:
        from etude.cli.chat_client import is_address, talk

        served = is_address(model)
        if served and number is None and directory is None:
            return talk(model, seed, quiet=json)
        agent = _served_agent(model, tokens, overrides or []) if served else _own_agent(Path(model), overrides or [])
        return _watch(agent, number or 0, directory, seed, sandbox, quiet=json)

    answer(work, lambda _: None, json)


# Its name, the recipe it acts by, and its policy, which for a model of ours starts an engine.
_Agent = tuple[str, "Recipe", "RolloutSetup", Callable[[], Awaitable["Policy"]]]


def _own_agent(path: Path, overrides: list[str]) -> _Agent:
    from etude.pipeline.find_model import find_model, recipe_of
    from etude.policies.engine_client import launch
    from etude.tokens.dialect import open_dialect

    recipe, model = recipe_of(path, overrides), find_model(path)
    dialect = open_dialect(model, recipe.harness.template)

    async def start() -> Policy:
        return await launch(model, recipe.engine, device=recipe.run.device, decode=dialect.decode)

    return str(model), recipe, setup_of(recipe, dialect), start


def _served_agent(address: str, tokens: Path | None, overrides: list[str]) -> _Agent:
    """A model that a server has. With the folder of its `tokens` it samples ids, as in training."""
    from dataclasses import replace

    from etude.cli.chat_client import KEY, base_of, served_model
    from etude.core import recipe as recipes
    from etude.pipeline.find_model import find_model, recipe_of
    from etude.policies.table import hosted_policy
    from etude.tokens.dialect import open_dialect

    recipe = recipe_of(tokens, overrides) if tokens else recipes.load(None, overrides)
    key = recipe.endpoint.key_env or (KEY if KEY in os.environ else "")
    endpoint = replace(recipe.endpoint, form="tools", ids=tokens is not None, key_env=key)
    recipe = replace(recipe, endpoint=endpoint)
    dialect = open_dialect(find_model(tokens)) if tokens else None
    setup = setup_of(recipe, dialect, hosted=True)
    name = f"openai:{base_of(address)}?model={endpoint.model or served_model(address)}"

    async def start() -> Policy:
        return hosted_policy(name, endpoint, setup.tools, dialect)

    return address, recipe, setup, start


def _watch(
    agent: _Agent, number: int, directory: Path | None, seed: int, backend: str, *, quiet: bool
) -> dict[str, Any]:
    """One rollout of a task of the recipe's benchmark, or of one of your own."""
    from etude.core.errors import EtudeError
    from etude.forge.curriculum.sources import open_source
    from etude.rollout.rollout import Scored
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
    if isinstance(outcome, Scored):
        return facts | {"passed": outcome.passed, "reward": outcome.reward}
    return facts | {"ok": False, "void": outcome.cause, "error": outcome.message}
