"""The agents that commands let act: a model of ours with an engine of its own, or one that a server has.

Shared by `etude chat` and `etude rollout`.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from etude.core.policy import Policy
    from etude.core.recipe import Recipe
    from etude.rollout.rollout import RolloutSetup


class Agent(NamedTuple):
    """Who acts: its name, the recipe it acts by, and its policy, which for a model of ours starts an engine."""

    name: str
    recipe: Recipe
    setup: RolloutSetup
    start: Callable[[], Awaitable[Policy]]


def own_agent(path: Path, overrides: list[str]) -> Agent:
    """A run, a checkpoint, a Hugging Face directory or a name on the hub, sampled by an engine of its own."""
    from etude.bench.runner import setup_of
    from etude.pipeline.find_model import find_model, recipe_of
    from etude.policies.engine_client import launch
    from etude.tokens.dialect import open_dialect

    recipe, model = recipe_of(path, overrides), find_model(path)
    dialect = open_dialect(model, recipe.harness.template)

    async def start() -> Policy:
        return await launch(model, recipe.engine, device=recipe.run.device, decode=dialect.decode)

    return Agent(str(model), recipe, setup_of(recipe, dialect), start)


def served_agent(address: str, tokens: Path | None, overrides: list[str]) -> Agent:
    """A model that a server has. With the folder of its `tokens` it samples ids, as in training."""
    from dataclasses import replace

    from etude.bench.runner import setup_of
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

    return Agent(address, recipe, setup, start)
