"""The `etude` command: the table of all commands.

Each group has a file of its own; how a command answers people and scripts is in `console`. Rooms are imported inside
the commands, so that `etude --help` never loads torch.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from etude.cli import rollouts, runs, serve
from etude.cli.audit import audit
from etude.cli.bench import bench_app
from etude.cli.chat import chat
from etude.cli.console import Json, answer, table
from etude.cli.env import env_app, sandbox_app
from etude.cli.grade import grade
from etude.cli.model import model_app
from etude.cli.plan import plan
from etude.cli.recipes import recipe_app
from etude.cli.saved_rollouts import rollouts as saved_rollouts
from etude.cli.status import status
from etude.cli.study import study_app
from etude.cli.tasks import tasks_app
from etude.core.run import TYPED
from etude.core.version import __version__

app = typer.Typer(
    no_args_is_help=True,
    suggest_commands=True,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def etude(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Train coding agents in the open, from raw code on.

    New here: `etude doctor`, then `etude run nano --dry-run`. The pages in reading order: docs/README.md.
    """


def doctor(json: Json = False) -> None:
    """Say what this machine can and cannot do, and what to do about it."""

    def work() -> dict[str, Any]:
        from dataclasses import asdict

        from etude.cli.doctor import examine

        rows = examine(Path("runs"))
        lacking = [row.what for row in rows if row.needed and row.state == "missing"]
        return {"ok": not lacking, "lacking": lacking, "rows": [asdict(row) for row in rows]}

    def show(found: dict[str, Any]) -> None:
        colour = {"ok": "green", "limited": "yellow", "missing": "red"}
        rows = [
            (row["what"], Text(row["state"], style=colour[row["state"]]), row["found"], row["advice"])
            for row in found["rows"]
        ]
        table(("what", "", "found", "what to do"), rows)
        print("cannot work without: " + ", ".join(found["lacking"]) if found["lacking"] else "ready")

    answer(work, show, json)


def version(json: Json = False) -> None:
    """Print the version."""
    answer(lambda: {"version": __version__}, lambda found: print(found["version"]), json)


# In the order in which somebody new needs them.
RUNS, STAGES, TASKS, MODELS, MACHINE = "Runs", "Stages of a run", "Tasks and rollouts", "Models", "Recipes and machines"
_COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {
    RUNS: (status, runs.resume, runs.report),
    TASKS: (rollouts.rollout, grade, rollouts.regrade, audit, rollouts.export),
    MODELS: (chat, serve.serve, serve.sample),
    MACHINE: (doctor, plan, version),
}
app.command("run", rich_help_panel=RUNS)(runs.run_all)
for _name, _about in runs.STAGES.items():
    app.command(_name, help=_about, rich_help_panel=STAGES)(runs.rl if _name == "rl" else runs.stage_command(_name))
for _panel, _commands in _COMMANDS.items():
    for _command in _commands:
        app.command(rich_help_panel=_panel)(_command)
app.command("rollouts", rich_help_panel=TASKS)(saved_rollouts)
for _group, _name, _panel in (
    *((env_app, "env", TASKS), (tasks_app, "tasks", TASKS), (bench_app, "bench", MODELS), (model_app, "model", MODELS)),
    *((recipe_app, "recipe", MACHINE), (sandbox_app, "sandbox", MACHINE), (study_app, "study", MACHINE)),
):
    app.add_typer(_group, name=_name, rich_help_panel=_panel)


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a model may answer with bytes that are no text
    # torchrun runs the command once for each rank; `etude run` starts processes of its own, which inherit RANK.
    if "TORCHELASTIC_RUN_ID" in os.environ and TYPED not in os.environ:
        under_torchrun(app)
    else:
        app()


def under_torchrun(command: Callable[[], None]) -> None:
    """Rank 0 does what was asked for; the others are ranks of its learners until it is done."""
    from etude.learn.parallel.launch import end_torchrun_ranks, serve_torchrun_rank

    if os.environ["RANK"] != "0":
        serve_torchrun_rank()
        return
    try:
        command()
    finally:
        end_torchrun_ranks()
