"""The report as Markdown, for a pull request, a chat or a terminal: the sentence, the table, the tasks, the machine."""

from __future__ import annotations

from collections.abc import Sequence

from etude.bench.report.charts import percent
from etude.bench.report.figures import duration
from etude.bench.report.tables import UNSEEN, capital, label, machine_facts, points
from etude.bench.report.training_rollouts import task_rates, verdicts
from etude.bench.result import SETS, Counts, TaskSet
from etude.bench.run_data import RunData
from etude.bench.run_results import BEFORE, gain
from etude.bench.trained_on import warning
from etude.rollout.view import printable

HARDEST = 10  # training tasks that are named


def markdown(data: RunData, lead: Sequence[str]) -> str:
    """The whole page; `lead` are the sentences that the HTML report begins with."""
    parts = [f"# {_cell(data.name)}", *(_text(sentence) for sentence in lead)]
    for which in SETS:
        parts += _comparison(data, which)
    parts += _training(data)
    if seconds := data.results["seconds"]:
        stages = ", ".join(f"{name} {duration(value)}" for name, value in seconds.items())
        parts += ["## Time", f"{duration(sum(seconds.values()))} in all: {stages}."]
    facts = [(name, str(value)) for name, value in machine_facts(data) if value not in (None, "")]
    parts += ["## Machine", table(["fact", "value"], facts)]
    parts += [f"Written by etude on {data.written}. Intervals are at 95%; gains are in points, task by task."]
    return "\n\n".join(parts) + "\n"


def _comparison(data: RunData, which: TaskSet) -> list[str]:
    results = {name: result for name, result in data.benchmarks.items() if result.rows(which)}
    if not results:
        return []
    largest = max(results.values(), key=lambda result: len(result.rows(which)))
    tasks, trained = len(largest.rows(which)), data.trained_on(largest, which)
    title = UNSEEN if which == "unseen" and not trained else capital(data.called(largest, which))
    ks = sorted({k for result in results.values() for k in result.ks} - {1})
    body = []
    for name, result in results.items():
        first, counts = result.pass_at(1, which), result.counts.get(which, Counts())
        level = f"{100 * first.mean:.1f}% ({100 * first.low:.1f} to {100 * first.high:.1f})" if first else "-"
        better = gain(data.before, result, 1, which) if name != BEFORE else None
        cells = [percent(found.mean) if (found := result.pass_at(k, which)) else "-" for k in ks]
        body.append(
            (
                *(label(name), level, *cells),
                f"{points(better[0])} ({points(better[1])} to {points(better[2])})" if better else "-",
                *(f"{result.tokens(which):.1f}", percent(counts.format_errors)),
            )
        )
    head = ["checkpoint", "pass@1", *(f"pass@{k}" for k in ks), "paired gain", "tokens", "format errors"]
    said = warning(tasks, trained)
    heading = f"## {title}: {tasks} tasks, {largest.samples} rollouts each"
    return [heading, *([said] if said else []), table(head, body)]


def _training(data: RunData) -> list[str]:
    parts = []
    if rates := task_rates(data):
        never = sum(rate.passed == 0 for rate in rates)
        rows = [(rate.task, f"{rate.passed} of {rate.rollouts}") for rate in rates[:HARDEST]]
        parts += ["## Training tasks", f"{len(rates)} tasks, {never} never passed; the hardest:"]
        parts += [table(["task", "passed"], rows)]
    if found := verdicts(data):
        parts += ["Audit: " + ", ".join(f"{number} {name}" for name, number in found.items()) + "."]
    return parts


def table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(_cell(cell) for cell in cells) + " |" for cells in (head, *body)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def _cell(text: str) -> str:
    """One cell, whatever a file or a model wrote into it."""
    return _text(text).replace("|", "\\|")


def _text(text: str) -> str:
    flat = " ".join(printable(str(text)).split())
    return flat.replace("<", "&lt;").replace("[", "\\[").replace("`", "'")
