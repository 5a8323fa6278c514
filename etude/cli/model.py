"""Commands about model directories: `etude model info`, `compare`, `init`, `export`; and `search-vectors`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from etude.cli.console import Json, answer, table

model_app = typer.Typer(no_args_is_help=True, help="Look at models, check them, make new ones.")

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="A Hugging Face directory, a checkpoint, or a run.")]
UNITS = ("B", "KB", "MB", "GB", "TB", "PB")
ROWS = {
    "train_full": "train, all weights",
    "train_lora": "train, LoRA of rank 16",
    "serve_weights": "serve, weights",
    "serve_cache_1k": "serve, cache of 1,000 tokens",
}


@model_app.command("info")
def model_info(directory: Directory, json: Json = False) -> None:
    """Say what a model is and how much memory it takes, from its config.json and the headers of its weights."""

    def work() -> dict[str, Any]:
        from etude.model.describe import describe
        from etude.pipeline.find_model import find_model

        return describe(find_model(directory))

    def show(found: dict[str, Any]) -> None:
        used = found["active_parameters"]
        part = "" if used == found["parameters"] else f", {_count(used)} of them for each token"
        print(f"{found['architecture']}: {_count(found['parameters'])} parameters{part}")
        table(("shape", ""), [(name.replace("_", " "), value) for name, value in found["shape"].items()])
        if stored := found["stored"]:
            print(f"stored as {stored['format']}: {_size(stored['bytes'])} in {stored['files']} file(s)")
        else:
            print("no weights here, only the configuration")
        numbers = tuple(found["memory"])
        rows = [(what, *(_size(found["memory"][number][key]) for number in numbers)) for key, what in ROWS.items()]
        table(("memory", *numbers), rows)

    answer(work, show, json)


@model_app.command("compare")
def model_compare(
    directory: Directory,
    tolerance: Annotated[float, typer.Option("--tolerance", min=0.0, help="Largest difference that passes.")] = 1e-4,
    seed: Annotated[int, typer.Option("--seed", help="Of the random tokens.")] = 0,
    json: Json = False,
) -> None:
    """Compare a model's logits here with those of transformers, with the cache and without."""

    def work() -> dict[str, Any]:
        from etude.bench.compare_transformers import compare
        from etude.pipeline.find_model import find_model

        found = compare(find_model(directory), seed)
        return {"ok": max(found["max_abs_diff"], found["max_abs_diff_cached"]) <= tolerance, **found}

    def show(found: dict[str, Any]) -> None:
        print(f"{found['architecture']}: {_count(found['parameters'])} parameters")
        rows = [("whole sequences", found["max_abs_diff"]), ("through the cache", found["max_abs_diff_cached"])]
        table(("logits", "largest difference"), [(what, f"{value:.2e}") for what, value in rows])
        print(f"{'within' if found['ok'] else 'NOT within'} {tolerance:g}")

    answer(work, show, json)


@model_app.command("export")
def model_export(
    directory: Directory,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A new folder.")],
    as_loaded: Annotated[
        Path, typer.Option("--as-loaded", metavar="ORIGINAL", help="The checkpoint that training began with.")
    ],
    json: Json = False,
) -> None:
    """Write a trained model as the checkpoint that it came from is stored: in FP8 or INT4, in its files and names."""

    def work() -> dict[str, Any]:
        from etude.model.checkpoint.write_back import write_back
        from etude.pipeline.find_model import find_model

        return {"folder": str(out), **write_back(find_model(directory), find_model(as_loaded), out)}

    def show(found: dict[str, Any]) -> None:
        print(f"{found['folder']}: {found['changed']} weights changed, {found['copied']} as they came", end="")
        print(f", {found['added']} new" if found["added"] else "")

    answer(work, show, json)


@model_app.command("init")
def model_init(
    shape: Annotated[str, typer.Argument(help="qwen2, qwen3, qwen3_moe, deepseek_v3 or kimi_k2.")],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for the model; new or empty.")],
    sizes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", help="Sizes, such as depth=4, model.experts=16, tokens.vocab_size=512."
        ),
    ] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="float32 or bfloat16.")] = "float32",
    json: Json = False,
) -> None:
    """Make a new model with random weights."""

    def work() -> dict[str, Any]:
        from etude.core import recipe as recipes
        from etude.core.errors import EtudeError
        from etude.model.describe import SHAPES, create

        if shape not in SHAPES:
            raise EtudeError(f"{shape!r} is not a shape that can be made; those are {', '.join(SHAPES)}")
        # `width=64` is short for `model.width=64`
        named = [part if "." in part.partition("=")[0] else f"model.{part}" for part in sizes or []]
        recipe = recipes.load(None, [*named, f"model.shape={shape}"])
        return create(directory, recipe.model, recipe.tokens.vocab_size, recipe.run.seed, dtype)

    answer(work, lambda found: print(f"{found['model']}: {_count(found['parameters'])} parameters"), json)


@model_app.command("search-vectors")
def model_search_vectors(
    sources: Annotated[
        list[Path],
        typer.Argument(metavar="SOURCE...", help="Runs, folders of saved rollouts, or folders of Python."),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="File for the vectors.")],
    steps: Annotated[int, typer.Option("--steps", min=1, help="Steps of training.")] = 1500,
    seed: Annotated[int, typer.Option("--seed", help="Of the draw of pairs, the start and the batches.")] = 0,
    json: Json = False,
) -> None:
    """Train the word vectors of the tool `search`, on what agents asked and edited and on docstrings."""

    def work() -> dict[str, Any]:
        from etude.pipeline.search_vectors import train_search_vectors

        return train_search_vectors(sources, out, steps, seed)

    def show(found: dict[str, Any]) -> None:
        print(
            f"{found['file']}: {found['words']} words from {found['pairs']} pairs "
            f"({found['from_rollouts']} of rollouts, {found['from_docstrings']} of docstrings found)"
        )
        print(f"use them: harness.tools = [..., {{ use = 'search', vectors = '{found['file']}' }}]")

    answer(work, show, json)


def _count(number: int) -> str:
    for name, unit in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= unit:
            return f"{number / unit:.3g}{name}"
    return str(number)


def _size(amount: float) -> str:
    step = 0
    while amount >= 1000 and step < len(UNITS) - 1:
        amount, step = amount / 1000, step + 1
    return f"{amount:.3g} {UNITS[step]}"
