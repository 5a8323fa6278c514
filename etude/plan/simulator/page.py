"""Forecasts as rows of a table, as plain data, and as a page of Markdown with a figure."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from etude.plan.simulator.forecast import Question, Size
from etude.plan.simulator.service_times import ServiceTimes

HEADERS = (
    "sandboxes",
    "engines",
    "learner ranks",
    "rollouts/s",
    "tokens/s",
    "step",
    "staleness",
    "p95",
    "waste",
    "learner busy",
    "engines busy",
)
WIDE = 40  # characters of a bar


def data(question: Question, times: ServiceTimes, sizes: Sequence[Size]) -> dict[str, Any]:
    known = {name: value for name, value in times.data().items() if name not in ("groups", "format")}
    return {
        "ok": True,
        "measured": known | {"groups": len(times.groups), "rollout_tokens": times.rollout_tokens},
        "faults": asdict(question.faults),
        "sizes": [size.data() for size in sizes],
    }


def row(size: Size) -> tuple[str, ...]:
    found = size.found
    return (
        f"{size.sandboxes:,}",
        f"{size.engines:,}",
        f"{size.ranks:,}",
        f"{found.rollouts_per_second:,.3g}",
        f"{found.tokens_per_second:,.0f}",
        f"{found.step_seconds:.3g} s",
        f"{found.staleness_mean:.2f}",
        f"{found.staleness_p95:.0f}",
        f"{found.waste:.1%}",
        f"{found.learner_busy:.0%}",
        f"{found.engine_busy:.0%}",
    )


def command(question: Question) -> str:
    """The command that asks this."""
    words = ["etude", "plan", question.recipe, "--simulate", str(question.measured)]
    if question.sandboxes:
        words += ["--sandboxes", ",".join(map(str, question.sandboxes))]
    words += [
        word
        for name, value in asdict(question.faults).items()
        if value != type(question.faults)().__dict__[name]
        for word in ("--fault", f"{name}={value:g}")
    ]
    return shlex.join([*words, *question.overrides])


def markdown(question: Question, times: ServiceTimes, plain: Sequence[Size], faulty: Sequence[Size]) -> str:
    lines = [
        f"# {question.recipe}: rollouts against sandboxes",
        "",
        "Simulated: nothing on this page was run at these sizes. How, and what it was held against, is in",
        "[plan](plan.md). This command writes the page:",
        "",
        "```sh",
        command(question),
        "```",
        "",
        f"Service times are of {times.measured or 'a run'}; a rollout samples {times.rollout_tokens:.0f} tokens on "
        "average. Engines, workers, learner ranks, cores and the groups of a step grow with the sandboxes.",
        "",
        *_table(plain),
        "",
    ]
    if faulty:
        rates = ", ".join(f"{name} {value:g}" for name, value in asdict(question.faults).items() if value)
        lines += [f"With failures and stragglers ({rates}; rates are of one, for an hour):", "", *_table(faulty), ""]
    lines += ["```text", *figure("rollouts/s (logarithmic)", plain, faulty, _rate, logarithmic=True), ""]
    lines += [*figure("mean staleness", plain, faulty, _staleness), "```"]
    return "\n".join(lines) + "\n"


def _rate(size: Size) -> float:
    return size.found.rollouts_per_second


def _staleness(size: Size) -> float:
    return size.found.staleness_mean


def _table(sizes: Sequence[Size]) -> list[str]:
    return [
        "| " + " | ".join(HEADERS) + " |",
        "|" + "---|" * len(HEADERS),
        *("| " + " | ".join(row(size)) + " |" for size in sizes),
    ]


def figure(
    title: str,
    plain: Sequence[Size],
    faulty: Sequence[Size],
    value: Callable[[Size], float],
    *,
    logarithmic: bool = False,
) -> list[str]:
    """A bar for each size, and one below it with failures."""
    values = [value(size) for size in (*plain, *faulty)]
    least = min(filter(None, values), default=1.0) / 2
    most = max(values, default=1.0)

    def bar(number: float) -> str:
        if logarithmic:
            share = math.log(max(number, least) / least) / max(math.log(most / least), 1e-9)
        else:
            share = number / max(most, 1e-9)
        return "#" * round(WIDE * share)

    lines = [title]
    for place, size in enumerate(plain):
        lines.append(f"{size.sandboxes:>9,}  {bar(value(size)):<{WIDE}}  {value(size):,.3g}")
        if place < len(faulty):
            lines.append(f"{'failures':>9}  {bar(value(faulty[place])):<{WIDE}}  {value(faulty[place]):,.3g}")
    return lines
