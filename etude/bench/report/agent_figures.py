"""Curves of what an agent is told and taught beside its reward: summaries, effort, habits, behaviours, feedback.

Each is left out when the run has no numbers for it.
"""

from __future__ import annotations

from collections import defaultdict
from statistics import fmean

from etude.bench.report.charts import Line, chart, percent
from etude.bench.report.html import Html
from etude.bench.result import BenchResult
from etude.bench.run_data import RunData
from etude.bench.run_results import is_number

MOST_KINDS = 5  # of behaviour in one figure: as many as there are colours
BEHAVIOUR, EFFORT = "behaviour_", "effort_"


def figures_of_the_agent(data: RunData) -> list[Html | None]:
    """All of them, in the order of a page."""
    told = [_summaries(data), *_effort(data), _tokens_by_difficulty(data)]
    return [*told, *_habits(data), _behaviours(data), *_feedback(data)]


def _summaries(data: RunData) -> Html | None:
    return chart(
        "Summaries",
        [Line("", _counted(data, "summaries"), 1, smooth=True)],
        note="How often a rollout went on from a summary of its own, on average.",
        zero=True,
    )


def _effort(data: RunData) -> list[Html | None]:
    """Tokens and pass rate by the level that the prompt stated."""
    asked = data.setting("harness", "effort")
    levels = [level for level in asked if isinstance(level, str)] if isinstance(asked, dict) else []
    places = list(enumerate(levels[:MOST_KINDS], start=1))
    tokens = [Line(level, data.series("rl", f"{EFFORT}{level}_tokens"), at, smooth=True) for at, level in places]
    passed = [Line(level, data.series("rl", f"{EFFORT}{level}_pass_rate"), at, smooth=True) for at, level in places]
    return [
        chart("Tokens by stated effort", tokens, note="Written in a rollout that was told this level.", zero=True),
        chart("Pass rate by stated effort", passed, show=percent, zero=True),
    ]


def _tokens_by_difficulty(data: RunData) -> Html | None:
    """Of the benchmarks: easy tasks should take less, also after training."""
    pairs = [("before RL", data.before), ("after RL", data.after)]
    lines = [
        Line(name, _by_level(result), colour, marked=True)
        for colour, (name, result) in enumerate(pairs, start=1)
        if result is not None
    ]
    if max((len(line.points) for line in lines), default=0) < 2:
        return None
    note = "Written in a rollout of the benchmark, by the task's own level; failed rollouts count too."
    return chart("Tokens by difficulty", lines, note=note, zero=True, x_label="level of the task")


def _by_level(result: BenchResult) -> list[tuple[float, float]]:
    found: dict[int, list[int]] = defaultdict(list)
    for row in result.rows():
        found[row.level] += [tokens for tokens in row.tokens if tokens is not None]
    return [(float(level), fmean(tokens)) for level, tokens in sorted(found.items()) if tokens]


def _habits(data: RunData) -> list[Html | None]:
    """What moves when a policy learns something that nobody wanted, even where every single rollout looks clean."""
    return [
        chart(
            "Calls made together",
            [Line("", data.series("rl", "parallel_calls"), 1, smooth=True)],
            show=percent,
            note="Share of a rollout's calling turns that made more than one call.",
            zero=True,
        ),
        chart(
            "Mix of tools",
            [Line("", data.series("rl", "tool_mix"), 1, smooth=True)],
            note="Entropy of the calls over the tools, in bits: 0 is one tool alone, such as the terminal.",
            zero=True,
        ),
        chart(
            "Rollouts that changed files",
            [Line("", data.series("rl", "edit_rate"), 1, smooth=True)],
            show=percent,
            note="One that falls means questions or excuses in the place of work.",
            zero=True,
        ),
    ]


def _behaviours(data: RunData) -> Html | None:
    kinds = {key for row in data.rows("rl") for key, value in row.items() if key.startswith(BEHAVIOUR) and value}
    rates = {kind: _counted(data, kind) for kind in sorted(kinds)}
    often = sorted(rates, key=lambda kind: -sum(rate for _, rate in rates[kind]))
    left = len(often) - MOST_KINDS
    return chart(
        "Behaviours",
        [
            Line(kind.removeprefix(BEHAVIOUR).replace("_", " "), rates[kind], place, smooth=True)
            for place, kind in enumerate(often[:MOST_KINDS], start=1)
        ],
        note="Times in a rollout, on average." + (f" {left} rarer kinds are not drawn." if left > 0 else ""),
        zero=True,
    )


def _feedback(data: RunData) -> list[Html | None]:
    return [
        chart(
            "Feedback: how far a hint moves the model",
            [Line("", data.series("rl", "twin_kl"), 1, smooth=True)],
            note="Divergence of a token with the hint from the same token without it, in nats, before any bound.",
            zero=True,
        ),
        chart(
            "Feedback: hinted turns",
            [
                Line("taught from", data.series("rl", "twins"), 1, smooth=True),
                Line("left out by the filter", data.series("rl", "twins_filtered"), 2, smooth=True),
            ],
            note="The filter leaves out hints that make the turn no less likely.",
            zero=True,
        ),
    ]


def _counted(data: RunData, key: str) -> list[tuple[float, float]]:
    """A rate whose row is written only where something happened: all other steps are zero, and drawn as such."""
    if not data.series("rl", key):
        return []
    steps = {float(row["step"]): 0.0 for row in data.rows("rl") if is_number(row.get("step")) and "rollouts" in row}
    return sorted((steps | dict(data.series("rl", key))).items())
