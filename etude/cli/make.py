"""The command that makes tasks from a repository: `etude tasks make`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from etude.cli.console import FindLinks, Json, StoreFolder, answer, table
from etude.cli.tasks import Seed, tasks_app


def register() -> None:
    tasks_app.command("make")(tasks_make)


def tasks_make(
    repo: Annotated[str, typer.Argument(metavar="REPO", help="A folder, a git checkout, or a package: attrs==24.2.0.")],
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
    store: StoreFolder = None,
    find_links: FindLinks = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Make verified tasks from a repository: features, bugs, questions, tests and more. Started again, it resumes."""

    def work() -> dict[str, Any]:
        from etude.forge.pipeline.command import make_from

        return make_from(repo, out, count, seed, _listed(origins), _listed(prompt_styles), workers, store, find_links)

    def show(found: dict[str, Any]) -> None:
        table(("rejected", "why"), [(number, reason) for reason, number in found["rejected"].items()])
        share = found["valid"] / found["tried"] if found["tried"] else 0.0
        each = found["spent"] / found["valid"] if found["valid"] else 0.0
        print(
            f"{found['repo']} {found['version']}: {found['valid']} tasks of {found['tried']} candidates ({share:.0%})"
        )
        print(f"{found['seconds']:.0f} s now, {each:.1f} s of work for each task; they lie in {out}")

    answer(work, show, json)


def _listed(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
