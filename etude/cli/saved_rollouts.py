"""`etude rollouts`: the saved rollouts of a run, or of any folder, listed, filtered and read in the terminal."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from etude.cli.console import Json, answer, table

if TYPE_CHECKING:
    from etude.rollout.listing import RolloutLine

COLOURS = {"passed": "green", "failed": "red", "void": "yellow"}


def rollouts(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run, or a folder of saved rollouts.")],
    name: Annotated[str, typer.Argument(help="Show this one: its name, or how it begins.")] = "",
    outcome: Annotated[str, typer.Option("--only", help="passed, failed or void.")] = "",
    task: Annotated[str, typer.Option("--task", help="Part of a task's name.")] = "",
    stop: Annotated[str, typer.Option("--stop", help="Why the agent ended: finish, turns, tokens, ...")] = "",
    text: Annotated[str, typer.Option("--text", help="Text that its messages hold.")] = "",
    last: Annotated[int, typer.Option("--last", min=1, help="At most so many, the newest.")] = 30,
    by_task: Annotated[bool, typer.Option("--by-task", help="How often each task passed instead.")] = False,
    json: Json = False,
) -> None:
    """List the saved rollouts of a run, or show one from its first message to its grade."""

    def work() -> dict[str, Any]:
        from etude.core.errors import EtudeError
        from etude.rollout.listing import Wanted, find_rollout, list_rollouts, rates_by_task

        if outcome not in ("", *COLOURS):
            raise EtudeError(f"--only takes {', '.join(COLOURS)}, not {outcome!r}")
        if name:
            line = find_rollout(folder, name)
            if not json:
                _show_one(line)
            return _plain(line)
        found = list_rollouts(folder, Wanted(outcome, task, stop, text))
        rates = rates_by_task((line.task, line.passed, 1) for line in found if line.reward is not None)
        shown = found[-last:]
        return {
            "rollouts": [_plain(line) for line in shown],
            "left_out": len(found) - len(shown),
            "passed": sum(line.passed for line in found),
            "counted": sum(line.reward is not None for line in found),
            "tasks": [asdict(rate) for rate in rates],
        }

    def show(found: dict[str, Any]) -> None:
        if name:
            return
        if by_task:
            table(
                ("task", "passed"),
                [(each["task"], f"{each['passed']} of {each['rollouts']}") for each in found["tasks"]],
            )
        else:
            table(
                ("rollout", "", "reward", "stopped by", "turns", "tokens", "task"), [_row(r) for r in found["rollouts"]]
            )
        if found["left_out"]:
            everything = found["left_out"] + len(found["rollouts"])
            print(f"{found['left_out']} older ones left out; --last {everything} shows all")
        print(f"{found['passed']} of {found['counted']} passed; `etude rollouts {folder} NAME` shows one")

    answer(work, show, json)


def _row(line: dict[str, Any]) -> tuple[Any, ...]:
    from etude.rollout.view import printable

    reward = "" if line["reward"] is None else f"{line['reward']:.3g}"
    state = Text(line["outcome"], COLOURS[line["outcome"]])
    cells = (line["stop"], line["turns"], line["tokens"], printable(line["task"]))
    return (printable(line["name"]), state, reward, *cells)


def _plain(line: RolloutLine) -> dict[str, Any]:
    return {"name": line.name, "outcome": line.outcome, **asdict(line), "path": str(line.path)}


def _show_one(line: RolloutLine) -> None:
    from etude.harness.trajectory_files import FACTS, load_trajectory
    from etude.rollout.view import RolloutView

    view = RolloutView()
    if (line.path / FACTS).exists():
        view.show_messages(load_trajectory(line.path))
    view.show_line(line)
