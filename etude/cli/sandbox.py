"""Commands about sandboxes: `etude sandbox bench`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from etude.cli.console import Backend, Json, answer, table

sandbox_app = typer.Typer(no_args_is_help=True, help="Look at sandboxes.")


@sandbox_app.command("bench")
def sandbox_bench(
    rounds: Annotated[int, typer.Option("--rounds", min=5, help="Times each thing is measured.")] = 40,
    sandbox: Backend = "local",
    json: Json = False,
) -> None:
    """Measure how long sandboxes take to start, reset and fork on this machine."""

    def work() -> dict[str, Any]:
        from etude.sandbox.bench import bench

        figures = bench(sandbox, rounds)
        return {"ok": figures.passed, **figures.to_json()}

    def show(found: dict[str, Any]) -> None:
        spreads = {name: value for name, value in found.items() if isinstance(value, dict) and "p50" in value}
        rows = []
        for name, spread in spreads.items():
            bar = found["bars"].get(name)
            cells = (f"{spread[p]:.2f} ms" for p in ("p50", "p95"))
            rows.append((name, *cells, "" if bar is None else f"{bar:g} ms"))
        table(("what", "p50", "p95", "bar"), rows)
        print(f"{found['starts_per_second']:.0f} starts each second; all bars reached: {found['passed']}")

    answer(work, show, json)
