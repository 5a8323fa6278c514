"""The report of a run: sections in order, each left out when there is nothing for it, in one HTML file.

Reads the run, writes `report.html` and `report.md` into it, changes nothing else.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from etude.bench.report import figures, tables, training_rollouts, trajectories
from etude.bench.report.charts import percent
from etude.bench.report.html import Html, join, tag
from etude.bench.report.markdown import markdown
from etude.bench.report.tables import points
from etude.bench.run_data import RunData, read_run
from etude.core import durable

REPORT, MARKDOWN = "report.html", "report.md"
# Whatever a text might smuggle in, a browser neither runs nor loads it.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def write_report(run_path: Path) -> Path:
    """Writes the report of the run at `run_path`, as far as it has come, and returns its path."""
    path, data = run_path / REPORT, read_run(run_path)
    durable.write_whole(path, page(data))
    durable.write_whole(run_path / MARKDOWN, markdown(data, sentences(data)))
    return path


def page(data: RunData) -> str:
    sections = [
        _section("result", "Before and after", _result(data)),
        _section("learning", "Reinforcement learning", figures.learning(data), FAINT),
        _section("trajectories", "Three rollouts to read", trajectories.section(data)),
        _section("rollouts", "What the agent did in training", training_rollouts.section(data)),
        _section("time", "Where the time went", figures.time_spent(data)),
        _section("before", "Before reinforcement learning", figures.before_learning(data)),
        _section("endings", "How rollouts ended", tables.endings(data)),
        _section("machine", "Machine and recipe", join(tables.machine(data), _recipe(data))),
    ]
    body = join(
        tag("header", tag("p", "Etude run", class_="kicker"), tag("h1", data.name), _lead(data), _tiles(data)),
        [tag("p", note, class_="warning") for note in data.notes],
        sections,
        tag("footer", tag("p", f"Written by etude on {data.written}. Intervals are at 95%.")),
    )
    return document(f"{data.name}: Etude report", body)


def document(title: str, body: Html) -> str:
    """A whole page that loads nothing."""
    head = join(
        Html('<meta charset="utf-8">'),
        Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
        Html('<meta name="color-scheme" content="light dark">'),
        tag("title", title),
        tag("style", Html(_style())),
    )
    whole = tag("html", tag("head", head), tag("body", tag("main", body)), lang="en")
    return f"<!DOCTYPE html>\n{whole}\n"


HOW_SURE = (
    "pass@k is the chance that at least one of k rollouts passes all tests, without bias. Rollouts of one task "
    "resemble each other, so intervals treat the task as the unit. The paired gain compares the same tasks with the "
    "same seeds, task by task, in points. Tokens, turns and tool errors are for each rollout; a format error is a turn "
    "that cannot be read, as a share of all turns."
)
FAINT = "Faint lines are single steps, strong ones their moving average. Beside each name stands where its line ends."


def _section(name: str, title: str, content: Html | None, note: str = "") -> Html | None:
    if not content:
        return None
    return tag("section", tag("h2", title), content, tag("p", note, class_="note") if note else None, id=name)


def _result(data: RunData) -> Html | None:
    found = tables.comparison(data)
    note = tag("p", HOW_SURE, class_="note")
    return join(found, note, _folded("pass@1 of each family", tables.families(data))) if found else None


def _folded(what: str, content: Html | None) -> Html | None:
    return tag("details", tag("summary", what), content) if content else None


def _lead(data: RunData) -> Html:
    about = data.setting("about")
    lines = [tag("p", str(about), class_="about")] if about else []
    return join(lines, [tag("p", sentence, class_="lead") for sentence in sentences(data)])


def sentences(data: RunData) -> list[str]:
    """What the run gave, for somebody who reads no further."""
    before, after = data.results["sft"], data.results["rl"]
    if before and after and data.results["paired_gain"]:
        mean, low, high = data.results["paired_gain"]
        moved = "raised" if low > 0 else "lowered" if high < 0 else "did not clearly change"
        was, now = before["pass@1"][0], after["pass@1"][0]
        figures_ = f"from {100 * was:.1f}% to {100 * now:.1f}%" if low > 0 or high < 0 else f"at {100 * now:.1f}%"
        on = f"{len(data.after.rows())} {data.called(data.after)}" if data.after else ""
        gain = f"{points(mean)} points ({points(low)} to {points(high)})"
        return [f"Reinforcement learning {moved} pass@1 {figures_}: {gain}, on {on}."]
    if before and before["pass@1"]:
        level = f"Before reinforcement learning pass@1 is {100 * before['pass@1'][0]:.1f}%."
        return [f"{level} There is no benchmark after reinforcement learning yet."]
    found = [
        f"{name}: pass@1 is {100 * rate.mean:.1f}% on {len(result.rows())} {data.called(result)}."
        for name, result in data.benchmarks.items()
        if (rate := result.pass_at(1)) is not None
    ]
    return found or ["There is no benchmark of this run yet."]


def _tiles(data: RunData) -> Html | None:
    found: list[tuple[str, str, str]] = []
    for name, title in (("sft", "before RL"), ("rl", "after RL")):
        figures_ = data.results[name]
        if figures_ and figures_["pass@1"]:
            mean, low, high = figures_["pass@1"]
            found.append((f"pass@1 {title}", f"{100 * mean:.1f}%", f"{100 * low:.1f} to {100 * high:.1f}"))
    if data.results["paired_gain"]:
        mean, low, high = data.results["paired_gain"]
        found.append(("paired gain", f"{points(mean)} points", f"{points(low)} to {points(high)}"))
    if data.results["rl"]:
        found.append(("format errors", percent(data.results["rl"]["format_errors"]), "of all turns, after RL"))
    if data.results["seconds"]:
        total = figures.duration(sum(data.results["seconds"].values()))
        found.append(("time", total, f"{data.machine.get('cores', '?')} cores, all stages"))

    def tile(name: str, value: str, more: str) -> Html:
        return tag("div", tag("dt", name), tag("dd", tag("b", value), tag("span", more, class_="bounds")))

    return tag("dl", [tile(*each) for each in found], class_="tiles") if found else None


def _recipe(data: RunData) -> Html | None:
    return _folded("the resolved recipe", tag("pre", data.recipe_text)) if data.recipe else None


def _style() -> str:
    return (resources.files("etude.bench.report") / "style.css").read_text()
