"""Commands about recipes: `etude recipe show`, `list`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from etude.cli.console import Json, Overrides, RecipeName, answer, table

recipe_app = typer.Typer(no_args_is_help=True, help="List recipes, show one with all its settings.")


@recipe_app.command("show")
def recipe_show(
    recipe: RecipeName,
    overrides: Overrides = None,
    explain: Annotated[bool, typer.Option("--explain", help="Add one line about each setting.")] = False,
    json: Json = False,
) -> None:
    """Print a recipe, every default filled in."""

    def work() -> dict[str, Any]:
        from etude.core import recipe as recipes

        loaded = recipes.load(recipe, overrides or [])
        return {"recipe": recipes.to_dict(loaded), "toml": recipes.to_toml(loaded, explain)}

    answer(work, lambda found: print(found["toml"]), json)


@recipe_app.command("list")
def recipe_list(json: Json = False) -> None:
    """Name the recipes that come with the package, smallest first."""

    def work() -> dict[str, Any]:
        from etude.core import recipe as recipes

        found = {name: recipes.load(name) for name in recipes.builtin()}
        # Smallest first: what a laptop can do, then by the time that reinforcement learning may take.
        ordered = sorted(found, key=lambda name: (found[name].run.device != "cpu", found[name].rl.seconds, name))
        return {"recipes": {name: found[name].about for name in ordered}}

    answer(work, lambda found: table(("recipe", "about"), list(found["recipes"].items())), json)
