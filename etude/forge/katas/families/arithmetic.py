"""Level 1: numbers. One expression over integers, so that results are exact everywhere."""

from __future__ import annotations

from etude.forge.katas.draft import Draft, Family, Function, Pick, alone
from etude.forge.katas.vocabulary import AMOUNTS, GOODS, LIST, MONEY, NUMBER, TIMES, WHOLE


def percent(pick: Pick) -> Draft:
    name, x = pick.name(MONEY, "add", "apply", "take"), pick.word(NUMBER)
    rate, head = pick.constant(4, 60, MONEY)
    doc, body = pick.choose(
        (f"Return {x} plus {rate} percent of it, rounded down.", f"return {x} + {x} * {rate} // 100"),
        (f"Return {x} less {rate} percent of it, the percentage rounded down.", f"return {x} - {x} * {rate} // 100"),
        (f"Return {rate} percent of {x}, rounded down.", f"return {x} * {rate} // 100"),
    )
    function = Function(name, x, doc, body, lambda: (pick.integer(11, 990),), ((0,), (100,)), f"return {x}", head)
    return alone(pick, MONEY, function)


def clamp(pick: Pick) -> Draft:
    name, x = pick.name(AMOUNTS, "limit", "bound", "hold"), pick.word(NUMBER)
    low, high = pick.numbers(2, 5, 95)
    doc, body = pick.choose(
        (f"Return {x}, but at least {low} and at most {high}.", f"return max({low}, min({high}, {x}))"),
        (f"Return {x}, but at least {low}.", f"return max({low}, {x})"),
        (f"Return {x}, but at most {high}.", f"return min({high}, {x})"),
    )
    edges = ((low - 1,), (low,), (high,), (high + 1,), (low - 7,), (high + 9,))
    function = Function(name, x, doc, body, lambda: (pick.integer(low - 30, high + 30),), edges, f"return {x}")
    return alone(pick, AMOUNTS, function)


def crates(pick: Pick) -> Draft:
    name = pick.name(GOODS, "count", "measure", "fill")
    big, small = pick.word(WHOLE), pick.word(WHOLE)
    size = pick.number(4, 40)
    fact = f"One {big} is {size} of {small}."
    function = pick.choose(
        Function(
            name,
            f"{big}, {small}",
            f"Return {big} and {small} together as {small}. {fact}",
            f"return {big} * {size} + {small}",
            lambda: (pick.integer(1, 30), pick.integer(0, size + 5)),
            wrong=f"return {big} + {small}",
        ),
        Function(
            name,
            small,
            f"Return {small} as a pair: whole {big}, then the rest. {fact}",
            f"return divmod({small}, {size})",
            lambda: (pick.integer(0, 12 * size),),
            wrong=f"return ({small}, 0)",
        ),
        Function(
            name,
            small,
            f"Return how many {big} hold {small}, rounded up. {fact}",
            f"return -(-{small} // {size})",
            lambda: (pick.integer(1, 12) * size + pick.integer(-1, 1),),
            wrong=f"return {small} // {size}",
        ),
    )
    return alone(pick, GOODS, function)


def line(pick: Pick) -> Draft:
    name, x = pick.name(AMOUNTS, "scale", "map", "adjust"), pick.word(NUMBER)
    (factor, head), offset = pick.constant(2, 30, AMOUNTS), pick.number(2, 90)
    doc, body = pick.choose(
        (f"Return {factor} times {x}, plus {offset}.", f"return {factor} * {x} + {offset}"),
        (f"Return {factor} times {x}, minus {offset}.", f"return {factor} * {x} - {offset}"),
        (f"Return {x} plus {offset}, all times {factor}.", f"return ({x} + {offset}) * {factor}"),
        (f"Return {x} minus {offset}, all times {factor}.", f"return ({x} - {offset}) * {factor}"),
    )
    function = Function(name, x, doc, body, lambda: (pick.integer(-50, 99),), (), f"return {x} + {offset}", head)
    return alone(pick, AMOUNTS, function)


def multiples(pick: Pick) -> Draft:
    name, x = pick.name(AMOUNTS, "round", "snap", "align"), pick.word(NUMBER)
    step = pick.number(4, 60)
    doc, body = pick.choose(
        (f"Return {x} rounded down to a multiple of {step}.", f"return {x} // {step} * {step}"),
        (f"Return {x} rounded up to a multiple of {step}.", f"return -(-{x} // {step}) * {step}"),
        (f"Return how much {x} is above a multiple of {step}.", f"return {x} % {step}"),
    )
    edges = ((step,), (3 * step,), (0,), (step - 1,))
    function = Function(name, x, doc, body, lambda: (pick.integer(1, 21 * step),), edges, f"return {x} // {step}")
    return alone(pick, AMOUNTS, function)


def fallback(pick: Pick) -> Draft:
    name, xs = pick.name(AMOUNTS, "top", "middle", "final"), pick.word(LIST)
    empty = pick.number(2, 90)
    what, code = pick.choose(
        ("the largest of", f"max({xs})"),
        ("the smallest of", f"min({xs})"),
        ("the sum of", f"sum({xs})"),
        ("the last of", f"{xs}[-1]"),
        ("the average, rounded down, of", f"sum({xs}) // len({xs})"),
    )
    doc = f"Return {what} {xs}, or {empty} when {xs} is empty."
    body = f"return {code} if {xs} else {empty}"
    function = Function(name, xs, doc, body, lambda: (pick.integers(2, 5, -20, 80),), (([],),), f"return {code}")
    return alone(pick, AMOUNTS, function)


def ring(pick: Pick) -> Draft:
    name, x = pick.name(TIMES, "next", "later", "move"), pick.word(NUMBER)
    (size, head), step = pick.constant(5, 60, TIMES), pick.number(2, 40)
    word, sign = pick.choose(("forward", "+"), ("back", "-"))
    doc = f"Return {x} moved {step} {word} on a ring that counts from 0 and has {size} places."
    body = f"return ({x} {sign} {step}) % {size}"
    function = Function(name, x, doc, body, lambda: (pick.integer(0, 90),), (), f"return {x} {sign} {step}", head)
    return alone(pick, TIMES, function)


def between(pick: Pick) -> Draft:
    name, x = pick.name(AMOUNTS, "valid", "normal", "accept"), pick.word(NUMBER)
    low, high = pick.numbers(2, 5, 95)
    doc, body = pick.choose(
        (f"Return whether {x} is at least {low} and at most {high}.", f"return {low} <= {x} <= {high}"),
        (f"Return whether {x} is at least {low} and less than {high}.", f"return {low} <= {x} < {high}"),
        (f"Return whether {x} is less than {low} or more than {high}.", f"return {x} < {low} or {x} > {high}"),
    )
    edges = ((low,), (low - 1,), (high,), (high + 1,), (high - 1,), (low + 1,), (high + 2,), (low - 2,))
    function = Function(name, x, doc, body, lambda: (pick.integer(low - 20, high + 20),), edges, "return True")
    return alone(pick, AMOUNTS, function)


FAMILIES = (
    Family("percent", 1, "a number plus, minus or times a percentage", percent),
    Family("clamp", 1, "a number held between bounds", clamp),
    Family("crates", 1, "two units, one a fixed number of the other", crates),
    Family("line", 1, "a factor and an offset", line),
    Family("multiples", 1, "rounding to multiples, and what is left over", multiples),
    Family("fallback", 1, "a figure of a list, with a value for the empty one", fallback),
    Family("ring", 1, "counting on a ring: clocks, seats, weekdays", ring),
    Family("between", 1, "whether a number lies in a range", between, unseen=True),
)
