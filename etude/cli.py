"""The `etude` command: parsing, calling, and saying what happened. Nothing else.

Every command runs inside `_answer`: a mistake of the user becomes one sentence and exit status 2, Ctrl-C the command
that resumes and exit status 130, and `--json` one JSON object as the last line of standard output. Rooms are
imported inside the commands, so that `etude --help` never loads torch.
"""

from __future__ import annotations

import io
import json as jsonlib
import shlex
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from etude.errors import EtudeError
from etude.progress import short

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Train coding agents in the open, from raw code on.",
)
recipe_app = typer.Typer(no_args_is_help=True, help="Look at recipes.")
app.add_typer(recipe_app, name="recipe")

RecipeName = Annotated[str, typer.Argument(metavar="RECIPE", help="A built-in recipe, or the path of a .toml file.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Changes, such as pretrain.steps=50.")
]
RunPath = Annotated[Path | None, typer.Option("--run", help="Run folder; default: runs/<name of the recipe>.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Delete what the run holds and start over.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the recipe and what would be done; do nothing.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")]
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

    _answer(work, lambda answer: print(answer["prompt"] + answer["text"]), json)


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

    _answer(work, lambda _: None, False)


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

    _answer(work, lambda answer: print(answer["toml"]), json)


@recipe_app.command("list")
def recipe_list(json: Json = False) -> None:
    """Name the recipes that come with the package."""

    def work() -> dict[str, Any]:
        from etude import recipe as recipes

        return {"recipes": {name: recipes.load(name).about for name in recipes.builtin()}}

    _answer(work, lambda answer: _table(("recipe", "about"), list(answer["recipes"].items())), json)


@app.command()
def status(run: Annotated[Path, typer.Argument(help="Run folder.")], json: Json = False) -> None:
    """Say how far a run is."""

    def work() -> dict[str, Any]:
        from etude.run import summary

        return summary(run)

    def show(answer: dict[str, Any]) -> None:
        _table(
            ("stage", "state", "step", "newest metrics"),
            [
                (name, stage["state"], stage.get("step", ""), _values(stage.get("metrics", {})))
                for name, stage in answer["stages"].items()
            ],
        )
        print(f"{run}: {'in use' if answer['in_use'] else 'idle'}, {answer['lineages']} start(s)")

    _answer(work, show, json)


@app.command()
def doctor(json: Json = False) -> None:
    """Say what this machine can and cannot do, and what to do about it."""

    def work() -> dict[str, Any]:
        from dataclasses import asdict

        from etude.doctor import examine

        rows = examine(Path("runs"))
        lacking = [row.what for row in rows if row.needed and row.state == "missing"]
        return {"ok": not lacking, "lacking": lacking, "rows": [asdict(row) for row in rows]}

    def show(answer: dict[str, Any]) -> None:
        colour = {"ok": "green", "limited": "yellow", "missing": "red"}
        rows = [
            (row["what"], Text(row["state"], style=colour[row["state"]]), row["found"], row["advice"])
            for row in answer["rows"]
        ]
        _table(("what", "", "found", "what to do"), rows)
        print("cannot work without: " + ", ".join(answer["lacking"]) if answer["lacking"] else "ready")

    _answer(work, show, json)


@app.command()
def version(json: Json = False) -> None:
    """Print the version."""
    _answer(lambda: {"version": metadata.version("etude")}, lambda answer: print(answer["version"]), json)


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

    def show_plan(answer: dict[str, Any]) -> None:
        print(answer["toml"])
        rows = [(row.pop("stage"), row.pop("state"), _values(row)) for row in answer["stages"]]
        _table(("stage", "state", "what"), rows)
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

    def show(answer: dict[str, Any]) -> None:
        if target == "corpus" and not answer["stopped"]:
            from etude.corpus.manifest import load_manifest

            print(load_manifest(path / "corpus").table())
        for stage, facts in answer["facts"].items():
            was = "was finished already" if stage in answer["finished_before"] else "finished"
            print(f"{stage} {was}: {_values(facts)}")
        if answer["stopped"]:
            print(f"{answer['stopped']} stopped before its end")
        elif not answer["done"]:
            print(f"{path} has nothing left to do; --fresh starts it over")
        if answer["model"]:
            print(f"model: {answer['model']}")

    _answer(*((plan, show_plan) if dry_run else (work, show)), json)


def _answer(work: Callable[[], dict[str, Any]], show: Callable[[dict[str, Any]], None], json: bool) -> None:
    """Do the work, show or print its answer, and exit with the status that the answer deserves."""
    code = 1
    answer: dict[str, Any] = {"ok": False, "error": "unexpected error"}
    try:
        answer = {"ok": True} | work()
        if not json:
            show(dict(answer))
        code = 0 if answer["ok"] else 1
        if answer.get("stopped"):
            raise KeyboardInterrupt
    except EtudeError as error:
        code, answer = 2, {"ok": False, "error": str(error)}
        print(f"error: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        resume = shlex.join(["etude", *(part for part in sys.argv[1:] if part != "--fresh")])
        code, answer = 130, answer | {"ok": False, "error": "interrupted", "resume": resume}
        print(f"interrupted; to continue: {resume}", file=sys.stderr)
    finally:
        if json:
            print(jsonlib.dumps(answer, default=str), flush=True)
    if code:
        raise typer.Exit(code)


def _table(headers: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    table = Table(*headers, box=None, header_style="bold", pad_edge=False)
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in row))
    Console().print(table)


def _values(values: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {short(value) if isinstance(value, int | float) and not isinstance(value, bool) else value}"
        for name, value in values.items()
    )


if __name__ == "__main__":
    main()
