"""Commands that benchmark a model: `etude bench MODEL` on tasks, `etude bench base MODEL` without an agent."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from etude.cli.console import Backend, Json, ModelPath, Overrides, answer, figure, table

DEFAULT = "tasks"

Save = Annotated[Path | None, typer.Option("--save", help="JSON file for the result.")]


class _Bench(TyperGroup):
    """`etude bench MODEL ...` means `etude bench tasks MODEL ...`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        named = args and (args[0] in self.commands or args[0] == "--help")
        return super().parse_args(ctx, args if named or not args else [DEFAULT, *args])


bench_app = typer.Typer(
    cls=_Bench,
    no_args_is_help=True,
    help="Benchmark a model: on tasks (`etude bench MODEL`), or as a base to start from (`etude bench base MODEL`).",
)


@bench_app.command(DEFAULT)
def bench_tasks(
    model: ModelPath,
    overrides: Overrides = None,
    save: Save = None,
    against: Annotated[Path | None, typer.Option("--against", help="An earlier result: the gain, in pairs.")] = None,
    policy: Annotated[
        str, typer.Option("--policy", help="A hosted model in its place: openai:https://host/v1?model=NAME.")
    ] = "",
    sandbox: Backend = "local",
    json: Json = False,
) -> None:
    """Benchmark a model on tasks that it has not seen. `etude bench MODEL` is short for it."""

    def work() -> dict[str, Any]:
        from etude.bench.result import compare, load_result, summarise
        from etude.bench.runner import bench_checkpoint, bench_hosted
        from etude.pipeline.find_model import find_model, recipe_of

        recipe, folder = recipe_of(model, overrides or []), find_model(model)
        earlier = load_result(against) if against is not None else None
        if policy:
            result, spent = bench_hosted(policy, recipe, backend=sandbox, save=save)
            facts = {"model": policy, **summarise(result), "spent": spent}
        else:
            result = bench_checkpoint(folder, recipe, backend=sandbox, save=save)
            facts = {"model": str(folder), **summarise(result)}
        gain = compare(earlier, result) if earlier is not None else None
        return facts | ({"gain": list(gain)} if gain is not None else {})

    answer(work, lambda found: table(("", ""), [(name, figure(value)) for name, value in found.items()]), json)


@bench_app.command("base")
def bench_base(
    model: ModelPath,
    overrides: Overrides = None,
    code: Annotated[Path | None, typer.Option("--code", help="Folder of code; default: Python's library.")] = None,
    repository: Annotated[Path | None, typer.Option("--repo", help="Git checkout; default: invented files.")] = None,
    only: Annotated[str, typer.Option("--only", help="Some of codebase,tracking,needle.")] = "",
    save: Save = None,
    json: Json = False,
) -> None:
    """Measure a model without an agent: bits per byte of code, state tracking, needles in long texts."""

    def work() -> dict[str, Any]:
        from etude.core import durable
        from etude.pipeline.find_model import find_model, prepare_device, recipe_of

        given = {"base.code": code, "base.repository": repository}
        paths = [f"{key}={jsonlib.dumps(str(path))}" for key, path in given.items() if path is not None]
        recipe, folder = recipe_of(model, [*(overrides or []), *paths]), find_model(model)
        device = prepare_device(recipe)
        from etude.bench.base.model_under_test import ModelUnderTest
        from etude.bench.base.suite import EVALUATIONS, evaluate_base

        tested = ModelUnderTest.open(folder, device, recipe.base.batch_tokens)
        names = [name.strip() for name in only.split(",") if name.strip()]
        found = {"model": str(folder)} | evaluate_base(tested, recipe.base, names or EVALUATIONS)
        if save is not None:
            durable.write_whole(save, jsonlib.dumps(found, indent=1) + "\n")
        return found

    answer(work, _show_base, json)


def _show_base(found: dict[str, Any]) -> None:
    rows: list[tuple[Any, ...]] = []
    if codebase := found.get("codebase"):
        rows.append(("codebase", "bits per byte", f"{codebase['bits_per_byte']:.4f}"))
        rows.append(("", "sum of nats", f"{codebase['nats']:.0f} over {codebase['bytes']} bytes of {codebase['code']}"))
    if tracking := found.get("tracking"):
        untouched = f"{tracking['distance']:.1f} characters ({tracking['untouched']:.1f} if no diff were heeded)"
        rows.append(("state tracking", "mean distance", untouched))
        rows.append(("", "right to the last character", f"{tracking['exact']:.1%} of {len(tracking['files'])} files"))
        rows.append(("", "bits per byte", f"{tracking['bits_per_byte']:.4f}"))
    if needle := found.get("needle"):
        rows.append(("needle", "exact", f"{needle['exact']:.1%}"))
        chance = f"{needle['probability']:.3f} (chance {1 / needle['candidates']:.3f}), mean rank {needle['rank']:.2f}"
        rows.append(("", "probability", chance))
    table(("", "", ""), rows)
    if needle:
        lengths = sorted({cell["length"] for cell in needle["places"]})
        cells = {(cell["depth"], cell["length"]): cell for cell in needle["places"]}
        grid = [
            (f"{depth:.0%}", *(_cell(cells[depth, length]) for length in lengths))
            for depth in sorted({depth for depth, _ in cells})
        ]
        table(("needle at", *(f"{length} tokens" for length in lengths)), grid)
        print("exact / probability among candidates")


def _cell(cell: dict[str, Any]) -> str:
    return f"{cell['exact']:.0%} / {cell['probability']:.2f}"
