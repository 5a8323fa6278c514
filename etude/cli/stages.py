"""Commands that bring a run to the end of a stage, of all stages, or on from where it stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from etude.cli.console import Json, Overrides, answer, figure, table, values

RecipeName = Annotated[str, typer.Argument(metavar="RECIPE", help="A built-in recipe, or the path of a .toml file.")]
RunPath = Annotated[Path | None, typer.Option("--run", help="Run folder; default: runs/<name of the recipe>.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Delete what the run holds and start over.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the recipe and what would be done; do nothing.")]

ABOUT = {
    "corpus": "Read, filter and tokenise the training text.",
    "pretrain": "Train a model on the corpus, which is built first when it is not there.",
    "mtp": "Train heads that predict further ahead, for speculation, on a pretrained model.",
    "extend": "Train on longer sequences, whole repositories, with positions for them.",
    "demos": "Let the reference policy solve tasks in the real harness, for fine-tuning.",
    "sft": "Fine-tune a model on conversations: sft.data, or this run's demonstrations.",
    "rl": "Improve a model by reinforcement learning on tasks, inside the real harness.",
}


def register(app: typer.Typer) -> None:
    for name, about in ABOUT.items():
        app.command(name, help=about)(_command(name))
    app.command("run")(run_all)
    app.command()(resume)


def _command(target: str) -> Any:
    def command(
        recipe: RecipeName,
        overrides: Overrides = None,
        run: RunPath = None,
        fresh: Fresh = False,
        dry_run: DryRun = False,
        json: Json = False,
    ) -> None:
        _stage(target, recipe, overrides, run, fresh, dry_run, json)

    return command


def run_all(
    recipe: RecipeName,
    overrides: Overrides = None,
    run: RunPath = None,
    fresh: Fresh = False,
    dry_run: DryRun = False,
    stage: Annotated[str, typer.Option("--stage", help="Only to the end of this one, in this process.")] = "",
    json: Json = False,
) -> None:
    """The whole way: from raw code to a benchmarked agent and its report, each stage in a process of its own."""
    if stage or dry_run:
        _stage(stage or "report", recipe, overrides, run, fresh, dry_run, json)
    else:
        path = run or _default_run(recipe)
        answer(lambda: _whole(recipe, overrides or [], path, fresh, json), _show_results, json)


def resume(run: Annotated[Path, typer.Argument(help="Run folder.")], json: Json = False) -> None:
    """Go on with an unfinished run, with its own recipe."""

    def work() -> dict[str, Any]:
        from etude.pipeline import execute as pipeline

        target = pipeline.unfinished(run)
        if not target:
            return {"run": str(run), "stopped": "", "results": {}, "finished": True}
        return _whole(str(run / "recipe.toml"), [], run, False, json, target)

    def show(found: dict[str, Any]) -> None:
        if found.get("finished"):
            print(f"{run} has nothing left to do")
        else:
            _show_results(found)

    answer(work, show, json)


def _whole(
    recipe: str, overrides: list[str], path: Path, fresh: bool, quiet: bool, target: str = "report"
) -> dict[str, Any]:
    from etude.pipeline import execute as pipeline

    stopped = pipeline.execute_apart(target, recipe, overrides, path, fresh=fresh, quiet=quiet)
    return {"ok": not stopped, "run": str(path), "stopped": stopped, "results": pipeline.read_results(path)}


def _show_results(found: dict[str, Any]) -> None:
    results, path = found["results"], Path(found["run"])
    if not results:
        return
    rows = []
    for arm in ("sft", "rl"):
        if (row := results.get(arm)) is not None:
            rows.append((arm, *(figure(row[name]) for name in ("pass@1", "pass@4", "format_errors")), row["tokens"]))
    table(("model", "pass@1", "best of 4", "format errors", "tokens"), rows)
    print(f"gain by reinforcement learning: {figure(results['paired_gain'])}")
    print(f"report: {path / 'report.html'}")


def _default_run(recipe: str) -> Path:
    return Path("runs") / Path(recipe).stem


def _stage(
    target: str,
    name: str,
    overrides: list[str] | None,
    run: Path | None,
    fresh: bool,
    dry_run: bool,
    json: bool,
) -> None:
    path = run or _default_run(name)

    def plan() -> dict[str, Any]:
        from etude.core import recipe
        from etude.pipeline import execute as pipeline

        loaded = recipe.load(name, overrides or [])
        stages = pipeline.outline(target, loaded, path, fresh=fresh)
        return {"run": str(path), "stages": stages, "recipe": recipe.to_dict(loaded), "toml": recipe.to_toml(loaded)}

    def show_plan(found: dict[str, Any]) -> None:
        print(found["toml"])
        rows = [(row.pop("stage"), row.pop("state"), values(row)) for row in found["stages"]]
        table(("stage", "state", "what"), rows)
        print(f"would {'delete and remake' if fresh else 'write'} {path}; nothing was done")

    def work() -> dict[str, Any]:
        from etude.core import recipe
        from etude.pipeline import execute as pipeline

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
