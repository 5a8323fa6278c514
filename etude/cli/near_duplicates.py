"""The command that compares tasks with each other, with benchmarks and with a corpus: `etude tasks near-duplicates`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from etude.cli.console import Json, answer, table
from etude.cli.tasks import tasks_app


def register() -> None:
    tasks_app.command("near-duplicates")(tasks_near_duplicates)
    tasks_app.command("alike", hidden=True)(tasks_near_duplicates)  # its name in earlier versions


def tasks_near_duplicates(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Task directories, or folders of them.")],
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
