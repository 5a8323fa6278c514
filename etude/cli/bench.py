"""Commands that benchmark a model: `etude bench MODEL` on tasks, `etude bench base MODEL` without an agent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from etude.cli.console import Json, Overrides, answer, figure, table
from etude.cli.tasks import Backend

DEFAULT = "tasks"

ModelPath = Annotated[Path, typer.Argument(metavar="MODEL", help="A run, a checkpoint, or a Hugging Face directory.")]
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


def register(app: typer.Typer) -> None:
    app.add_typer(bench_app, name="bench")


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
        from etude.cli.task_actions import benchmark

        return benchmark(model, save, against, sandbox, overrides or [], policy)

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
        from etude.cli.task_actions import benchmark_base

        return benchmark_base(model, code, repository, only, save, overrides or [])

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
        lengths = sorted({place["length"] for place in needle["places"]})
        cells = {(place["depth"], place["length"]): place for place in needle["places"]}
        grid = [
            (f"{depth:.0%}", *(_cell(cells[depth, length]) for length in lengths))
            for depth in sorted({depth for depth, _ in cells})
        ]
        table(("needle at", *(f"{length} tokens" for length in lengths)), grid)
        print("exact / probability among candidates")


def _cell(place: dict[str, Any]) -> str:
    return f"{place['exact']:.0%} / {place['probability']:.2f}"
