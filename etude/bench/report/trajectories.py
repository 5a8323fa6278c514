"""Three rollouts to read: one that RL fixed, one that still fails, one more; and how a rollout is written down."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from etude.bench.report.html import Child, Html, join, tag
from etude.bench.report.tables import label
from etude.bench.result import Shown, TaskRow, Turn
from etude.bench.run_data import RunData
from etude.bench.run_results import BEFORE

MOST_LINES = 30  # of one text


@dataclass(frozen=True)
class Pick:
    """A task worth reading, and its first rollout in one or two benchmarks."""

    title: str
    task: TaskRow
    rollouts: list[tuple[str, Shown]]  # benchmark, rollout


def pick(data: RunData) -> list[Pick]:
    """At most three, each of another family where that can be."""
    newest = data.after or data.before or next(iter(data.benchmarks.values()), None)
    if newest is None:
        return []
    name = next(key for key, result in data.benchmarks.items() if result is newest)
    old = {task.name: task for task in data.before.tasks} if data.before and newest is not data.before else {}
    used: list[TaskRow] = []

    def best(fits: Callable[[TaskRow, Shown], bool], worth: Callable[[TaskRow, Shown], float]) -> TaskRow | None:
        found = [
            (task.family not in {other.family for other in used}, worth(task, task.shown), -_size(task.shown), task)
            for task in newest.tasks
            if task.shown is not None and task not in used and fits(task, task.shown)
        ]
        if not found:
            return None
        used.append(max(found, key=lambda each: each[:3])[3])
        return used[-1]

    def failed_before(task: TaskRow) -> bool:
        was = old.get(task.name)
        return was is not None and was.shown is not None and not was.shown.passed

    picks: list[Pick] = []

    def add(title: str, task: TaskRow | None, both: bool) -> None:
        if task is not None and task.shown is not None:
            before = old[task.name].shown if both else None
            shown = [(BEFORE, before)] if before else []
            picks.append(Pick(title, task, [*shown, (name, task.shown)]))

    def risen(task: TaskRow) -> float:
        was, now = old[task.name].tally, task.tally
        return now.passed / max(1, now.rollouts) - was.passed / max(1, was.rollouts)

    # Chosen by rule, not by hand: the task that rose most, a failure that the agent took for finished, and one more.
    add("Fixed by RL", best(lambda t, s: s.passed and failed_before(t), lambda t, s: risen(t)), True)
    add("Still failing", best(lambda t, s: not s.passed, lambda t, s: (s.stop == "finish") - t.tally.passed), False)
    add("One more", best(lambda t, s: s.passed, lambda t, s: (t.set == "unseen") + 0.1 * len(s.turns)), False)
    if not old and len(picks) < 3:
        add("And another", best(lambda t, s: True, lambda t, s: 0.0), False)
    return picks


def _size(shown: Shown) -> int:
    return sum(len(turn.text) + len(turn.thinking) + sum(len(str(call)) for call in turn.calls) for turn in shown.turns)


def section(data: RunData) -> Html | None:
    picks = pick(data)
    return join(_pick(each, place == 0) for place, each in enumerate(picks)) if picks else None


def _pick(pick: Pick, first: bool) -> Html:
    task = pick.task
    facts = f"{task.name}, family {task.family or 'unknown'}, level {task.level}"
    several = len(pick.rollouts) > 1
    shared = [turn for turn in pick.rollouts[0][1].turns if turn.role in ("system", "user")]
    return tag(
        "details",
        tag("summary", tag("b", pick.title), " ", tag("span", facts, class_="bounds")),
        [_turn(turn) for turn in shared],
        tag("div", [_rollout(name, shown) for name, shown in pick.rollouts], class_="pair" if several else "single"),
        open=first,
        class_="trajectory",
    )


def whole_rollout(title: str, facts: str, shown: Shown) -> Html:
    """One rollout with its task, folded."""
    first = [_turn(turn) for turn in shown.turns if turn.role in ("system", "user")]
    head = tag("summary", tag("b", title), " ", tag("span", facts, class_="bounds"))
    return tag("details", head, first, tag("div", _rollout("", shown), class_="single"), class_="trajectory")


def _rollout(name: str, shown: Shown) -> Html:
    verdict = tag("span", "passed" if shown.passed else "failed", class_="chip " + ("good" if shown.passed else "bad"))
    why = f"{shown.reason}. " if shown.reason and not shown.passed else ""
    end = f"{why}Stopped by {shown.stop or 'a failure'} after {shown.tokens} tokens."
    return tag(
        "div",
        tag("h4", f"{label(name)} ", verdict),
        [_turn(turn) for turn in shown.turns if turn.role not in ("system", "user")],
        tag("p", end, class_="note"),
        class_="rollout",
    )


def _turn(turn: Turn) -> Html:
    if turn.role == "system":
        return tag("details", tag("summary", "system message"), tag("pre", _short(turn.text)), class_="system")
    if turn.role == "user":
        return tag("div", tag("span", "task", class_="who"), tag("pre", _short(turn.text)), class_="turn user")
    if turn.role == "tool":
        body = tag("pre", _short(turn.text) or "(nothing)")
        kind = "turn tool error" if turn.error else "turn tool"
        title = f"{turn.name or 'harness'} answers" + (f": {turn.error}" if turn.error else "")
        return tag("div", tag("span", title, class_="who"), body, class_=kind)
    parts: list[Child] = [tag("span", "agent", class_="who")]
    if turn.thinking:
        parts.append(tag("p", _short(turn.thinking), class_="thinking"))
    if turn.text:
        parts.append(tag("pre", _short(turn.text)))
    parts += [_call(name, arguments) for name, arguments in turn.calls]
    if turn.error:
        parts.append(tag("p", f"could not be read: {turn.error}", class_="fault"))
    return tag("div", parts, class_="turn agent")


def _call(name: str, arguments: dict[str, str]) -> Html:
    rest = dict(arguments)
    change = None
    if "old" in rest and "new" in rest:
        change = tag("pre", list(_change(rest.pop("old"), rest.pop("new"))), class_="change")
    short = {key: value for key, value in rest.items() if "\n" not in value and len(value) <= 80}
    long = {key: value for key, value in rest.items() if key not in short}
    head = [tag("span", f"{key}=", tag("code", value), class_="argument") for key, value in short.items()]
    return tag(
        "div",
        tag("p", tag("b", name), [join(" ", each) for each in head]),
        [join(tag("span", key, class_="who"), tag("pre", _short(value))) for key, value in long.items()],
        change,
        class_="call",
    )


def _change(old: str, new: str) -> Iterator[Html]:
    for kind, sign, text in (("gone", "-", old), ("come", "+", new)):
        for line in _short(text).split("\n"):
            yield tag("span", f"{sign} {line}\n", class_=kind)


def _short(text: str) -> str:
    lines = text.rstrip("\n").split("\n")
    more = len(lines) - MOST_LINES
    return "\n".join([*lines[:MOST_LINES], *([f"[{more} more lines]"] if more > 0 else [])])
