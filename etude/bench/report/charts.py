"""Line charts, bars and intervals as inline SVG. Colours are classes of the style sheet, so they follow light and dark.

Series differ by dash as well as by colour, and each picture says in words what it shows, for those who do not see it.
Knows numbers and labels; nothing of runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from etude.bench.report.html import Html, join, tag

WIDTH, HEIGHT = 400, 210
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 8, 30
MOST_POINTS = 300  # of one line; more are drawn together
HOVERED = 40  # points of a line that show their value
ENOUGH = 12  # points for a moving average
Point = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """One series."""

    label: str
    points: Sequence[Point]
    colour: int = 1  # of the style sheet, 1 to 5; its dash goes with it
    smooth: bool = False  # noisy: draw it faintly, and its moving average over it
    marked: bool = False  # a few points that matter one by one
    peak: bool = False  # where points are drawn together, show the largest

    @property
    def averaged(self) -> bool:
        return self.smooth and len(self.points) >= ENOUGH

    @property
    def end(self) -> float:
        """Where the strong line ends."""
        return (_smoothed(self.points) if self.averaged else self.points)[-1][1]


@dataclass(frozen=True)
class Bound:
    """A level that should not be passed."""

    label: str
    value: float
    colour: int = 1


def number(value: float) -> str:
    """A number for people: three digits that matter."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "-"
    size = abs(value)
    if size >= 999_500:
        return f"{value / 1e6:.3g}M"
    if size >= 9_995:
        return f"{value / 1e3:.3g}k"
    if size >= 99.95:
        return f"{value:.0f}"
    return f"{value:.3g}" if size >= 0.0015 else f"{value:.0e}".replace("e-0", "e-")


def percent(value: float) -> str:
    return f"{100 * value:.1f}%" if 0 < abs(value) < 0.1 else f"{100 * value:.0f}%"


def chart(
    title: str,
    lines: Sequence[Line],
    *,
    note: str = "",
    bounds: Sequence[Bound] = (),
    log: bool = False,
    show: Callable[[float], str] = number,
    zero: bool = False,
    top: float | None = None,
    x_label: str = "step",
) -> Html | None:
    """A figure of lines over steps; None when there is nothing to draw. `zero` keeps 0 in view, `top` another level."""
    drawn = [line for line in (_cleaned(line, log) for line in lines) if line.points]
    if not drawn:
        return None
    content = _picture(drawn, bounds, log, show, zero, top, x_label)
    picture = tag(
        "svg",
        content,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=_words(title, drawn, show, x_label),
    )
    legend = [_key(line, show) for line in drawn] if len(drawn) > 1 or drawn[0].label else None
    head = tag("figcaption", tag("h3", title), tag("p", legend, class_="legend") if legend else None)
    return tag("figure", head, picture, tag("p", note, class_="note") if note else None)


def chart_file(
    title: str,
    lines: Sequence[Line],
    style: str,
    *,
    show: Callable[[float], str] = number,
    zero: bool = False,
    x_label: str = "step",
) -> str | None:
    """The same as an SVG file of its own, its legend below; `style` is the sheet that the classes are of."""
    drawn = [line for line in (_cleaned(line, False) for line in lines) if line.points]
    if not drawn:
        return None
    beside = 3  # keys in a row
    keys = []
    for place, line in enumerate(drawn):
        left, y = LEFT + place % beside * 118, HEIGHT + 12 + place // beside * 16
        keys.append(tag("line", x1=left, x2=left + 22, y1=y, y2=y, class_=f"line s{line.colour}"))
        keys.append(tag("text", f"{line.label} {show(line.end)}", x=left + 28, y=y + 4))
    height = HEIGHT + 8 + 16 * -(-len(drawn) // beside)
    content = join(Html(f"<style>{style}</style>"), _picture(drawn, (), False, show, zero, None, x_label), keys)
    return tag(
        "svg",
        content,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {height}",
        font_family="system-ui, sans-serif",
        role="img",
        aria_label=_words(title, drawn, show, x_label),
    )


def _picture(
    drawn: Sequence[Line],
    bounds: Sequence[Bound],
    log: bool,
    show: Callable[[float], str],
    zero: bool,
    top: float | None,
    x_label: str,
) -> Html:
    xs = [x for line in drawn for x, _ in line.points]
    ys = [y for line in drawn for _, y in line.points] + [b.value for b in bounds if b.value > 0 or not log]
    ys += ([0.0] if zero else []) + ([top] if top is not None else [])
    x_scale = _Scale(min(xs), max(xs) if max(xs) > min(xs) else min(xs) + 1, LEFT, WIDTH - RIGHT)
    y_ticks = _decades(min(ys), max(ys)) if log else _ticks(min(ys), max(ys))
    y_scale = _Scale(y_ticks[0], y_ticks[-1], HEIGHT - BOTTOM, TOP, log)
    return join(
        _grid(x_scale, y_scale, y_ticks, show, x_label),
        [_bound(bound, y_scale, show) for bound in bounds],
        [_series(line, x_scale, y_scale, show) for line in drawn],
    )


def whisker(mean: float, low: float, high: float, colour: int, least: float = 0.0, most: float = 1.0) -> Html:
    """A point and its interval on a short scale, for a table's cell."""
    scale = _Scale(least, most if most > least else least + 1, 4, 116)
    across = tag("line", x1=4, x2=116, y1=8, y2=8, class_="axis")
    zero = tag("line", x1=scale(0), x2=scale(0), y1=2, y2=14, class_="axis") if least < 0 else None
    reach = tag("line", x1=scale(low), x2=scale(high), y1=8, y2=8, class_=f"reach s{colour}")
    point = tag("circle", cx=scale(mean), cy=8, r=4, class_=f"dot f{colour}")
    return tag("svg", across, zero, reach, point, viewBox="0 0 120 16", class_="whisker", aria_hidden="true")


def bars(
    rows: Sequence[tuple[str, Sequence[tuple[str, float, int]]]], show: Callable[[float], str], total: float
) -> Html:
    """One horizontal bar a row, of parts (what, how much, colour); `total` is the full width."""

    def part(what: str, value: float, colour: int) -> Html:
        width = f"width:{100 * min(1.0, value / total if total > 0 else 0):.2f}%"
        return tag("span", class_=f"part b{colour}", style=width, title=f"{what}: {show(value)}")

    def row(name: str, parts: Sequence[tuple[str, float, int]]) -> Html:
        words = ", ".join(f"{what} {show(value)}" if what else show(value) for what, value, _ in parts)
        bar = tag("span", [part(*each) for each in parts], class_="bar", aria_hidden="true")
        return tag("div", tag("dt", name), tag("dd", bar, tag("span", words, class_="told")))

    return tag("dl", [row(*each) for each in rows], class_="bars")


# Inside


@dataclass(frozen=True)
class _Scale:
    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> str:
        low, high, value = (math.log10(each) if self.log else each for each in (self.low, self.high, value))
        share = min(1.0, max(0.0, (value - low) / (high - low)))
        return f"{self.start + share * (self.end - self.start):.1f}".removesuffix(".0")


def _cleaned(line: Line, log: bool) -> Line:
    points = [(x, y) for x, y in line.points if math.isfinite(y) and (y > 0 or not log)]
    # A run of 100,000 steps must not make a page of megabytes.
    size = -(-len(points) // MOST_POINTS)
    if size > 1:
        groups = [points[i : i + size] for i in range(0, len(points), size)]
        points = [
            (group[-1][0], max(y for _, y in group) if line.peak else sum(y for _, y in group) / len(group))
            for group in groups
        ]
    return replace(line, points=points)


def _ticks(low: float, high: float) -> list[float]:
    """Round levels that cover low to high, four or five of them."""
    if high - low <= 1e-12 * max(abs(low), abs(high)):
        low, high = (low - abs(low) / 2, high + abs(high) / 2) if low else (0.0, 1.0)
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    # A little less than asked for is enough, or rounding would take the next larger step.
    step = next(size * power for size in (1, 2, 2.5, 5, 10) if size * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def _decades(low: float, high: float) -> list[float]:
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    return [10.0**i for i in range(first, max(last, first + 1) + 1)]


def _grid(x: _Scale, y: _Scale, levels: list[float], show: Callable[[float], str], x_label: str) -> Html:
    every = -(-len(levels) // 6)
    parts = []
    for place, level in enumerate(levels):
        if place % every == 0:
            at = y(level)
            parts.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=at, y2=at, class_="grid"))
            parts.append(tag("text", show(level), x=LEFT - 5, y=f"{float(at) + 3.5:.1f}", text_anchor="end"))
    for step in (t for t in _ticks(x.low, x.high) if x.low <= t <= x.high and t == int(t)):
        parts.append(tag("text", number(step), x=x(step), y=HEIGHT - BOTTOM + 14, text_anchor="middle"))
    middle = (LEFT + WIDTH - RIGHT) // 2
    return join(parts, tag("text", x_label, x=middle, y=HEIGHT - 3, text_anchor="middle", class_="unit"))


def _bound(bound: Bound, y: _Scale, show: Callable[[float], str]) -> Html:
    at = float(y(bound.value))
    below = 12 if at < TOP + 12 else -4  # of the line, where there is no room above it
    label = f"{bound.label} {show(bound.value)}"
    return join(
        tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=at, y2=at, class_=f"bound s{bound.colour}"),
        tag("text", label, x=WIDTH - RIGHT - 2, y=f"{at + below:.1f}", text_anchor="end"),
    )


def _series(line: Line, x: _Scale, y: _Scale, show: Callable[[float], str]) -> Html:
    def path(points: Sequence[Point], kind: str) -> Html:
        places = " ".join(f"{x(a)},{y(b)}" for a, b in points)
        return tag("polyline", points=places, class_=f"{kind} s{line.colour}")

    parts = []
    if line.averaged:
        parts = [path(line.points, "raw"), path(_smoothed(line.points), "line")]
    elif len(line.points) > 1:
        parts = [path(line.points, "line")]
    if line.marked or len(line.points) == 1:
        parts += [
            tag("circle", tag("title", f"{number(a)}: {show(b)}"), cx=x(a), cy=y(b), r=3.5, class_=f"f{line.colour}")
            for a, b in line.points
        ]
    elif not line.marked:
        # Nothing is drawn: these answer the pointer with the values that it is at.
        every = -(-len(line.points) // HOVERED)
        parts += [
            tag("circle", tag("title", f"{_named(line)}{number(a)}: {show(b)}"), cx=x(a), cy=y(b), r=5, class_="hover")
            for a, b in line.points[::every]
        ]
    return join(parts)


def _named(line: Line) -> str:
    return f"{line.label}, " if line.label else ""


def _smoothed(points: Sequence[Point]) -> list[Point]:
    """A moving average over an eighth of the line: even at the start, where losses fall fast, one-sided at the end."""
    reach = max(1, len(points) // 16)
    found = []
    for place, (x, _) in enumerate(points):
        half = min(reach, place)
        around = [y for _, y in points[place - half : place + half + 1]]
        found.append((x, sum(around) / len(around)))
    return found


def _key(line: Line, show: Callable[[float], str]) -> Html:
    sample = tag("line", x1=0, x2=22, y1=5, y2=5, class_=f"line s{line.colour}")
    swatch = tag("svg", sample, viewBox="0 0 22 10", class_="swatch", aria_hidden="true")
    label = line.label or "last"
    return tag("span", swatch, f"{label} ", tag("b", show(line.end)), class_="key")


def _words(title: str, lines: Sequence[Line], show: Callable[[float], str], x_label: str) -> str:
    series = []
    for line in lines:
        (first, start), (last, _) = line.points[0], line.points[-1]
        span = f"from {show(start)} at {x_label} {number(first)} to {show(line.end)} at {x_label} {number(last)}"
        series.append(f"{line.label} {span}".strip())
    return f"{title}: {'; '.join(series)}"
