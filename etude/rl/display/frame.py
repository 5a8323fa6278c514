"""The dashboard as lines of text: from the rows of metrics.jsonl and a snapshot to what fits a terminal.

A pure function of its arguments. Each line has a rank: where the terminal has too few lines, the highest ranks are
left out. On a wide terminal what is learnt stands on the left and how it runs on the right; on a narrow one below it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from etude.core.progress import clock_time, filled_bar, short
from etude.rl.display.snapshot import Snapshot

WIDE = 150  # columns from which on two halves stand side by side
LABEL, VALUE = 12, 9  # columns of a line's name and of its value
SPARKS = "▁▂▃▄▅▆▇█"
LONGEST_SPARK = 48  # steps: more are a blur
PARTS = 6  # parts of the reward that are shown; a recipe rarely has more
SAID = 4  # newest messages

Row = Mapping[str, float]


@dataclass(frozen=True)
class Head:
    """Where the run is."""

    title: str
    step: int
    steps: int
    share: float | None
    spent: float
    left: float | None


@dataclass(frozen=True)
class Line:
    rank: int  # the higher, the sooner it is left out
    text: Text


def draw(head: Head, rows: Sequence[Row], now: Snapshot, said: Sequence[str], columns: int, lines: int) -> Text:
    """The frame: at most `lines` lines of at most `columns` columns."""
    top = [_title(head, now, columns)]
    half = (columns - 2) // 2 if columns >= WIDE else columns
    left, right = learnt_lines(rows, now, half), running_lines(rows, now, half)
    below = [Text(each) for each in list(said)[-SAID:]]
    room = lines - len(top) - len(below)
    if columns >= WIDE:
        body = _beside(_best(left, room), _best(right, room), half)
    else:
        body = [line.text for line in _best([*left, *right], room)]
    shown = [*top, *body, *below][:lines]
    for text in shown:
        text.truncate(columns, overflow="ellipsis")
    return Text("\n").join(shown)


def learnt_lines(rows: Sequence[Row], now: Snapshot, columns: int) -> list[Line]:
    """What the policy is like: reward and its parts, pass rates, lengths, entropy."""
    if not rows:
        return [Line(0, Text("waiting for the first step", "dim"))]
    newest = rows[-1]
    found = [_curve(0, "reward", "reward", rows, columns)]
    parts = [name for name in newest if name.startswith("reward_")]
    found += [_curve(6, f"  {name.removeprefix('reward_')}", name, rows, columns) for name in parts[:PARTS]]
    found.append(_curve(1, "passed", "pass_rate", rows, columns, percent))
    if now.evaluations:
        (first, before), (last, after) = now.evaluations[0], now.evaluations[-1]
        late = f", {percent(after)} at step {last}" if last != first else ""
        found.append(_line(3, "held out", percent(after), f"{percent(before)} at step {first}{late}"))
    if "sampled_tokens_p50" in newest:
        found.append(
            _line(
                4,
                "length",
                short(newest["sampled_tokens_p50"]),
                f"tokens written: p50; p90 {short(newest['sampled_tokens_p90'])}, "
                f"most {short(newest['sampled_tokens_max'])}; turns {short(newest['turns'])}",
            )
        )
    found.append(_curve(4, "entropy", "entropy", rows, columns))
    return [line for line in found if line.text]


def running_lines(rows: Sequence[Row], now: Snapshot, columns: int) -> list[Line]:
    """How it runs: age of tokens, agreement of engine and learner, rollouts, speed of both sides."""
    found = []
    newest = rows[-1] if rows else {}
    if "staleness_mean" in newest:
        room = columns - LABEL - VALUE - 2
        found.append(_line(2, "staleness", short(newest["staleness_mean"]), histogram(newest, room)))
    # A step whose groups teach nothing computes no gradient, so it has no mismatch of its own.
    taught = next((row for row in reversed(rows) if "drift_p99" in row), {})
    if taught:
        exact = f"; same weights p99 {_small(taught['probe_p99'])}" if "probe_p99" in taught else ""
        detail = f"p99; p50 {_small(taught.get('drift_p50', 0.0))}{exact}"
        found.append(_line(3, "mismatch", _small(taught["drift_p99"]), detail))
    states = [(name, now.states.get(name, 0)) for name in ("running", "grading", "queued", "ready")]
    counts = ", ".join(f"{count} {name}" for name, count in states)
    found.append(_line(2, "rollouts", f"{now.in_flight}/{now.places}", counts))
    lost = sum(count for cause, count in now.voids.items() if cause != "group")
    if "cpu_sandboxes" in newest or lost:
        cores = f"{newest.get('cpu_sandboxes', 0.0):.1f} cores"
        alive = now.states.get("running", 0) + now.states.get("grading", 0)
        found.append(
            _line(5, "sandboxes", str(alive), f"{cores}; {lost} rollouts void, {now.voids.get('group', 0)} groups")
        )
    if newest.get("seconds"):
        seconds = newest["seconds"]
        found.append(
            _line(
                2,
                "sampler",
                short(newest["sampled_tokens"] / seconds),
                f"tokens/s; busy {percent(newest['engine_busy'])}, waits {percent(newest.get('wait_learner', 0.0))}",
            )
        )
        found.append(
            _line(
                2,
                "learner",
                short(newest.get("forward_tokens", 0) / seconds),
                f"tokens/s; busy {percent(newest['learner_busy'])}, waits {percent(newest.get('wait_data', 0.0))}",
            )
        )
        found.append(
            _line(
                5,
                "gradient",
                short(newest.get("grad_norm", 0.0)),
                f"norm; lr {short(newest.get('lr', 0.0))}; {short(newest['zero_variance'])} of "
                f"{short(newest['groups'])} groups of equal reward",
            )
        )
    return found


def histogram(row: Row, columns: int) -> str:
    """The share of tokens of each age in steps, as `0 ████ 60%  1 ██ 40%`."""
    shares = {int(name.rpartition("_")[2]): v for name, v in row.items() if name.startswith("staleness_share_")}
    if not shares:
        return "steps"
    words = [(str(age), f"{100 * share:.0f}%", share) for age, share in sorted(shares.items())]
    bare = sum(len(age) + len(share) + 4 for age, share, _ in words)
    room = max(0, columns - bare)
    drawn = [(age, "█" * round(room * part), share) for age, share, part in words]
    return "  ".join(" ".join(each for each in column if each) for column in drawn)


def spark(values: Sequence[float], columns: int) -> str:
    """The newest values as blocks of eight heights, from the least to the most of them."""
    known = [value for value in values if math.isfinite(value)][-columns:] if columns > 0 else []
    if len(known) < 2:
        return ""
    least, most = min(known), max(known)
    span = most - least
    return "".join(SPARKS[round((value - least) / span * (len(SPARKS) - 1))] if span else SPARKS[0] for value in known)


def percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def _title(head: Head, now: Snapshot, columns: int) -> Text:
    done = f"step {head.step} of {head.steps}"
    times = [f"{clock_time(head.spent)} spent", *([f"{clock_time(head.left)} left"] if head.left is not None else [])]
    words = [done, *times, *(["stopping after this step"] if now.stopping else [])]
    text = Text(head.title, "bold")
    room = columns - cell_len(head.title) - sum(len(word) + 2 for word in words) - 2
    if head.share is not None and room >= 8:
        text.append("  " + filled_bar(head.share, min(40, room), "utf-8"), "cyan")
    for word in words:
        text.append("  " + word, "yellow" if word.startswith("stopping") else "")
    return text


def _curve(
    rank: int, label: str, key: str, rows: Sequence[Row], columns: int, write: Callable[[float], str] = short
) -> Line:
    """A value, and how it went over the newest steps."""
    values = [row[key] for row in rows if isinstance(row.get(key), int | float)]
    if not values:
        return Line(rank, Text())
    drawn = spark(values, min(LONGEST_SPARK, columns - LABEL - VALUE - 18))
    kept = values[-LONGEST_SPARK:]
    least, most = write(min(kept)), write(max(kept))
    if least == most:  # what its figures do not show is noise, which would be drawn as if it were a change
        drawn = SPARKS[0] * len(drawn)
    return _line(rank, label, write(values[-1]), drawn, f"  {least} to {most}" if drawn else "")


def _line(rank: int, label: str, value: str, curve: str = "", rest: str = "") -> Line:
    text = Text(f"{label:<{LABEL}} ", "dim")
    text.append(f"{value:>{VALUE - max(0, len(label) - LABEL)}}", "bold not dim")  # a longer name takes its room
    text.append("  ")
    text.append(curve, "cyan not dim" if curve[:1] in SPARKS and curve else "not dim")
    text.append(rest, "dim")
    return Line(rank, text)


def _best(lines: Sequence[Line], room: int) -> list[Line]:
    """As many as there is room for, in their order; those of the highest rank go first, the last of them first."""
    kept = list(lines)
    while len(kept) > max(0, room):
        worst = max(range(len(kept)), key=lambda at: (kept[at].rank, at))
        kept.pop(worst)
    return kept


def _beside(left: Sequence[Line], right: Sequence[Line], half: int) -> list[Text]:
    found = []
    for at in range(max(len(left), len(right))):
        line = left[at].text.copy() if at < len(left) else Text()
        line.truncate(half, overflow="ellipsis", pad=True)
        line.append("  ")
        if at < len(right):
            line.append_text(right[at].text)
        found.append(line)
    return found


def _small(value: float) -> str:
    """A difference of log-probabilities: 0.031, 4.2e-07."""
    return short(value) if value == 0 or abs(value) >= 1e-3 else f"{value:.1e}"
