"""Level 2: decisions. Brackets, grades, coins, dates, and small rules with exceptions."""

from __future__ import annotations

from typing import Any

from etude.forge.katas.draft import Edges, Function, Pick, family, show
from etude.forge.katas.vocabulary import AMOUNTS, CODES, GOODS, LIST, MONEY, NUMBER, TIMES


@family(2, "prices by quantity", MONEY)
def tiers(pick: Pick) -> Function:
    name, x = pick.name(MONEY, "cost", "price", "quote"), pick.word(NUMBER)
    low, high = pick.numbers(2, 5, 60)
    cheap, middle, full = pick.numbers(3, 2, 40)
    doc = f"Return {x} times {full}, times {middle} from {low} on, times {cheap} from {high} on."
    body = (
        f"if {x} >= {high}:\n    return {x} * {cheap}\nif {x} >= {low}:\n    return {x} * {middle}\nreturn {x} * {full}"
    )
    edges = ((high,), (low,), (high - 1,), (low - 1,), (high + 1,), (low + 1,))
    return Function(name, x, doc, body, lambda: (pick.integer(1, high + 40),), edges, f"return {x} * {full}")


@family(2, "a number turned into a word by thresholds", AMOUNTS)
def grade(pick: Pick) -> Function:
    name, x = pick.name(AMOUNTS, "name", "judge", "class"), pick.word(NUMBER)
    low, high = pick.numbers(2, 10, 90)
    a, b, c = map(show, pick.strings(3))
    kind, sign = pick.choose(("below", "<"), ("up to", "<="))
    doc = f"Return {a} {kind} {low}, {b} {kind} {high}, and else {c}, for {x}."
    body = f"if {x} {sign} {low}:\n    return {a}\nif {x} {sign} {high}:\n    return {b}\nreturn {c}"
    edges = ((low,), (high,), (low + 1,), (high + 1,), (low - 1,), (high - 1,))
    return Function(name, x, doc, body, lambda: (pick.integer(0, 99),), edges, f"return {c}")


@family(2, "words for multiples", CODES)
def fizz(pick: Pick) -> Function:
    name, x = pick.name(CODES, "call", "say", "speak"), pick.word(NUMBER)
    a, b = pick.numbers(2, 2, 9)
    first, second = map(show, pick.strings(2))
    doc = f"Return {first} if {x} divides by {a}, {second} if by {b}, both texts if by both, and else {x} as text."
    body = (
        f'out = ""\nif {x} % {a} == 0:\n    out += {first}\nif {x} % {b} == 0:\n    out += {second}\n'
        f"return out or str({x})"
    )
    edges = ((a * b,), (2 * a * b,), (a,), (b,), (3 * a * b,))

    def draw() -> tuple[Any, ...]:
        return (pick.rng.choice([a, b, a * b]) * pick.integer(1, 30) + pick.rng.choice([0, 0, 1]),)

    return Function(name, x, doc, body, draw, edges, f"return str({x})")


@family(2, "an amount paid in pieces, the largest first", MONEY)
def coins(pick: Pick) -> Function:
    name, x = pick.name(MONEY, "pay", "change", "break"), pick.word(NUMBER)
    small, big = pick.numbers(2, 4, 40)
    doc = f"Return how many pieces of {big}, then of {small}, then of 1 make up {x}, the largest first, as a list."
    body = f"out = []\nfor piece in ({big}, {small}, 1):\n    out.append({x} // piece)\n    {x} %= piece\nreturn out"
    return Function(name, x, doc, body, lambda: (pick.integer(1, 200),), ((0,), (big,)), f"return [0, 0, {x}]")


@family(2, "a rule, its exception, and the exception's exception", TIMES)
def leap(pick: Pick) -> Function:
    name, x = pick.name(TIMES, "long", "extra", "full"), pick.word(NUMBER)
    small = pick.number(3, 7)
    factors = pick.numbers(2, 2, 8)
    middle, large = small * factors[0], small * factors[0] * factors[1]
    doc = f"Return whether {x} is divisible by {small}, but not by {middle}, unless it is divisible by {large}."
    body = (
        f"if {x} % {large} == 0:\n    return True\nif {x} % {middle} == 0:\n    return False\nreturn {x} % {small} == 0"
    )
    edges = ((large,), (middle,), (small,), (2 * large,), (middle * (factors[1] + 1),), (small * (factors[0] + 1),))
    return Function(
        name, x, doc, body, lambda: (pick.integer(1, 40) * small + pick.integer(0, 1),), edges, "return True"
    )


@family(2, "the day of a year with months of their own lengths", TIMES)
def calendar(pick: Pick) -> Function:
    name, month, day = pick.name(TIMES, "date", "place", "number"), pick.word(TIMES), pick.word(NUMBER)
    lengths = pick.numbers(4, 10, 60)
    pick.rng.shuffle(lengths)
    table = pick.word(TIMES).upper()
    pick.names[-1] = table
    doc = f"Return {day} plus the sum of the first {month} - 1 numbers of {table}."
    body = f"total = {day}\nfor days in {table}[:{month} - 1]:\n    total += days\nreturn total"

    def draw() -> tuple[Any, ...]:
        return (pick.integer(1, 4), pick.integer(1, 30))

    edges: Edges = ((4, 1), (1, 1))
    return Function(name, f"{month}, {day}", doc, body, draw, edges, f"return {day}", f"{table} = {show(lengths)}")


@family(2, "a rate limit that keeps what may pass", GOODS)
def limiter(pick: Pick) -> Function:
    name, xs = pick.name(GOODS, "pass", "throttle", "admit"), pick.word(LIST)
    (span, head), limit = pick.constant(4, 20, GOODS), pick.number(2, 5)
    value = int(pick.values[-2])
    doc = (
        f"Return those of the rising {xs} that pass. One passes if fewer than {limit} of those that passed "
        f"are less than {span} before it."
    )
    body = (
        f"passed = []\nfor x in {xs}:\n    recent = [p for p in passed if x - p < {span}]\n"
        f"    if len(recent) < {limit}:\n        passed.append(x)\nreturn passed"
    )

    def draw() -> tuple[Any, ...]:
        moment, moments = pick.integer(0, 9), []
        for _ in range(pick.integer(limit + 2, limit + 4)):
            moments.append(moment)
            moment += pick.rng.choice([1, 2, value, value - 1])
        return (moments,)

    full = list(range(limit))
    edges: Edges = (([*full, value],), ([*full, value - 1],), ([],))
    return Function(name, xs, doc, body, draw, edges, f"return {xs}[:{limit}]", head)
