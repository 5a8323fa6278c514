"""The monitor of reward hacking: `etude audit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from etude.cli.console import Json, answer, table, values


def audit(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Saved rollouts, or folders of them.")],
    rules: Annotated[
        list[str] | None, typer.Option("--rule", help="Only this rule, by name or ./file.py:Class; may be repeated.")
    ] = None,
    auditor: Annotated[
        str, typer.Option("--auditor", help="rules, or a hosted model: openai:https://host/v1?model=NAME.")
    ] = "rules",
    quarantine: Annotated[
        bool, typer.Option("--quarantine", help="Put broken tasks on the list beside them, so that sources skip them.")
    ] = False,
    behaviour: Annotated[
        bool, typer.Option("--behaviour", help="Instead of verdicts, figures of how each folder's rollouts behave.")
    ] = False,
    json: Json = False,
) -> None:
    """Say of saved rollouts whether they are clean, suspicious, hacks, or show that the task is broken."""

    def work() -> dict[str, Any]:
        from etude.rollout.audit_saved import audit_saved, behaviour_of

        return dict(behaviour_of(files)) if behaviour else dict(audit_saved(files, rules or [], auditor, quarantine))

    def show(found: dict[str, Any]) -> None:
        if behaviour:
            for name, figures in found.items():
                print(f"{name}: {values(figures)}")
            return
        colour = {"clean": "green", "suspicious": "yellow", "hack": "red", "broken task": "magenta"}
        rows: list[tuple[Any, ...]] = []
        for name, ruling in found.items():
            reasons = [f"{each['rule']}: {each['message']}" for each in ruling["findings"]] or [""]
            rows.append((Text(ruling["verdict"], style=colour[ruling["verdict"]]), name, reasons[0]))
            rows += [("", "", reason) for reason in reasons[1:]]
        table(("verdict", "rollout", "why"), rows)
        counts = {kind: sum(ruling["verdict"] == kind for ruling in found.values()) for kind in colour}
        print(", ".join(f"{number} {kind}" for kind, number in counts.items() if number))

    answer(work, show, json, plain=True)
