"""The `etude` command: parsing, calling, and saying what happened. Nothing else.

How a command answers people and scripts is in `console`; the stages of a run are in `cli_stages`, commands about tasks
and sandboxes in `cli_tasks`, those about model directories in `cli_model`, benchmarks in `cli_bench`. Rooms are
imported inside the commands, so that `etude --help` never loads torch.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from etude import __version__
from etude.cli import audit as cli_audit
from etude.cli import bench as cli_bench
from etude.cli import env as cli_env
from etude.cli import make as cli_make
from etude.cli import model as cli_model
from etude.cli import near_duplicates as cli_alike
from etude.cli import stages as cli_stages
from etude.cli import tasks as cli_tasks
from etude.cli.console import Json, Overrides, answer, table, values
from etude.cli.stages import RecipeName
from etude.cli.tasks import Backend

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Train coding agents in the open, from raw code on.",
)
recipe_app = typer.Typer(no_args_is_help=True, help="Look at recipes.")
app.add_typer(recipe_app, name="recipe")
cli_stages.register(app)
cli_tasks.register(app)
cli_audit.register(app)
cli_env.register(app)
cli_make.register()
cli_alike.register()
cli_bench.register(app)
cli_model.register(app)

ModelPath = Annotated[Path, typer.Argument(metavar="MODEL", help="A run, a checkpoint, or a Hugging Face directory.")]


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
        from etude.core.policy import Sampling
        from etude.pipeline.execute import sample_text

        sampling = Sampling(max_tokens=tokens, temperature=temperature, seed=seed)
        return sample_text(model, prompt, sampling, overrides or [])

    answer(work, lambda found: print(found["prompt"] + found["text"]), json)


@app.command()
def serve(
    model: ModelPath,
    overrides: Overrides = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")] = 8000,
    name: Annotated[str | None, typer.Option("--name", help="What clients call the model; else its folder.")] = None,
    key_file: Annotated[
        Path | None, typer.Option("--key-file", help="File with the API key; else the variable ETUDE_API_KEY.")
    ] = None,
    engine_routes: Annotated[
        bool, typer.Option("--engine-routes", help="Also the training loop's routes; needs an API key.")
    ] = False,
) -> None:
    """Serve a model to OpenAI's clients until Ctrl-C."""

    def work() -> dict[str, Any]:
        from etude.pipeline.execute import serve_model

        serve_model(model, overrides or [], host, port, name=name, key_file=key_file, engine_routes=engine_routes)
        return {}

    answer(work, lambda _: None, False)


@app.command()
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
        from etude.cli.chat import is_address, talk
        from etude.cli.task_actions import watch, watch_served
        from etude.rollout.view import RolloutView

        view, changes = None if json else RolloutView(), overrides or []
        if not is_address(model):
            return watch(Path(model), number or 0, directory, seed, sandbox, changes, view)
        if number is None and directory is None:
            return talk(model, seed, quiet=json)
        return watch_served(model, tokens, number or 0, directory, seed, sandbox, changes, view)

    answer(work, lambda _: None, json)


@app.command()
def report(run: Annotated[Path, typer.Argument(help="Run folder.")], json: Json = False) -> None:
    """Write the report of a run: one HTML file."""

    def work() -> dict[str, Any]:
        from etude.bench.report.page import write_report
        from etude.bench.run_results import write_results

        return {"results": write_results(run), "report": str(write_report(run))}

    answer(work, lambda found: print(found["report"]), json)


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
    """Name the recipes that come with the package."""

    def work() -> dict[str, Any]:
        from etude.core import recipe as recipes

        return {"recipes": {name: recipes.load(name).about for name in recipes.builtin()}}

    answer(work, lambda found: table(("recipe", "about"), list(found["recipes"].items())), json)


@app.command()
def status(run: Annotated[Path, typer.Argument(help="Run folder.")], json: Json = False) -> None:
    """Say how far a run is."""

    def work() -> dict[str, Any]:
        from etude.core.run import summary

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

        from etude.cli.doctor import examine

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
