"""The figures in rows: checkpoints before and after, families, tools, and how rollouts ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from etude.bench.report.charts import number, percent, whisker
from etude.bench.report.html import Child, Html, join, tag
from etude.bench.result import SETS, BenchResult, Counts, TaskRow, TaskSet
from etude.bench.run_data import RunData
from etude.bench.run_results import AFTER, BEFORE, gain, is_number
from etude.bench.stats import Interval, mean_pass_at
from etude.bench.trained_on import warning
from etude.core.run_files import resumes

LABELS = {BEFORE: "before RL", AFTER: "after RL"}
STOPS = {  # why a rollout ended, in words
    "finish": "the agent said that it was done",
    "final": "a turn without a call",
    "turns": "the limit of turns",
    "tokens": "the limit of sampled tokens",
    "context": "the limit of the whole sequence",
    "time": "the limit of time",
    "malformed": "turns that could not be read",
}
UNSEEN = "Families never trained on"


def label(name: str) -> str:
    return f"{name} ({LABELS[name]})" if name in LABELS else name


def times(number: int) -> str:
    return "never" if not number else "once" if number == 1 else f"{number} times"


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def colour(name: str) -> int:
    return {BEFORE: 2, AFTER: 1}.get(name, 3)


def points(value: float) -> str:
    """A difference of shares in points, with its sign."""
    return f"{100 * value:+.1f}"


def table(head: Sequence[Child], body: Sequence[Html], caption: str = "") -> Html:
    return tag(
        "div",
        tag(
            "table",
            tag("caption", caption) if caption else None,
            tag("thead", tag("tr", [tag("th", cell, scope="col") for cell in head])),
            tag("tbody", body),
        ),
        class_="wide",
        tabindex="0",
    )


def row(name: Child, *cells: Child) -> Html:
    return tag("tr", tag("th", name, scope="row"), [tag("td", cell) for cell in cells])


def comparison(data: RunData) -> Html | None:
    """Every checkpoint that was benchmarked, with the paired gain over the one before RL."""
    if not data.benchmarks:
        return None
    ks = sorted({k for result in data.benchmarks.values() for k in result.ks} - {1})
    head: list[Child] = ["checkpoint", "pass@1", *(f"pass@{k}" for k in ks), "paired gain"]
    head += [f"gain, best of {k}" for k in ks]
    head += ["tokens", "turns", "format errors", "tool errors"]
    sets = [which for which in SETS if any(result.rows(which) for result in data.benchmarks.values())]
    return join(_comparison(data, which, head, ks) for which in sets)


def _comparison(data: RunData, which: TaskSet, head: list[Child], ks: list[int]) -> Html:
    results = {name: result for name, result in data.benchmarks.items() if result.rows(which)}
    gains = {name: gain(data.before, result, 1, which) for name, result in results.items() if name != BEFORE}
    # At least five points to each side, or a tiny gain would look large.
    reach = max([0.05, *(abs(edge) for found in gains.values() if found for edge in found)])
    body = []
    for name, result in results.items():
        counts = result.counts.get(which, Counts())
        body.append(
            row(
                label(name),
                _level(result.pass_at(1, which), colour(name)),
                *(percent(found.mean) if (found := result.pass_at(k, which)) else "-" for k in ks),
                _gain(gains.get(name), colour(name), reach),
                *(_gain(gain(data.before, result, k, which) if name != BEFORE else None) for k in ks),
                f"{result.tokens(which):.1f}",
                f"{counts.turns_a_rollout:.1f}",
                percent(counts.format_errors),
                f"{sum(counts.tool_errors.values()) / counts.rollouts:.2f}" if counts.rollouts else "-",
            )
        )
    tasks = max(len(result.rows(which)) for result in results.values())
    samples = max(result.samples for result in results.values())
    largest = max(results.values(), key=lambda result: len(result.rows(which)))
    trained = data.trained_on(largest, which)
    title = UNSEEN if which == "unseen" and not trained else capital(data.called(largest, which))
    said = warning(tasks, trained)
    note = tag("p", said, class_="warning") if said else None
    return join(tag("h3", f"{title}: {tasks} tasks, {samples} rollouts each"), note, table(head, body))


def _level(found: Interval | None, shade: int) -> Child:
    if found is None:
        return "-"
    bounds = tag("span", f"{100 * found.low:.1f} to {100 * found.high:.1f}", class_="bounds")
    return join(tag("b", f"{100 * found.mean:.1f}%"), bounds, whisker(*found, shade))


def _gain(found: Sequence[float] | None, shade: int = 0, reach: float = 0.0) -> Child:
    if found is None:
        return tag("span", "-", class_="bounds")
    mean, low, high = found
    bounds = tag("span", f"{points(low)} to {points(high)}", class_="bounds")
    return join(tag("b", points(mean)), " ", bounds, whisker(mean, low, high, shade, -reach, reach) if shade else None)


def families(data: RunData) -> Html | None:
    """pass@1 of each family, in each benchmark."""
    names = {name: result for name, result in data.benchmarks.items() if result.tasks}
    found: dict[tuple[str, str], dict[str, list[TaskRow]]] = {}
    for name, result in names.items():
        for task in result.tasks:
            found.setdefault((task.set, task.family or "-"), {}).setdefault(name, []).append(task)
    if not found:
        return None
    before, after = data.before, data.after
    head = ["family", "level", "tasks", *(label(name) for name in names), *(["gain"] if before and after else [])]
    body = []
    for (which, family), groups in sorted(found.items()):
        rates = {name: mean_pass_at(1, [task.tally for task in tasks]) for name, tasks in groups.items()}
        some = next(iter(groups.values()))
        was, now = rates.get(BEFORE), rates.get(AFTER)
        change = [points(now.mean - was.mean) if was and now else "-"] if before and after else []
        levels = sorted({task.level for task in some})
        body.append(
            row(
                join(family, " ", tag("span", "unseen", class_="chip") if which == "unseen" else None),
                ", ".join(map(str, levels)),
                len(some),
                *(percent(rate.mean) if (rate := rates.get(name)) else "-" for name in names),
                *change,
            )
        )
    return table(head, body, "A family has few tasks, so single rows say little.")


def endings(data: RunData) -> Html | None:
    """How rollouts ended and which errors tools gave, for each benchmark."""
    shown = {name: result for name, result in data.benchmarks.items() if result.counts}
    if not shown:
        return None
    every = {name: _together(result) for name, result in shown.items()}
    stops = sorted({stop for stop_counts, _, _ in every.values() for stop in stop_counts})
    errors = sorted({error for _, error_counts, _ in every.values() for error in error_counts})
    body = [
        row(
            f"stopped by {stop or 'failure'}" + (f": {STOPS[stop]}" if stop in STOPS else ""),
            *(percent(counts[stop] / max(1, size)) for counts, _, size in every.values()),
        )
        for stop in stops
    ]
    body += [
        row(f"{error}, a rollout", *(number(c[error] / max(1, size)) for _, c, size in every.values()))
        for error in errors
    ]
    body.append(row("void or tried again", *(result.void + result.retried for result in shown.values())))
    return table(["", *(label(name) for name in shown)], body, "How rollouts ended, and the errors that tools gave.")


def _together(result: BenchResult) -> tuple[Counter[str], Counter[str], int]:
    stops: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    for counts in result.counts.values():
        stops.update(counts.stops)
        errors.update(counts.tool_errors)
    return stops, errors, sum(counts.rollouts for counts in result.counts.values())


def machine(data: RunData) -> Html:
    rows = machine_facts(data)
    return table(["fact", "value"], [row(name, str(value)) for name, value in rows if value not in (None, "")])


def machine_facts(data: RunData) -> list[tuple[str, Any]]:
    """What the numbers depend on, and what a careful reader asks about them."""
    facts, results, stages = data.machine, data.results, data.facts.get("stages", {})
    versions = facts.get("versions")
    packages = sorted(versions.items()) if isinstance(versions, dict) else []
    rows: list[tuple[str, Any]] = [
        ("system", facts.get("system")),
        ("cores", facts.get("cores")),
        ("versions", ", ".join(f"{name} {version}" for name, version in [("python", facts.get("python")), *packages])),
        ("sandboxes", ", ".join(sorted({result.backend for result in data.benchmarks.values() if result.backend}))),
        ("command", " ".join(map(str, facts.get("command", ())))),
        ("seed", results["seed"]),
        ("stages not finished", ", ".join(name for name, entry in stages.items() if "finished" not in entry)),
        ("resumed", times(resumes(data.facts))),
        ("rollouts spoiled (sandbox, grader or engine failed)", results["void"]),
    ]
    for name in ("mean", "max"):
        if (worst := results["numerics"][name]) is not None:
            bound = data.setting("rl", f"probe_{name}")
            limit = f"; the run stops at {number(bound)}" if is_number(bound) else ""
            rows.append((f"numerics, worst {name} of all publishes", f"{number(worst)}{limit}"))
    return rows
