"""The `etude` command: parsing, calling, and saying what happened. Nothing else.

How a command answers people and scripts is in `console`; commands about tasks and sandboxes are in `cli_tasks`. Rooms
are imported inside the commands, so that `etude --help` never loads torch.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from etude import __version__, cli_tasks
from etude.console import Json, Overrides, answer, table, values

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Train coding agents in the open, from raw code on.",
)
recipe_app = typer.Typer(no_args_is_help=True, help="Look at recipes.")
app.add_typer(recipe_app, name="recipe")
cli_tasks.register(app)

RecipeName = Annotated[str, typer.Argument(metavar="RECIPE", help="A built-in recipe, or the path of a .toml file.")]
RunPath = Annotated[Path | None, typer.Option("--run", help="Run folder; default: runs/<name of the recipe>.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Delete what the run holds and start over.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the recipe and what would be done; do nothing.")]
ModelPath = Annotated[Path, typer.Argument(metavar="MODEL", help="A run, a checkpoint, or a Hugging Face directory.")]


@app.command()
def corpus(
    recipe: RecipeName,
    overrides: Overrides = None,
    run: RunPath = None,
    fresh: Fresh = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Read, filter and tokenise the training text."""
    _stage("corpus", recipe, overrides, run, fresh, dry_run, json)


@app.command()
def pretrain(
    recipe: RecipeName,
    overrides: Overrides = None,
    run: RunPath = None,
    fresh: Fresh = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Train a model on the corpus, which is built first when it is not there."""
    _stage("pretrain", recipe, overrides, run, fresh, dry_run, json)


@app.command()
def sft(
    recipe: RecipeName,
    overrides: Overrides = None,
    run: RunPath = None,
    fresh: Fresh = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Fine-tune a model on conversations (sft.data)."""
    _stage("sft", recipe, overrides, run, fresh, dry_run, json)


@app.command()
def sample(
    model: ModelPath,
    prompt: Annotated[str, typer.Argument(help="Text to continue.")],
    overrides: Overrides = None,
    tokens: Annotated[int, typer.Option("--tokens", min=1, help="Longest answer.")] = 128,
    temperature: Annotated[float, typer.Option("--temperature", min=0.0, help="0 always takes the likeliest.")] = 0.8,
    seed: Annotated[int, typer.Option("--seed", help="The same seed gives the same answer.")] = 0,
    json: Json = False,
) -> None:
    """Continue a text with a trained model."""

    def work() -> dict[str, Any]:
        from etude.pipeline import sample_text
        from etude.policy import Sampling

        sampling = Sampling(max_tokens=tokens, temperature=temperature, seed=seed)
        return sample_text(model, prompt, sampling, overrides or [])

    answer(work, lambda found: print(found["prompt"] + found["text"]), json)


@app.command()
def serve(
    model: ModelPath,
    overrides: Overrides = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")] = 8000,
) -> None:
    """Serve a model over HTTP until Ctrl-C."""

    def work() -> dict[str, Any]:
        from etude.pipeline import serve_model

        serve_model(model, overrides or [], host, port)
        return {}

    answer(work, lambda _: None, False)


@recipe_app.command("show")
def recipe_show(
    recipe: RecipeName,
    overrides: Overrides = None,
    explain: Annotated[bool, typer.Option("--explain", help="Add one line about each setting.")] = False,
    json: Json = False,
) -> None:
    """Print a recipe, every default filled in."""

    def work() -> dict[str, Any]:
        from etude import recipe as recipes

        loaded = recipes.load(recipe, overrides or [])
        return {"recipe": recipes.to_dict(loaded), "toml": recipes.to_toml(loaded, explain)}

    answer(work, lambda found: print(found["toml"]), json)


@recipe_app.command("list")
def recipe_list(json: Json = False) -> None:
    """Name the recipes that come with the package."""

    def work() -> dict[str, Any]:
        from etude import recipe as recipes

        return {"recipes": {name: recipes.load(name).about for name in recipes.builtin()}}

    answer(work, lambda found: table(("recipe", "about"), list(found["recipes"].items())), json)


@app.command()
def status(run: Annotated[Path, typer.Argument(help="Run folder.")], json: Json = False) -> None:
    """Say how far a run is."""

    def work() -> dict[str, Any]:
        from etude.run import summary

        return summary(run)

    def show(found: dict[str, Any]) -> None:
        table(
            ("stage", "state", "step", "newest metrics"),
            [
                (name, stage["state"], stage.get("step", ""), values(stage.get("metrics", {})))
                for name, stage in found["stages"].items()
            ],
        )
        print(f"{run}: {'in use' if found['in_use'] else 'idle'}, {found['lineages']} start(s)")

    answer(work, show, json)


@app.command()
def doctor(json: Json = False) -> None:
    """Say what this machine can and cannot do, and what to do about it."""

    def work() -> dict[str, Any]:
        from dataclasses import asdict

        from etude.doctor import examine

        rows = examine(Path("runs"))
        lacking = [row.what for row in rows if row.needed and row.state == "missing"]
        return {"ok": not lacking, "lacking": lacking, "rows": [asdict(row) for row in rows]}

    def show(found: dict[str, Any]) -> None:
        colour = {"ok": "green", "limited": "yellow", "missing": "red"}
        rows = [
            (row["what"], Text(row["state"], style=colour[row["state"]]), row["found"], row["advice"])
            for row in found["rows"]
        ]
        table(("what", "", "found", "what to do"), rows)
        print("cannot work without: " + ", ".join(found["lacking"]) if found["lacking"] else "ready")

    answer(work, show, json)


@app.command()
def version(json: Json = False) -> None:
    """Print the version."""
    answer(lambda: {"version": __version__}, lambda found: print(found["version"]), json)


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a model may answer with bytes that are no text
    app()


# What every command shares


def _stage(
    target: str,
    name: str,
    overrides: list[str] | None,
    run: Path | None,
    fresh: bool,
    dry_run: bool,
    json: bool,
) -> None:
    path = run or Path("runs") / Path(name).stem

    def plan() -> dict[str, Any]:
        from etude import pipeline, recipe

        loaded = recipe.load(name, overrides or [])
        stages = pipeline.outline(target, loaded, path, fresh=fresh)
        return {"run": str(path), "stages": stages, "recipe": recipe.to_dict(loaded), "toml": recipe.to_toml(loaded)}

    def show_plan(found: dict[str, Any]) -> None:
        print(found["toml"])
        rows = [(row.pop("stage"), row.pop("state"), values(row)) for row in found["stages"]]
        table(("stage", "state", "what"), rows)
        print(f"would {'delete and remake' if fresh else 'write'} {path}; nothing was done")

    def work() -> dict[str, Any]:
        from etude import pipeline, recipe

        outcome = pipeline.execute(target, recipe.load(name, overrides or []), path, fresh=fresh)
        return {
            "ok": not outcome.stopped,
            "run": str(outcome.path),
            "stage": target,
            "done": list(outcome.done),
            "finished_before": list(outcome.before),
            "stopped": outcome.stopped,
            "facts": outcome.facts,
            "model": str(outcome.model) if outcome.model else None,
        }

    def show(found: dict[str, Any]) -> None:
        if target == "corpus" and not found["stopped"]:
            from etude.corpus.manifest import load_manifest

            print(load_manifest(path / "corpus").table())
        for stage, facts in found["facts"].items():
            was = "was finished already" if stage in found["finished_before"] else "finished"
            print(f"{stage} {was}: {values(facts)}")
        if found["stopped"]:
            print(f"{found['stopped']} stopped before its end")
        elif not found["done"]:
            print(f"{path} has nothing left to do; --fresh starts it over")
        if found["model"]:
            print(f"model: {found['model']}")

    answer(*((plan, show_plan) if dry_run else (work, show)), json)


if __name__ == "__main__":
    main()
