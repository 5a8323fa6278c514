"""Commands on studies: `etude study list`, `run`, `add`, `page`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, cast

import typer

from etude.cli.console import Json, answer, table

study_app = typer.Typer(no_args_is_help=True, help="Studies of published claims: list, run, write their pages.")

Root = Annotated[Path, typer.Option("--studies", help="Folder of studies.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="A study, such as average-and-best.")]
SizeOption = Annotated[str, typer.Option("--size", help="Arms for cpu or for h200.")]
Runs = Annotated[Path, typer.Option("--runs", help="Folder for the runs of arms and the models they start from.")]
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
            verdict, missing, every = study.verdict(_size(size)), study.missing(_size(size)), study.every(_size(size))
            rows.append(
                {
                    "name": name,
                    "claim": study.study.claim,
                    "arms": list(arms),
                    "results": len(every) - len(missing),
                    "of": len(every),
                    "minutes": sum(study.minutes(_size(size), arm) for arm, _ in every),
                    "minutes_left": sum(study.minutes(_size(size), arm) for arm, _ in missing),
                    "verdict": verdict.verdict,
                    "sentence": verdict.sentence,
                }
            )
        return {"studies": rows}

    def show(found: dict[str, Any]) -> None:
        if not found["studies"]:
            print(f"no studies of size {size} in {root}: run it in the checkout of etude, or give --studies FOLDER")
            return
        rows = [
            (row["name"], f"{row['results']} of {row['of']}", f"{row['minutes_left']:.0f}", row["verdict"])
            for row in found["studies"]
        ]
        # The claims are sentences: a column of them would be a dozen characters wide on a terminal of 80.
        table(("study", "results", "minutes left", "verdict"), rows)
        print("claim, arms and results of each: studies/NAME/README.md, or --json")

    answer(work, show, json)


@study_app.command("run")
def study_run(
    name: Name,
    size: SizeOption = "cpu",
    arm: Annotated[str, typer.Option("--arm", help="Only this arm.")] = "",
    seed: Annotated[int, typer.Option("--seed", help="Only this seed; -1 is all.")] = -1,
    minutes: Annotated[float, typer.Option("--minutes", help="Begin no arm after so many; 0 is no limit.")] = 0.0,
    runs: Runs = Path("runs/studies"),
    keep: Annotated[bool, typer.Option("--keep", help="Keep each arm's run, which is deleted otherwise.")] = False,
    results: Annotated[
        Path | None, typer.Option("--results", help="Folder for results in place of the study's; no page is written.")
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=VALUE for all commands, to try it smaller; needs --results.")
    ] = None,
    bases_only: Annotated[
        bool, typer.Option("--bases-only", help="Only make the models that the arms start from.")
    ] = False,
    only_base: Annotated[str, typer.Option("--base", help="Only make this model, with --arm and --seed.")] = "",
    root: Root = FOLDER,
    json: Json = False,
) -> None:
    """Run the arms and seeds that have no result yet, and write the study's page."""

    def work() -> dict[str, Any]:
        from dataclasses import replace

        from etude.bench.studies.bases import Places, make_base, with_needs
        from etude.bench.studies.page import write_page
        from etude.bench.studies.run_arms import run_arms, run_command
        from etude.bench.studies.study import open_study
        from etude.core.errors import EtudeError

        study, which = open_study(name, root), _size(size)
        if arm and arm not in study.arms(which):
            raise EtudeError(f"{name} has no arm {arm!r}; it has {', '.join(study.arms(which))}")
        if changes and results is None and not bases_only and not only_base:
            raise EtudeError("--set tries a study at another size: give --results DIR too, so that none is mixed up")
        if results is not None:
            study = replace(study, results_in=results / study.name)
        if only_base:
            if not arm or seed < 0:
                raise EtudeError("--base makes one model that an arm of a seed starts from: give --arm and --seed, too")
            named = {each.name: each for each in with_needs(study.arms(which)[arm].bases)}
            if only_base not in named:
                raise EtudeError(f"{arm} starts from {', '.join(named) or 'no base'}, and not from {only_base!r}")
            make_base(named[only_base], Places(runs, seed, study.path), run_command, changes or ())
            return {"bases": True, "ran": []}
        wanted = [(a, s) for a, s in study.missing(which) if arm in ("", a) and seed in (-1, s)]
        if bases_only:
            for a, s in wanted:
                for base in study.arms(which)[a].bases:
                    make_base(base, Places(runs, s, study.path), run_command, changes or ())
            return {"bases": True, "ran": []}
        seconds = 60 * minutes
        done = (
            run_arms(study, which, runs, only=wanted, seconds=seconds, keep=keep, changes=changes or ())
            if wanted
            else []
        )
        verdict = study.verdict(which)
        page = str(write_page(study, which)) if results is None else ""
        return {"ran": done, "page": page, "verdict": verdict.verdict, "sentence": verdict.sentence}

    answer(work, _show_verdict, json)


@study_app.command("add")
def study_add(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="results.json of `studies/run_many.py`.")],
    root: Root = FOLDER,
    json: Json = False,
) -> None:
    """Take in results that were made on another machine, and write the pages of their studies."""

    def work() -> dict[str, Any]:
        from etude.bench.studies.many_arms import spread
        from etude.bench.studies.page import write_page
        from etude.bench.studies.study import open_study

        written = [path for file in files for path in spread(file, root)]
        for name, size in sorted({(path.parts[-3], path.parts[-2].partition("-")[2] or "cpu") for path in written}):
            write_page(open_study(name, root), _size(size))
        return {"results": [str(path) for path in written]}

    answer(work, lambda found: print(f"{len(found['results'])} results taken in"), json)


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
    if "verdict" in found:
        print(f"{found['verdict']}: {found['sentence']}\n{found['page']}")


def _size(size: str) -> Literal["cpu", "h200"]:
    from etude.core.errors import EtudeError

    if size not in ("cpu", "h200"):
        raise EtudeError(f"--size is cpu or h200, not {size}")
    return cast(Literal["cpu", "h200"], size)
