"""Level 1: dictionaries and records. One expression over a table, or over a list of rows."""

from __future__ import annotations

from typing import Any

from etude.forge.katas.draft import Function, Pick, family, show
from etude.forge.katas.vocabulary import AMOUNTS, FIELD, GOODS, MEASURE, MONEY, RECORDS, ROWS, TABLE, TEXT


@family(1, "one field of the rows that pass a test", ROWS)
def column(pick: Pick) -> Function:
    name, rows = pick.name(ROWS, "get", "list", "collect"), pick.word(RECORDS)
    a, b = pick.word(FIELD), pick.word(MEASURE)
    (bound, head), value = pick.constant(5, 60, AMOUNTS), int(pick.values[-1])
    what, sign = pick.choose(("is above", ">"), ("is below", "<"), ("is", "=="), ("is not", "!="))
    doc = f'Return "{a}" of each of {rows} whose "{b}" {what} {bound}.'
    body = f'return [x["{a}"] for x in {rows} if x["{b}"] {sign} {bound}]'

    def draw() -> tuple[Any, ...]:
        return ([{a: pick.text(1), b: pick.rng.choice([value - 1, value, value + 1])} for _ in range(4)],)

    wrong = f'return [x["{a}"] for x in {rows}]'
    return Function(name, rows, doc, body, draw, (([],),), wrong, head)


@family(1, "a sum over two fields of each row", MONEY)
def worth(pick: Pick) -> Function:
    name, rows = pick.name(MONEY, "total", "sum", "bill"), pick.word(RECORDS)
    a, b = pick.word(MEASURE), pick.word(MEASURE)
    n, head = pick.constant(2, 40, MONEY)
    doc, body = pick.choose(
        (
            f'Return {n} plus the sum of "{a}" times "{b}" over {rows}.',
            f'return {n} + sum(x["{a}"] * x["{b}"] for x in {rows})',
        ),
        (
            f'Return the sum of "{a}" times "{b}" plus {n} over {rows}.',
            f'return sum(x["{a}"] * x["{b}"] + {n} for x in {rows})',
        ),
        (
            f'Return the sum of "{a}" plus {n} times "{b}" over {rows}.',
            f'return sum(x["{a}"] + {n} * x["{b}"] for x in {rows})',
        ),
    )

    def draw() -> tuple[Any, ...]:
        return ([{a: pick.integer(1, 20), b: pick.integer(1, 9)} for _ in range(pick.integer(1, 3))],)

    return Function(name, rows, doc, body, draw, (([],),), "return 0", head)


@family(1, "a table with a default", MONEY)
def lookup(pick: Pick) -> Function:
    name = pick.name(MONEY, "find", "ask", "check")
    table, key = pick.word(TABLE), pick.word(TEXT)
    default, extra = pick.number(2, 90), pick.number(2, 60)
    found = f"what {table} has for {key} ({default} if nothing)"
    doc, body = pick.choose(
        (f"Return {found}.", f"{table}.get({key}, {default})"),
        (f"Return {extra} plus {found}.", f"{extra} + {table}.get({key}, {default})"),
        (f"Return {extra} times {found}.", f"{extra} * {table}.get({key}, {default})"),
        (f"Return {found}; {key} may be in upper case.", f"{table}.get({key}.lower(), {default})"),
    )

    def draw() -> tuple[Any, ...]:
        words = sorted({pick.text(1) for _ in range(3)})
        key = pick.rng.choice(words) if pick.integer(0, 2) else pick.text(1)
        return {word: pick.integer(1, 99) for word in words}, key.upper() if "lower" in body else key

    return Function(name, f"{table}, {key}", doc, f"return {body}", draw, (), f"return {table}[{key}]")


@family(1, "a table with changed values, fewer entries or swapped sides", GOODS)
def remap(pick: Pick) -> Function:
    name, table = pick.name(GOODS, "change", "revise", "renew"), pick.word(TABLE)
    n, head = pick.constant(3, 50, AMOUNTS)
    value = int(pick.values[-1])
    doc, body = pick.choose(
        (f"Return {table} with {n} added to each value.", f"{{k: v + {n} for k, v in {table}.items()}}"),
        (f"Return {table} without the values below {n}.", f"{{k: v for k, v in {table}.items() if v >= {n}}}"),
        (f"Return {table} with each value at most {n}.", f"{{k: min(v, {n}) for k, v in {table}.items()}}"),
        (
            f"Return {table} with keys and values swapped, {n} added to the new keys.",
            f"{{v + {n}: k for k, v in {table}.items()}}",
        ),
    )

    def draw() -> tuple[Any, ...]:
        values = pick.rng.sample([value - 1, value, value + 1, value + 7, value - 3], 3)
        return (dict(zip({pick.text(1): 0 for _ in range(3)}, values, strict=False)),)

    return Function(name, table, doc, f"return {body}", draw, (({},),), f"return {table}", head)


@family(1, "the row that scores highest or lowest", GOODS)
def best(pick: Pick) -> Function:
    name, rows = pick.name(GOODS, "best", "choose", "prefer"), pick.word(RECORDS)
    a, b, c = pick.word(FIELD), pick.word(MEASURE), pick.word(MEASURE)
    n = pick.number(2, 9)
    what, call = pick.choose(("largest", "max"), ("smallest", "min"))
    text, key = pick.choose(
        (f'"{b}" plus {n} times "{c}"', f'x["{b}"] + {n} * x["{c}"]'),
        (f'"{b}" minus {n} times "{c}"', f'x["{b}"] - {n} * x["{c}"]'),
    )
    doc = f'Return "{a}" of the one of {rows} with the {what} {text}.'
    body = f'return {call}({rows}, key=lambda x: {key})["{a}"]'

    def draw() -> tuple[Any, ...]:
        """Rows whose scores lie close together and never tie, so that the factor decides."""
        steps = pick.rng.sample(range(1, 10), 4)
        score = 10 * n
        sign = 1 if "plus" in text else -1
        rows = zip(pick.rng.sample(range(8), 4), steps, strict=True)
        return ([{a: pick.text(1), b: score + more - sign * n * step, c: step} for more, step in rows],)

    return Function(name, rows, doc, body, draw, (), f"return {rows}[0][{show(a)}]")
