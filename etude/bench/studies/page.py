"""A study as a page: the claim, the verdict, the figure (SVG that follows light and dark) and the table."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from etude.bench.report.charts import chart_file, number, percent
from etude.bench.stats import mean_interval
from etude.bench.studies.study import ArmResult, Size, StudyFolder


def write_page(study: StudyFolder, size: Size) -> Path:
    """Writes `README.md` and the figures beside the study; the page."""
    results, verdict = study.results(size), study.verdict(size)
    suffix = "" if size == "cpu" else f"-{size}"
    style, pictures = resources.files("etude.bench.report").joinpath("style.css").read_text(), []
    for place, figure in enumerate(study.study.figures(results), 1):
        show = percent if figure.percent else number
        drawn = chart_file(figure.title, figure.lines, style, show=show, zero=True, x_label=figure.x_label)
        if drawn is not None:
            name = f"figure{suffix}-{place}.svg"
            (study.path / name).write_text(drawn + "\n")
            pictures.append(f"![{figure.title}]({name})" + (f"\n\n{figure.note}" if figure.note else ""))
    dates = sorted({each.date for some in results.values() for each in some})
    seconds = [each.seconds for some in results.values() for each in some]
    done = sum(map(len, results.values()))
    parts = [
        f"# {study.name}",
        f"**The claim.** {study.study.claim}",
        f"**What would show it.** {study.study.shown}",
        f"**Verdict: {verdict.verdict}.** {verdict.sentence}",
        *pictures,
        _table(study, results) if done else "",
        f"`etude study run {study.name}{'' if size == 'cpu' else f' --size {size}'}` runs what is missing: "
        f"{done} of {len(study.every(size))} results are here"
        + (f", {sum(seconds) / len(seconds) / 60:.0f} minutes each, {dates[0]} to {dates[-1]}" if done else "")
        + ".",
    ]
    page = study.path / ("README.md" if size == "cpu" else f"README-{size}.md")
    page.write_text("\n\n".join(part for part in parts if part) + "\n")
    return page


def _table(study: StudyFolder, results: dict[str, list[ArmResult]]) -> str:
    columns = study.study.columns
    rows = ["| arm | seeds | " + " | ".join(columns) + " |", "|---|---|" + "---|" * len(columns)]
    for arm, some in results.items():
        cells = [_cell([each.values.get(name) for each in some]) for name in columns.values()]
        rows.append(f"| {arm} | {len(some)} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def _cell(values: Sequence[Any]) -> str:
    numbers = [float(value) for value in values if isinstance(value, int | float)]
    if not numbers:
        return "-"
    if len(numbers) == 1:
        return number(numbers[0])
    found = mean_interval(numbers)
    return f"{number(found.mean)} ({number(found.low)} to {number(found.high)})"
