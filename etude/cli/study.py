"""Commands on studies: `etude study list`, `run`, `page`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, cast

import typer

from etude.cli.console import Json, answer, table

study_app = typer.Typer(no_args_is_help=True, help="Studies of published claims: list, run, write their pages.")

Root = Annotated[Path, typer.Option("--studies", help="Folder of studies.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="A study, such as average-and-best.")]
SizeOption = Annotated[str, typer.Option("--size", help="Arms for cpu or for h200.")]
FOLDER = Path("studies")


@study_app.command("list")
def study_list(root: Root = FOLDER, size: SizeOption = "cpu", json: Json = False) -> None:
    """List the studies: results so far, minutes left, verdict, claim."""

    def work() -> dict[str, Any]:
        from etude.bench.studies.study import open_study, study_names

        rows = []
        for name in study_names(root):
            study = open_study(name, root)
            if size not in study.study.arms:
                continue
            arms = study.arms(_size(size))
            verdict, missing = study.verdict(_size(size)), study.missing(_size(size))
            rows.append(
                {
                    "name": name,
                    "claim": study.study.claim,
                    "arms": list(arms),
                    "results": len(arms) * study.study.seeds - len(missing),
                    "of": len(arms) * study.study.seeds,
                    "minutes_left": study.study.minutes * len(missing),
                    "verdict": verdict.verdict,
                    "sentence": verdict.sentence,
                }
            )
        return {"studies": rows}

    def show(found: dict[str, Any]) -> None:
        rows = [
            (
                row["name"],
                f"{row['results']} of {row['of']}",
                f"{row['minutes_left']:.0f}",
                row["verdict"],
                row["claim"],
            )
            for row in found["studies"]
        ]
        table(("study", "results", "minutes left", "verdict", "claim"), rows)

    answer(work, show, json)


@study_app.command("run")
def study_run(
    name: Name,
    size: SizeOption = "cpu",
    arm: Annotated[str, typer.Option("--arm", help="Only this arm.")] = "",
    seed: Annotated[int, typer.Option("--seed", help="Only this seed; -1 is all.")] = -1,
    minutes: Annotated[float, typer.Option("--minutes", help="Begin no arm after so many; 0 is no limit.")] = 0.0,
    runs: Annotated[Path, typer.Option("--runs", help="Folder for the runs of the arms.")] = Path("runs/studies"),
    keep: Annotated[bool, typer.Option("--keep", help="Keep each arm's run, which is deleted otherwise.")] = False,
    root: Root = FOLDER,
    json: Json = False,
) -> None:
    """Run the arms and seeds that have no result yet, and write the study's page."""

    def work() -> dict[str, Any]:
        from etude.bench.studies.page import write_page
        from etude.bench.studies.run_arms import run_arms
        from etude.bench.studies.study import open_study
        from etude.core.errors import EtudeError

        study = open_study(name, root)
        if arm and arm not in study.arms(_size(size)):
            raise EtudeError(f"{name} has no arm {arm!r}; it has {', '.join(study.arms(_size(size)))}")
        wanted = [(a, s) for a, s in study.missing(_size(size)) if arm in ("", a) and seed in (-1, s)]
        done = run_arms(study, _size(size), runs, only=wanted, seconds=60 * minutes, keep=keep) if wanted else []
        page, verdict = write_page(study, _size(size)), study.verdict(_size(size))
        return {"ran": done, "page": str(page), "verdict": verdict.verdict, "sentence": verdict.sentence}

    answer(work, _show_verdict, json)


@study_app.command("page")
def study_page(name: Name, size: SizeOption = "cpu", root: Root = FOLDER, json: Json = False) -> None:
    """Write a study's page again from the results that are there."""

    def work() -> dict[str, Any]:
        from etude.bench.studies.page import write_page
        from etude.bench.studies.study import open_study

        study = open_study(name, root)
        page, verdict = write_page(study, _size(size)), study.verdict(_size(size))
        return {"page": str(page), "verdict": verdict.verdict, "sentence": verdict.sentence}

    answer(work, _show_verdict, json)


def _show_verdict(found: dict[str, Any]) -> None:
    print(f"{found['verdict']}: {found['sentence']}\n{found['page']}")


def _size(size: str) -> Literal["cpu", "h200"]:
    from etude.core.errors import EtudeError

    if size not in ("cpu", "h200"):
        raise EtudeError(f"--size is cpu or h200, not {size}")
    return cast(Literal["cpu", "h200"], size)
