"""Level 1: numbers. One expression over integers, so that results are exact everywhere."""

from __future__ import annotations

from etude.forge.katas.draft import Function, Pick, family
from etude.forge.katas.vocabulary import AMOUNTS, GOODS, LIST, MONEY, NUMBER, TIMES, WHOLE


@family(1, "a number plus, minus or times a percentage", MONEY)
def percent(pick: Pick) -> Function:
    name, x = pick.name(MONEY, "add", "apply", "take"), pick.word(NUMBER)
    rate, head = pick.constant(4, 60, MONEY)
    doc, body = pick.choose(
        (f"Return {x} plus {rate} percent of it, rounded down.", f"return {x} + {x} * {rate} // 100"),
        (f"Return {x} less {rate} percent of it, the percentage rounded down.", f"return {x} - {x} * {rate} // 100"),
        (f"Return {rate} percent of {x}, rounded down.", f"return {x} * {rate} // 100"),
    )
    return Function(name, x, doc, body, lambda: (pick.integer(11, 990),), ((0,), (100,)), f"return {x}", head)


@family(1, "a number held between bounds", AMOUNTS)
def clamp(pick: Pick) -> Function:
    name, x = pick.name(AMOUNTS, "limit", "bound", "hold"), pick.word(NUMBER)
    low, high = pick.numbers(2, 5, 95)
    doc, body = pick.choose(
        (f"Return {x}, but at least {low} and at most {high}.", f"return max({low}, min({high}, {x}))"),
        (f"Return {x}, but at least {low}.", f"return max({low}, {x})"),
        (f"Return {x}, but at most {high}.", f"return min({high}, {x})"),
    )
    edges = ((low - 1,), (low,), (high,), (high + 1,), (low - 7,), (high + 9,))
    return Function(name, x, doc, body, lambda: (pick.integer(low - 30, high + 30),), edges, f"return {x}")


@family(1, "two units, one a fixed number of the other", GOODS)
def crates(pick: Pick) -> Function:
    name = pick.name(GOODS, "count", "measure", "fill")
    big, small = pick.word(WHOLE), pick.word(WHOLE)
    size = pick.number(4, 40)
    fact = f"One {big} is {size} of {small}."
    return pick.choose(
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


@family(1, "a factor and an offset", AMOUNTS)
def line(pick: Pick) -> Function:
    name, x = pick.name(AMOUNTS, "scale", "map", "adjust"), pick.word(NUMBER)
    (factor, head), offset = pick.constant(2, 30, AMOUNTS), pick.number(2, 90)
    doc, body = pick.choose(
        (f"Return {factor} times {x}, plus {offset}.", f"return {factor} * {x} + {offset}"),
        (f"Return {factor} times {x}, minus {offset}.", f"return {factor} * {x} - {offset}"),
        (f"Return {x} plus {offset}, all times {factor}.", f"return ({x} + {offset}) * {factor}"),
        (f"Return {x} minus {offset}, all times {factor}.", f"return ({x} - {offset}) * {factor}"),
    )
    return Function(name, x, doc, body, lambda: (pick.integer(-50, 99),), (), f"return {x} + {offset}", head)


@family(1, "rounding to multiples, and what is left over", AMOUNTS)
def multiples(pick: Pick) -> Function:
    name, x = pick.name(AMOUNTS, "round", "snap", "align"), pick.word(NUMBER)
    step = pick.number(4, 60)
    doc, body = pick.choose(
        (f"Return {x} rounded down to a multiple of {step}.", f"return {x} // {step} * {step}"),
        (f"Return {x} rounded up to a multiple of {step}.", f"return -(-{x} // {step}) * {step}"),
        (f"Return how much {x} is above a multiple of {step}.", f"return {x} % {step}"),
    )
    edges = ((step,), (3 * step,), (0,), (step - 1,))
    return Function(name, x, doc, body, lambda: (pick.integer(1, 21 * step),), edges, f"return {x} // {step}")


@family(1, "a figure of a list, with a value for the empty one", AMOUNTS)
def fallback(pick: Pick) -> Function:
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
    return Function(name, xs, doc, body, lambda: (pick.integers(2, 5, -20, 80),), (([],),), f"return {code}")


@family(1, "counting on a ring: clocks, seats, weekdays", TIMES)
def ring(pick: Pick) -> Function:
    name, x = pick.name(TIMES, "next", "later", "move"), pick.word(NUMBER)
    (size, head), step = pick.constant(5, 60, TIMES), pick.number(2, 40)
    word, sign = pick.choose(("forward", "+"), ("back", "-"))
    doc = f"Return {x} moved {step} {word} on a ring that counts from 0 and has {size} places."
    body = f"return ({x} {sign} {step}) % {size}"
    return Function(name, x, doc, body, lambda: (pick.integer(0, 90),), (), f"return {x} {sign} {step}", head)


@family(1, "whether a number lies in a range", AMOUNTS, unseen=True)
def between(pick: Pick) -> Function:
    name, x = pick.name(AMOUNTS, "valid", "normal", "accept"), pick.word(NUMBER)
    low, high = pick.numbers(2, 5, 95)
    doc, body = pick.choose(
        (f"Return whether {x} is at least {low} and at most {high}.", f"return {low} <= {x} <= {high}"),
        (f"Return whether {x} is at least {low} and less than {high}.", f"return {low} <= {x} < {high}"),
        (f"Return whether {x} is less than {low} or more than {high}.", f"return {x} < {low} or {x} > {high}"),
    )
    edges = ((low,), (low - 1,), (high,), (high + 1,), (high - 1,), (low + 1,), (high + 2,), (low - 2,))
    return Function(name, x, doc, body, lambda: (pick.integer(low - 20, high + 20),), edges, "return True")
