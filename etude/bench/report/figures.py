"""Which curves a run is shown by. Each is left out when the run has no numbers for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from etude.bench.report.agent_figures import figures_of_the_agent
from etude.bench.report.charts import Bound, Line, bars, chart, number, percent
from etude.bench.report.html import Html, join, tag
from etude.bench.run_data import RunData
from etude.bench.run_results import is_number

SHARES = {  # metric -> what it says, of the share of wall time between two steps
    "learner_busy": "learner computes",
    "engine_busy": "engine computes",
    "wait_data": "learner waits for rollouts",
    "wait_learner": "rollouts wait for the learner",
}

HELD_OUT = "held_out_loss_"  # and the name of a source


def learning(data: RunData) -> Html | None:
    """The curves of reinforcement learning."""

    def line(label: str, key: str, colour: int = 1, *, raw: bool = False, peak: bool = False) -> Line:
        """A metric of each step: noisy, so averaged, unless it is `raw` or its `peak` is what matters."""
        return Line(label, data.series("rl", key), colour, smooth=not (raw or peak), peak=peak)

    evaluated = _evaluated(data)
    held_out = Line(f"on {evaluated}" if evaluated else "", data.series("rl.eval", "pass_rate"), 1, marked=True)
    written = [
        (float(row["step"]), row["sampled_tokens"] / row["rollouts"])
        for row in data.rows("rl")
        if is_number(row.get("sampled_tokens")) and is_number(row.get("rollouts")) and row["rollouts"]
    ]
    drift = [line("mean", "drift_mean"), line("99th percentile", "drift_p99", 2, peak=True)]
    drift = [replace(each, points=[(x, abs(y)) for x, y in each.points]) for each in drift]
    figures = [
        _reward(data),
        chart(
            "Pass rate",
            [line("in training", "pass_rate", 2), held_out],
            note=f"Share of rollouts that pass all tests. {_asked(data)}".strip(),
            show=percent,
            zero=True,
        ),
        chart(
            "Tokens for each rollout",
            [Line("written", written, 1, smooth=True), line("whole", "rollout_tokens", 2)],
            note="Written: all that the policy wrote, thinking and calls. Whole: prompts and tool output as well.",
            zero=True,
        ),
        chart(
            "Turns and errors",
            [line("turns a rollout", "turns"), line("tool errors a rollout", "tool_errors", 2)],
            zero=True,
        ),
        chart(
            "Staleness",
            [line("mean", "staleness_mean"), line("max", "staleness_max", 2, peak=True)],
            note="Optimiser steps between the weights that sampled a token and those that learn from it.",
            zero=True,
        ),
        _numerics(data),
        chart(
            "Drift",
            drift,
            note="How far the log-probability of a sampled token has moved by the time it is learnt from. "
            "This is training at work, and the importance weights answer it.",
            log=True,
        ),
        chart(
            "Groups without a lesson",
            [line("groups", "groups", raw=True), line("of these, all rewards equal", "zero_variance", 2)],
            note="Where all rollouts of a task earn the same there is nothing to learn, and no forward is spent.",
            zero=True,
        ),
        chart("Gradient norm", [line("", "grad_norm")], zero=True),
        *figures_of_the_agent(data),
    ]
    return _grid(figures)


def _evaluated(data: RunData) -> str:
    """What the evaluations during training were on: not the benchmark's tasks, and fewer."""
    rows = [row for row in data.rows("rl.eval") if is_number(row.get("tasks")) and is_number(row.get("rollouts"))]
    if not rows:
        return "evaluation tasks" if data.rows("rl.eval") else ""
    tasks, rollouts = int(rows[-1]["tasks"]), int(rows[-1]["rollouts"])
    times = max(1, round(rollouts / max(1, tasks)))
    often = "once each" if times == 1 else f"{times} times each"
    apart = ", apart from the benchmark's" if data.benchmarks else ""
    return f"{tasks} evaluation tasks ({often}{apart})"


def _asked(data: RunData) -> str:
    """Whether training tasks were new at every step, as far as the run says."""
    groups = sum(int(row["groups"]) for row in data.rows("rl") if is_number(row.get("groups")))
    distinct = data.trained_in_rl
    if not groups or not distinct:
        return ""
    if distinct >= groups:
        return "No training task came twice."
    return f"Training asked {distinct} tasks, each {groups / distinct:.1f} times on average."


def _reward(data: RunData) -> Html | None:
    parts = sorted({key for row in data.rows("rl") for key in row if key.startswith("reward_")})
    lines = [Line("reward", data.series("rl", "reward"), 1, smooth=True)]
    if len(parts) > 1 or data.series("rl", parts[0] if parts else "") != data.series("rl", "reward"):
        lines += [
            Line(part.removeprefix("reward_"), data.series("rl", part), 2 + place % 4, smooth=True)
            for place, part in enumerate(parts)
        ]
        note = "Mean over the rollouts of a step, and its parts before their weights."
    else:
        note = "Mean over the rollouts of a step. Its only part is whether the tests pass."
    return chart("Reward", lines, note=note, zero=True)


def _numerics(data: RunData) -> Html | None:
    bounds = [
        Bound(f"bound of the {name}", value, colour)
        for name, colour in (("mean", 1), ("max", 2))
        if is_number(value := data.setting("rl", f"probe_{name}")) and value > 0
    ]
    return chart(
        "Numerics: learner against engine",
        [
            Line("mean", data.series("rl", "probe_mean"), 1, peak=True),
            Line("max", data.series("rl", "probe_max"), 2, peak=True),
        ],
        note="Difference of log-probabilities on the same tokens under the same weights, at every publish. "
        "Past a bound the run stops.",
        bounds=bounds,
        log=True,
    )


def before_learning(data: RunData) -> Html | None:
    """The curves of pretraining and supervised fine-tuning."""
    figures = [
        chart(
            "Pretraining loss",
            [
                Line("train", data.series("pretrain", "loss"), 1, smooth=True),
                Line("held out", data.series("pretrain", "held_out_loss"), 2, marked=True),
                *_held_out_by_source(data),
            ],
            note="Nats a token.",
        ),
        chart(
            "Fine-tuning loss",
            [Line("train", data.series("sft", "loss"), 1, smooth=True)],
            note="Nats a token, on the demonstrator's turns only.",
        ),
    ]
    return _grid(figures)


def _held_out_by_source(data: RunData) -> list[Line]:
    """Of continued pretraining: documents of each source by themselves, what was learnt before among them."""
    names = sorted({key for row in data.rows("pretrain") for key in row if key.startswith(HELD_OUT)})
    return [
        Line(f"held out, {name.removeprefix(HELD_OUT)}", data.series("pretrain", name), 3 + place % 3, marked=True)
        for place, name in enumerate(names)
    ]


def time_spent(data: RunData) -> Html | None:
    """Seconds of each stage, and what the processes of reinforcement learning did with theirs."""
    seconds: dict[str, float] = data.results["seconds"]
    parts: list[Html | None] = []
    if seconds:
        total = sum(seconds.values())
        rows = [(name, [("", value, 1)]) for name, value in seconds.items()]
        parts += [
            tag("h3", f"Stages: {duration(total)} in all"),
            bars(rows, duration, max(seconds.values())),
        ]
    shares = {key: _weighted(data, key) for key in SHARES}
    found = {key: share for key, share in shares.items() if share is not None}
    if found:
        rows = [(SHARES[key], [("", share, 1 if key.endswith("busy") else 2)]) for key, share in found.items()]
        parts += [tag("h3", "Processes during reinforcement learning, share of wall time"), bars(rows, percent, 1.0)]
        parts.append(_processes(data))
    return join(parts) if parts else None


def _processes(data: RunData) -> Html | None:
    cores = sorted({key for row in data.rows("rl") for key in row if key.startswith("cpu_")})[:5]
    return _grid(
        [
            chart(
                "Where the time goes",
                [
                    Line(what, data.series("rl", key), place, smooth=True)
                    for place, (key, what) in enumerate(SHARES.items(), start=1)
                ],
                note="Share of the wall time since the step before.",
                show=percent,
                zero=True,
                top=1.0,
            ),
            chart(
                "Processor time",
                [
                    Line(key.removeprefix("cpu_"), data.series("rl", key), place, smooth=True)
                    for place, key in enumerate(cores, start=1)
                ],
                note="Cores that each process kept busy.",
                zero=True,
            ),
            chart("Seconds for each step", [Line("", data.series("rl", "seconds"), 1, smooth=True)], zero=True),
        ]
    )


def _weighted(data: RunData, key: str) -> float | None:
    """The mean share, each step weighing as long as it took."""
    rows = [row for row in data.rows("rl") if is_number(row.get(key))]
    weights = [row["seconds"] if is_number(row.get("seconds")) else 1.0 for row in rows]
    total = sum(weights)
    return sum(row[key] * weight for row, weight in zip(rows, weights, strict=True)) / total if total > 0 else None


def duration(seconds: float) -> str:
    """Seconds for people."""
    if seconds < 60:
        return f"{number(seconds)} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _grid(figures: Sequence[Html | None]) -> Html | None:
    drawn = [figure for figure in figures if figure is not None]
    return tag("div", drawn, class_="figures") if drawn else None
