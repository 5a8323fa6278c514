"""The command `etude grade`: the grade of a folder that somebody made of a task's workspace."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer

from etude.cli.console import Backend, Json, answer, table


def grade(
    task: Annotated[Path, typer.Argument(help="A task directory.")],
    folder: Annotated[Path, typer.Argument(help="A copy of its environment/workspace with changes in it.")],
    only_changes: Annotated[
        bool, typer.Option("--only-changes", help="The folder has nothing but new and changed files.")
    ] = False,
    said: Annotated[str, typer.Option("--answer", help="Last words, for a task that asks a question.")] = "",
    sandbox: Backend = "local",
    settings: Annotated[list[str] | None, typer.Option("--set", help="Changes, such as grader.seconds=30.")] = None,
    json: Json = False,
) -> None:
    """Grade a folder as a rollout's workspace is graded. Exits with 1 where it does not solve the task."""

    def work() -> dict[str, Any]:
        from etude.core import recipe
        from etude.rollout.rollout import temporary_host
        from etude.tasks.format.task import Task
        from etude.tasks.grade_folder import grade_folder
        from etude.tasks.grading.verdict import Grade

        grader, loaded = recipe.load(None, settings or []).grader, Task.load(task)

        async def graded() -> Grade:
            async with temporary_host(sandbox) as host:
                return await grade_folder(loaded, folder, host, grader, only_changes=only_changes, answer=said)

        found = asyncio.run(graded())
        return {
            "ok": found.passed,
            "task": loaded.name,
            "passed": found.passed,
            "kind": found.kind,
            "reason": found.reason,
            "share": round(found.share, 4),
            "tests": found.tests,
            "details": found.details,
            "refused": [list(each) for each in found.refused],
            "seconds": round(found.seconds, 3),
        }

    def show(found: dict[str, Any]) -> None:
        failing = [(name, status) for name, status in found["tests"].items() if status != "passed"]
        if failing:
            rows = [(name, status, found["details"].get(name, "").strip()[-100:]) for name, status in failing[:20]]
            table(("test", "", "what it said"), rows)
        if found["refused"]:
            table(("not graded", "why"), found["refused"][:20])
        passing = len(found["tests"]) - len(failing)
        count = f"{passing} of {len(found['tests'])} tests pass" if found["tests"] else "no tests ran"
        verdict = "passed" if found["passed"] else f"not passed: {found['reason']}"
        print(f"{found['task']}: {verdict} ({count}, {found['seconds']:.1f} s)")

    answer(work, show, json)
