"""Commands on a run: bring it to the end of a stage or of all stages, resume it, report it.

From `etude rl` to the loop: this file's command, `pipeline.execute`, the stage's work, `rl.orchestrator`, `rl.loop`.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from etude.cli.console import Json, Overrides, RecipeName, RunFolder, answer, points, print_next, share, table, values
from etude.cli.status import bench_command
from etude.core.errors import EtudeError

RunPath = Annotated[Path | None, typer.Option("--run", help="Run folder; default: runs/<name of the recipe>.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Delete what the run holds and start over.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what each stage would do; do nothing.")]

STAGES = {
    "corpus": "Read, filter and tokenise the training text.",
    "pretrain": "Train a model on the corpus, which is built first when it is not there.",
    "mtp": "Train heads that predict further ahead, for speculation, on a pretrained model.",
    "extend": "Train on longer sequences, whole repositories, with positions for them.",
    "demos": "Let the reference policy solve tasks in the real harness, for fine-tuning.",
    "sft": "Fine-tune a model on conversations: sft.data, or this run's demonstrations.",
    "rl": "Improve a model by reinforcement learning on tasks, inside the real harness.",
}
RL_FACTS = {  # what people read of a finished `rl`; --json has all facts
    "steps": "steps",
    "rollouts": "rollouts",
    "void": "void",
    "groups": "groups",
    "zero_variance": "of equal reward",
    "sampled_tokens": "tokens sampled",
    "trained_tokens": "trained",
    "feedback_tokens": "under hints",
    "seconds": "seconds",
}


def stage_command(target: str) -> Any:
    def command(
        recipe: RecipeName,
        overrides: Overrides = None,
        run: RunPath = None,
        fresh: Fresh = False,
        dry_run: DryRun = False,
        json: Json = False,
    ) -> None:
        path = run or _default_run(recipe)
        (_dry_run if dry_run else _run_stage)(target, recipe, overrides or [], path, fresh, json)

    return command


def rl(
    recipe: RecipeName,
    overrides: Overrides = None,
    run: RunPath = None,
    fresh: Fresh = False,
    dry_run: DryRun = False,
    rollouts_only: Annotated[
        bool,
        typer.Option("--rollouts-only", help="For debugging: fill the run's journal with rollouts, train nothing."),
    ] = False,
    train_only: Annotated[
        Path | None,
        typer.Option(
            "--train-only", metavar="RUN", help="For debugging: train on the rollouts in RUN's journal, sample nothing."
        ),
    ] = None,
    json: Json = False,
) -> None:
    path = run or _default_run(recipe)
    if rollouts_only or train_only is not None:
        _run_half(recipe, overrides or [], path, fresh, rollouts_only, train_only, dry_run, json)
    else:
        (_dry_run if dry_run else _run_stage)("rl", recipe, overrides or [], path, fresh, json)


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
    path = run or _default_run(recipe)
    if dry_run:
        _dry_run(stage or "report", recipe, overrides or [], path, fresh, json)
    elif stage:
        _run_stage(stage, recipe, overrides or [], path, fresh, json)
    else:
        answer(lambda: _run_to(recipe, overrides or [], path, fresh, json), _show_results, json)


def resume(run: RunFolder, json: Json = False) -> None:
    """Go on with an unfinished run, with its own recipe."""

    def work() -> dict[str, Any]:
        from etude.pipeline.execute import unfinished

        target = unfinished(run)
        if not target:
            return {"run": str(run), "stopped": "", "results": {}, "finished": True}
        return _run_to(str(run / "recipe.toml"), [], run, False, json, target)

    def show(found: dict[str, Any]) -> None:
        if found.get("finished"):
            print(f"{run} has nothing left to do")
        else:
            _show_results(found)

    answer(work, show, json)


def report(
    run: RunFolder,
    before: Annotated[
        Path | None,
        typer.Option("--before", help="A benchmark of the model that training started from, as bench --save wrote it."),
    ] = None,
    json: Json = False,
) -> None:
    """Write the report of a run: report.html, and report.md, which is the same in short."""

    def work() -> dict[str, Any]:
        from etude.bench.report.page import write_report
        from etude.bench.run_results import add_before, write_results

        if before is not None:
            add_before(run, before)
        return {"results": write_results(run), "report": str(write_report(run))}

    answer(work, lambda found: print(found["report"]), json)


def _default_run(recipe: str) -> Path:
    return Path("runs") / Path(recipe).name.removesuffix(".toml")


def _run_to(
    recipe: str, overrides: list[str], path: Path, fresh: bool, quiet: bool, target: str = "report"
) -> dict[str, Any]:
    from etude.bench.run_results import read_results
    from etude.pipeline.execute import execute_apart

    stopped = execute_apart(target, recipe, overrides, path, fresh=fresh, quiet=quiet)
    return {"ok": not stopped, "run": str(path), "stopped": stopped, "results": read_results(path)}


def _show_results(found: dict[str, Any]) -> None:
    results, path = found["results"], Path(found["run"])
    if not results:
        return
    arms = {arm: row for arm in ("sft", "rl") if (row := results.get(arm)) is not None}
    # pass@4 is null where a task had fewer rollouts: then there is no such column.
    names = sorted(
        {name for row in arms.values() for name, value in row.items() if name[:5] == "pass@" and value is not None}
    )
    rows = [
        (arm, *(share(row.get(name)) for name in (*names, "format_errors")), f"{row['tokens']:.1f}")
        for arm, row in arms.items()
    ]
    if arms:  # a recipe may end with fine-tuning
        table(("model", *names, "format errors", "tokens a rollout"), rows)
    if "rl" in arms:
        print(f"gain by reinforcement learning: {points(results['paired_gain'])} in pass@1, in pairs")
    print(f"report: {path / 'report.html'}")


def _dry_run(target: str, name: str, overrides: list[str], path: Path, fresh: bool, json: bool) -> None:
    def work() -> dict[str, Any]:
        from etude.core import recipe
        from etude.pipeline.execute import outline

        loaded = recipe.load(name, overrides)
        stages = outline(target, loaded, path, fresh=fresh)
        return {"run": str(path), "stages": stages, "recipe": recipe.to_dict(loaded), "toml": recipe.to_toml(loaded)}

    def show(found: dict[str, Any]) -> None:
        rows = [(row.pop("stage"), row.pop("state"), values(row)) for row in found["stages"]]
        table(("stage", "state", "what"), rows)
        print(f"would {'delete and remake' if fresh else 'write'} {path}; nothing was done")
        print(f"all settings: {shlex.join(['etude', 'recipe', 'show', name, *overrides])}")

    answer(work, show, json)


def _run_half(
    name: str,
    overrides: list[str],
    path: Path,
    fresh: bool,
    rollouts_only: bool,
    journal: Path | None,
    dry_run: bool,
    json: bool,
) -> None:
    def work() -> dict[str, Any]:
        from etude.core import recipe
        from etude.pipeline import half_loop

        if dry_run or (rollouts_only and journal is not None):
            raise EtudeError("give only one of --rollouts-only, --train-only and --dry-run")
        loaded = recipe.load(name, overrides)
        if journal is None:
            return half_loop.rollouts_only(loaded, path, fresh=fresh)
        return half_loop.train_only(loaded, path, journal, fresh=fresh)

    def show(found: dict[str, Any]) -> None:
        shown = {key: value for key, value in found.items() if key not in ("ok", "run", "stopped", "checkpoint")}
        print(f"{'rollouts' if journal is None else 'training'} only: {values(shown)}")
        if journal is None:
            train = ["etude", "rl", name, *overrides, "--run", f"{path}-trained", "--train-only", str(path)]
            print_next(shlex.join(["etude", "rollouts", str(path)]), shlex.join(train))
        else:
            print(f"model: {found['checkpoint']}")

    answer(work, show, json)


def _run_stage(target: str, name: str, overrides: list[str], path: Path, fresh: bool, json: bool) -> None:
    def work() -> dict[str, Any]:
        from etude.core import recipe
        from etude.pipeline.execute import execute

        loaded = recipe.load(name, overrides)
        executed = execute(target, loaded, path, fresh=fresh)
        return {
            "ok": not executed.stopped,
            "run": str(executed.path),
            "stage": target,
            "done": list(executed.done),
            "finished_before": list(executed.before),
            "stopped": executed.stopped,
            "facts": executed.facts,
            "model": str(executed.model) if executed.model else None,
            "next": bench_command(path, recipe.to_dict(loaded)) if target == "rl" else "",
        }

    def show(found: dict[str, Any]) -> None:
        if target == "corpus" and not found["stopped"]:
            from etude.corpus.manifest import load_manifest

            print(load_manifest(path / "corpus").table())
        for stage, facts in found["facts"].items():
            was = "was finished already" if stage in found["finished_before"] else "finished"
            shown = {label: facts[key] for key, label in RL_FACTS.items() if key in facts} if stage == "rl" else facts
            print(f"{stage} {was}: {values(shown)}")
        if found["stopped"]:
            print(f"{found['stopped']} stopped before its end")
        elif not found["done"]:
            print(f"{path} has nothing left to do; --fresh starts it over")
        if found["model"]:
            print(f"model: {found['model']}")
        if found["next"] and not found["stopped"]:
            print_next(found["next"])

    answer(work, show, json)
