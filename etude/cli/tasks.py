"""Commands about tasks: `etude tasks katas`, `import`, `make`, `ladder`, `split`, `check` and others."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from etude.cli.console import Backend, FindLinks, Json, Repository, Seed, StoreFolder, TaskFolders, answer, table

tasks_app = typer.Typer(no_args_is_help=True, help="Make and check tasks.")


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
        from etude.core.errors import EtudeError
        from etude.forge.katas.task_source import write_katas

        chosen = [int(level) for level in levels.split(",") if level.isdigit()]
        wrong = [level for level in chosen if level not in (1, 2, 3)]
        if wrong or split not in ("train", "held_out", "unseen"):
            raise EtudeError(f"katas have levels 1, 2, 3 and splits train, held_out, unseen, not {wrong or split}")
        written = write_katas(out, split, count, seed, chosen)  # type: ignore[arg-type]
        return {"tasks": len(written), "folder": str(out)}

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
        from etude.tasks.format.swe_rows import import_rows

        written, refused = import_rows(rows, repo, out, environment)
        tasks = [str(path) for path in written]
        return {"ok": bool(tasks), "imported": len(tasks), "refused": refused, "tasks": tasks}

    def show(found: dict[str, Any]) -> None:
        table(("refused", "why"), list(found["refused"].items()))
        print(f"{found['imported']} tasks in {out}")

    answer(work, show, json)


@tasks_app.command("make")
def tasks_make(
    repo: Repository,
    out: Annotated[Path, typer.Option("--out", help="Folder for the task directories and the journal.")],
    count: Annotated[int, typer.Option("--count", min=1, help="How many valid tasks.")] = 20,
    origins: Annotated[
        str,
        typer.Option(
            "--from", help="Any of deletion, bug, commit, question, test_writing, docstrings, refactoring, packaging."
        ),
    ] = "deletion,bug,commit",
    prompt_styles: Annotated[
        str,
        typer.Option(
            "--prompt-styles", "--registers", help="How instructions speak: any of terse, plain and detailed."
        ),
    ] = "terse,plain,detailed",
    workers: Annotated[int, typer.Option("--workers", min=1, max=256, help="Candidates tried at once.")] = 2,
    tracker: Annotated[
        bool, typer.Option("--tracker", help="Bugs are reported in an issue tracker, which the tool service reads.")
    ] = False,
    store: StoreFolder = None,
    find_links: FindLinks = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Make verified tasks from a repository: features, bugs, questions, tests and more. Started again, it resumes."""

    def work() -> dict[str, Any]:
        from etude.forge.pipeline.command import make_from

        styles = _listed(prompt_styles)
        return make_from(repo, out, count, seed, _listed(origins), styles, workers, store, find_links, tracker=tracker)

    def show(found: dict[str, Any]) -> None:
        if found["left_out"]:
            table(("never tried", "why"), [(number, reason) for reason, number in found["left_out"].items()])
        table(("rejected", "why"), [(number, reason) for reason, number in found["rejected"].items()])
        share = found["valid"] / found["tried"] if found["tried"] else 0.0
        each = found["spent"] / found["valid"] if found["valid"] else 0.0
        print(
            f"{found['repo']} {found['version']}: {found['valid']} tasks of {found['tried']} candidates ({share:.0%})"
        )
        print(f"{found['seconds']:.0f} s now, {each:.1f} s of work for each task; they lie in {out}")
        if found["split"]:
            sides = ", ".join(f"{number} {side}" for side, number in sorted(found["split"].items(), reverse=True))
            print(f"split: {sides}")
        if found["ended"]:
            print(f"ended as {found['ended']}; the reason of each candidate stands in {out}/make.jsonl")

    answer(work, show, json)


@tasks_app.command("ladder")
def tasks_ladder(
    packages: Annotated[list[str], typer.Argument(help="Packages, folders or git checkouts, as for `tasks make`.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for a folder of tasks for each package.")],
    rungs: Annotated[str, typer.Option("--rungs", help="Any of 1, 2, 3 and 4, such as 1,2.")] = "1,2,3,4",
    count: Annotated[int, typer.Option("--count", min=1, help="Tasks of each rung from each package.")] = 40,
    held_out: Annotated[str, typer.Option("--held-out", help="Packages whose tasks training refuses.")] = "",
    workers: Annotated[int, typer.Option("--workers", min=1, max=256, help="Tasks checked at once.")] = 2,
    store: StoreFolder = None,
    find_links: FindLinks = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Make tasks that a small model can learn: one wrong token, or a short body gone. Started again, it resumes."""

    def work() -> dict[str, Any]:
        from etude.core.errors import EtudeError
        from etude.forge.ladder.command import make_ladders

        chosen = _listed(rungs)
        if not chosen or not all(each.isdigit() for each in chosen):
            raise EtudeError(f"--rungs takes numbers such as 1,2, not {rungs!r}")
        numbers = [int(each) for each in chosen]
        return make_ladders(packages, out, numbers, count, _listed(held_out), seed, workers, store, find_links)

    def show(found: dict[str, Any]) -> None:
        table(("package", "why not"), list(found["refused"].items()))
        table(("rejected", "why"), [(number, reason) for reason, number in found["rejected"].items()])
        rows = [(name, each["split"], each["tried"], each["rungs"]) for name, each in found["packages"].items()]
        table(("package", "split", "tried", "tasks by rung"), rows)
        print(f"{found['valid']} tasks of {found['tried']} candidates in {found['seconds']:.0f} s; they lie in {out}")

    answer(work, show, json)


@tasks_app.command("split")
def tasks_split(
    directories: TaskFolders,
    share: Annotated[float, typer.Option("--share", min=0.01, max=0.9, help="Of the tasks to hold out.")] = 0.2,
    json: Json = False,
) -> None:
    """Divide tasks into train and held_out: by package where there are several, else by what they have in common."""

    def work() -> dict[str, Any]:
        from etude.forge.pipeline.split import split_tasks
        from etude.tasks.format.task import given_tasks

        return split_tasks(given_tasks(directories), share)

    answer(work, lambda found: print(f"{found['train']} train, {found['held_out']} held_out"), json)


@tasks_app.command("check")
def tasks_check(
    directories: TaskFolders,
    sandbox: Backend = "local",
    settings: Annotated[list[str] | None, typer.Option("--set", help="Changes, such as grader.seconds=30.")] = None,
    json: Json = False,
) -> None:
    """Lint and verify tasks without a model."""
    warnings: list[str] = []

    def work() -> dict[str, Any]:
        from etude.core import recipe
        from etude.core.progress import track
        from etude.rollout.rollout import temporary_host
        from etude.tasks.check import CheckReport
        from etude.tasks.check_many import check_directories
        from etude.tasks.format.task import given_tasks

        grader, folders = recipe.load(None, settings or []).grader, given_tasks(directories)

        async def check() -> dict[Path, CheckReport]:
            async with temporary_host(sandbox) as host:
                with track("checking tasks", total=len(folders), unit="tasks") as bar:
                    return await check_directories(folders, host, grader, bar.advance)

        reports = asyncio.run(check())
        warnings.extend(f"{path}: {each}" for path, report in reports.items() for each in report.warnings)
        problems = {str(path): report.problems for path, report in reports.items() if not report.ok}
        valid = len(reports) - len(problems)
        return {"ok": not problems, "checked": len(reports), "valid": valid, "problems": problems}

    def show(found: dict[str, Any]) -> None:
        for line in warnings:
            print(line)
        for path, problems in found["problems"].items():
            table(("", ""), [(Text("unfit", "red"), path), *(("", line) for line in problems)])
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
        from etude.core.progress import track
        from etude.forge.curriculum.composite_tasks import combine_checked
        from etude.rollout.rollout import temporary_host
        from etude.tasks.format.task import Task, given_tasks

        tasks = [Task.load(path) for path in given_tasks([folder])]

        async def combine() -> tuple[list[Path], dict[str, int]]:
            async with temporary_host(sandbox) as host:
                with track("combining tasks", total=count, unit="tasks") as bar:
                    return await combine_checked(tasks, out, count, host, bar.advance)

        made, rejected = asyncio.run(combine())
        return {"ok": bool(made), "valid": len(made), "rejected": rejected, "tasks": [str(path) for path in made]}

    answer(work, lambda found: print(f"{found['valid']} tasks in {out}; rejected: {found['rejected'] or 'none'}"), json)


@tasks_app.command("near-duplicates")
@tasks_app.command("alike", hidden=True)  # its name in earlier versions
def tasks_near_duplicates(
    directories: TaskFolders,
    against: Annotated[
        list[Path] | None, typer.Option("--against", help="Tasks of a benchmark: a task like one of them is named.")
    ] = None,
    corpus: Annotated[
        Path | None, typer.Option("--corpus", help="A run, or the corpus in it: its documents are searched for tasks.")
    ] = None,
    ngram: Annotated[
        int, typer.Option("--ngram", min=5, help="Words in a row that a document and a task may not share.")
    ] = 13,
    json: Json = False,
) -> None:
    """Find tasks that are nearly the same, and documents of a corpus that have seen one."""

    def work() -> dict[str, Any]:
        from etude.forge.gates.near_duplicates import compare_tasks, load_tasks

        tasks = load_tasks(directories)
        return compare_tasks(tasks, load_tasks(against) if against else [], corpus, ngram).to_json()

    def show(found: dict[str, Any]) -> None:
        if found["near_duplicates"]:
            rows = [
                (near["task"], near["like"], f"{near['similarity']:.2f}", near["by"], "yes" if near["crosses"] else "")
                for near in found["near_duplicates"]
            ]
            table(("task", "is like", "similar", "by", "crosses into evaluation"), rows)
        if found["seen"]:
            hits = [(seen["document"], seen["task"], seen["part"], seen["words"][:60]) for seen in found["seen"]]
            table(("document", "has seen", "part", "shared words"), hits)
        print(f"{found['tasks']} tasks, {len(found['drop'])} nearly the same as another", end="")
        print(f"; {found['contaminated']} of {found['documents']} documents have seen one" if corpus else "")

    answer(work, show, json)


def _listed(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
