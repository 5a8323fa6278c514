"""Level 1: lists. One expression that keeps, changes, turns or sorts items."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from etude.forge.katas.draft import Edges, Function, Pick, family
from etude.forge.katas.vocabulary import AMOUNTS, LIST, NUMBER, ROWS, WORDLIST


@family(1, "items of a list that pass a test", ROWS)
def keep(pick: Pick) -> Function:
    name, xs = pick.name(ROWS, "keep", "select", "filter"), pick.word(LIST)
    bound, head = pick.constant(4, 40, AMOUNTS)
    what, test = pick.choose(
        (f"above {bound}", f"x > {bound}"),
        (f"below {bound}", f"x < {bound}"),
        (f"at most {bound}", f"x <= {bound}"),
        (f"other than {bound}", f"x != {bound}"),
        (f"divisible by {bound}", f"x % {bound} == 0"),
    )
    value = int(pick.values[-1])
    near = (value, value - 1, value + 1, 2 * value, 3 * value)
    doc, body = f"Return the {xs} {what}.", f"return [x for x in {xs} if {test}]"

    def draw() -> tuple[Any, ...]:
        return (pick.rng.sample(near, 3) + pick.integers(1, 2, 1, 60),)

    edges: Edges = (([],), ([value],), ([value, value + 1],))
    return Function(name, xs, doc, body, draw, edges, f"return {xs}", head)


@family(1, "every item of a list changed", ROWS)
def each(pick: Pick) -> Function:
    name, xs = pick.name(ROWS, "change", "update", "shift"), pick.word(LIST)
    n, head = pick.constant(2, 60, AMOUNTS)
    what, code = pick.choose(
        (f"{n} added to each", f"x + {n}"),
        (f"{n} taken from each", f"x - {n}"),
        (f"each multiplied by {n}", f"x * {n}"),
        (f"each divided by {n}, rounded down", f"x // {n}"),
    )
    doc, body = f"Return a list of the {xs} with {what}.", f"return [{code} for x in {xs}]"
    return Function(name, xs, doc, body, lambda: (pick.integers(2, 4, -99, 99),), (([],),), f"return {xs}", head)


@family(1, "lists turned and partly reversed", ROWS)
def rotate(pick: Pick) -> Function:
    name, xs = pick.name(ROWS, "turn", "rotate", "reorder"), pick.word(WORDLIST)
    n = pick.number(2, 6)
    doc, body = pick.choose(
        (f"Return {xs} with the first {n} moved to the end.", f"return {xs}[{n}:] + {xs}[:{n}]"),
        (f"Return {xs} with the last {n} moved to the start.", f"return {xs}[-{n}:] + {xs}[:-{n}]"),
        (f"Return {xs} with the first {n} in reverse order.", f"return {xs}[:{n}][::-1] + {xs}[{n}:]"),
    )
    return Function(name, xs, doc, body, lambda: (pick.texts(n + 2, n + 4),), (), f"return {xs}")


@family(1, "parts of a list by position", ROWS)
def slices(pick: Pick) -> Function:
    name, xs = pick.name(ROWS, "pick", "sample", "take"), pick.word(LIST)
    n, head = pick.constant(2, 5, ROWS)
    doc, body = pick.choose(
        (f"Return every item of {xs} whose position divides by {n}, counted from 0.", f"return {xs}[::{n}]"),
        (f"Return {xs} without the first {n}.", f"return {xs}[{n}:]"),
        (f"Return {xs} without the last {n}.", f"return {xs}[:-{n}]"),
        (f"Return the last {n} of {xs}.", f"return {xs}[-{n}:]"),
    )
    return Function(name, xs, doc, body, lambda: (pick.integers(6, 9, 0, 99),), (([1, 2],),), f"return {xs}", head)


@family(1, "lists sorted by a key", ROWS)
def order(pick: Pick) -> Function:
    name, xs = pick.name(ROWS, "sort", "order", "arrange"), pick.word(LIST)
    n = pick.number(4, 20)
    keys: list[tuple[str, str, Callable[[int], int]]] = [
        (f"the remainder by {n}", f"x % {n}", lambda x: x % n),
        (f"the distance to {n}", f"abs(x - {n})", lambda x: abs(x - n)),
        (f"how often {n} fits in them", f"x // {n}", lambda x: x // n),
    ]
    what, code, key = pick.choose(*keys)
    last, extra = pick.choose(("smallest", ""), ("largest", ", reverse=True"))
    doc = f"Return {xs} sorted by {what}, {last} first."
    body = f"return sorted({xs}, key=lambda x: {code}{extra})"

    def draw() -> tuple[list[int]]:
        """No two items with the same key: nothing is said about their order."""
        found = {key(x): x for x in pick.integers(6, 8, 0, 6 * n)}
        return (list(found.values())[:5],)

    return Function(name, xs, doc, body, draw, (), f"return sorted({xs}{extra})")


@family(1, "a rate limit over the latest moments", ROWS)
def recent(pick: Pick) -> Function:
    name = pick.name(ROWS, "allow", "admit", "accept")
    xs, now = pick.word(LIST), pick.word(NUMBER)
    (span, head), limit = pick.constant(5, 40, AMOUNTS), pick.number(2, 6)
    value = int(pick.values[-2])
    doc = f"Return whether fewer than {limit} of {xs} are above {now} minus {span}."
    body = f"return sum(x > {now} - {span} for x in {xs}) < {limit}"

    def draw() -> tuple[list[int], int]:
        moment = pick.integer(60, 99)
        inside = pick.rng.choice([limit - 1, limit])
        close = [moment - value + 1 + pick.integer(0, value - 1) for _ in range(inside - 1)] + [moment - value + 1]
        before = [moment - value - pick.integer(1, 9), moment - value - 2, moment - value - 11]
        # As many of them as follows from the rest: how long the list is does not tell the answer.
        before = before[: sum(close) % 4]
        return sorted([*close, moment - value, *before]), moment

    return Function(name, f"{xs}, {now}", doc, body, draw, (([], 9),), "return True", head)
