"""Commands about tasks and the world they are tried in: `etude tasks`, `rollout`, `regrade`, `sandbox`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from etude.cli.console import Json, Overrides, answer, table

tasks_app = typer.Typer(no_args_is_help=True, help="Make and check tasks.")
sandbox_app = typer.Typer(no_args_is_help=True, help="Look at sandboxes.")

Backend = Annotated[
    str, typer.Option("--sandbox", help="local, docker (for a Dockerfile), or plain (no isolation, and stamped).")
]
Seed = Annotated[int, typer.Option("--seed", help="The same seed gives the same tasks and scripts.")]


def register(app: typer.Typer) -> None:
    app.add_typer(tasks_app, name="tasks")
    app.add_typer(sandbox_app, name="sandbox")
    app.command()(rollout)
    app.command()(regrade)
    app.command()(export)


@tasks_app.command("katas")
def tasks_katas(
    out: Annotated[Path, typer.Argument(help="Folder for the task directories.")],
    count: Annotated[int, typer.Option("--count", min=1, help="How many.")] = 20,
    split: Annotated[str, typer.Option("--split", help="train, held_out or unseen.")] = "train",
    levels: Annotated[str, typer.Option("--levels", help="Any of 1, 2 and 3, such as 1,2.")] = "1,2,3",
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Write small tasks: repositories from which a feature was deleted."""

    def work() -> dict[str, Any]:
        from etude.cli.task_actions import make_katas

        return make_katas(out, split, count, seed, [int(level) for level in levels.split(",") if level.isdigit()])

    answer(work, lambda found: print(f"{found['tasks']} tasks in {found['folder']}"), json)


@tasks_app.command("import")
def tasks_import(
    rows: Annotated[Path, typer.Argument(help="SWE-bench or SWE-smith rows: JSON lines, or JSON.")],
    repo: Annotated[Path, typer.Option("--repo", help="Git checkout of the repository that the rows are about.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for the task directories.")],
    environment: Annotated[
        str, typer.Option("--environment", help="Digest that `etude env install` gave: then they are graded here.")
    ] = "",
    json: Json = False,
) -> None:
    """Write rows of other people's data sets as tasks."""

    def work() -> dict[str, Any]:
        from etude.cli.task_actions import import_rows

        return import_rows(rows, repo, out, environment)

    def show(found: dict[str, Any]) -> None:
        table(("refused", "why"), list(found["refused"].items()))
        print(f"{found['imported']} tasks in {out}")

    answer(work, show, json)


@tasks_app.command("check")
def tasks_check(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Task directories, or folders of them.")],
    sandbox: Backend = "local",
    settings: Annotated[list[str] | None, typer.Option("--set", help="Changes, such as grader.seconds=30.")] = None,
    json: Json = False,
) -> None:
    """Lint and verify tasks without a model."""
    warnings: list[str] = []

    def work() -> dict[str, Any]:
        from etude.cli.task_actions import check_tasks

        reports = check_tasks(directories, sandbox, settings or [])
        warnings.extend(f"{path}: {each}" for path, report in reports.items() for each in report.warnings)
        problems = {str(path): report.problems for path, report in reports.items() if not report.ok}
        valid = len(reports) - len(problems)
        return {"ok": not problems, "checked": len(reports), "valid": valid, "problems": problems}

    def show(found: dict[str, Any]) -> None:
        for line in warnings:
            print(line)
        for path, said in found["problems"].items():
            table(("", ""), [(Text("unfit", "red"), path), *(("", line) for line in said)])
        print(f"{found['valid']} of {found['checked']} tasks are fit to be used")

    answer(work, show, json)


@tasks_app.command("combine")
def tasks_combine(
    folder: Annotated[Path, typer.Argument(help="Folder of made tasks.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for the harder ones.")],
    count: Annotated[int, typer.Option("--count", min=1, help="How many, at most.")] = 20,
    sandbox: Backend = "local",
    json: Json = False,
) -> None:
    """Make harder tasks out of pairs: two pieces of one repository are missing at once."""

    def work() -> dict[str, Any]:
        from etude.cli.task_actions import combine_tasks

        return combine_tasks(folder, out, count, sandbox, [])

    answer(work, lambda found: print(f"{found['valid']} tasks in {out}; rejected: {found['rejected'] or 'none'}"), json)


def rollout(
    task: Annotated[Path, typer.Argument(help="Task directory.")],
    overrides: Overrides = None,
    policy: Annotated[
        str,
        typer.Option(
            "--policy",
            help="reference, null, stub, attack:NAME, an engine (unix:/path, http://...), "
            "or a hosted model (openai:https://host/v1?model=NAME; the rest as endpoint.KEY=VALUE).",
        ),
    ] = "reference",
    model: Annotated[Path | None, typer.Option("--model", help="Folder with the tokenizer of the engine.")] = None,
    save: Annotated[Path | None, typer.Option("--save", help="Folder to keep the attempt in.")] = None,
    sandbox: Backend = "local",
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Let a policy try a task once, shown as it happens."""

    def work() -> dict[str, Any]:
        from etude.cli.task_actions import roll_out
        from etude.rollout.view import RolloutView

        view = None if json else RolloutView()
        return roll_out(task, policy, model, save, sandbox, seed, overrides or [], view)

    answer(work, lambda found: print(f"saved: {found['saved']}") if "saved" in found else None, json)


def regrade(
    folder: Annotated[Path, typer.Argument(help="A saved attempt, or a folder of them.")],
    overrides: Overrides = None,
    sandbox: Backend = "local",
    json: Json = False,
) -> None:
    """Grade saved attempts again, without a model."""

    def work() -> dict[str, Any]:
        from etude.cli.task_actions import regrade_saved

        return regrade_saved(folder, sandbox, overrides or [])

    def show(found: dict[str, Any]) -> None:
        word = {True: "passed", False: "failed"}
        rows = [(row["attempt"], word[row["before"]], word[row["after"]], row["reason"]) for row in found["attempts"]]
        table(("attempt", "before", "now", "reason"), rows)
        print(f"{found['graded']} graded, {found['changed']} changed, {found['left_out']} void and left out")

    answer(work, show, json)


def export(
    folder: Annotated[Path, typer.Argument(help="A saved attempt, or a folder of them.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for the documents, one below it for each attempt.")],
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Write the trajectories of saved attempts as ATIF 1.8 documents, for other people's viewers."""

    def work() -> dict[str, Any]:
        from etude.cli.task_actions import export_saved

        return export_saved(folder, out, overrides or [])

    answer(work, lambda found: print(f"{found['exported']} trajectories in {found['folder']}"), json)


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
        rows = [
            (name, *(f"{spread[p]:.2f} ms" for p in ("p50", "p95")), _bar(found["bars"].get(name)))
            for name, spread in spreads.items()
        ]
        table(("what", "p50", "p95", "bar"), rows)
        print(f"{found['starts_per_second']:.0f} starts each second; all bars reached: {found['passed']}")

    answer(work, show, json)


def _bar(milliseconds: float | None) -> str:
    return "" if milliseconds is None else f"{milliseconds:g} ms"
