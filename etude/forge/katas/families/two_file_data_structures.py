"""Level 3: two functions in two files that keep stock, caches, intervals, matrices and graphs."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from etude.forge.katas.draft import Function, Pair, Pick, family, show
from etude.forge.katas.vocabulary import AMOUNTS, CODES, GOODS, LIST, NUMBER, PLACES, ROWS, TABLE, TEXT, TIMES, WORDLIST


@family(3, "stock moved within bounds, and moves replayed", GOODS, ROWS)
def inventory(pick: Pick) -> Pair:
    move, table, item, n = pick.name(GOODS, "move", "book"), pick.word(TABLE), pick.word(TEXT), pick.word(NUMBER)
    replay, xs = pick.name(ROWS, "replay", "apply"), pick.word(LIST)
    start, most = pick.number(2, 30), pick.number(40, 90)
    fig = pick.text(1)

    def moves() -> list[tuple[str, int]]:
        few = pick.texts(2, 2)
        return [(pick.rng.choice(few), pick.integer(-40, 60)) for _ in range(pick.integer(2, 4))]

    first = Function(
        move,
        f"{table}, {item}, {n}",
        f"Return {table} with {n} more of {item}, but at least 0 and at most {most}. "
        f"One that {table} does not have starts at {start}.",
        f"now = {table}.get({item}, {start}) + {n}\nreturn {{**{table}, {item}: max(0, min({most}, now))}}",
        lambda: ({pick.text(1): pick.integer(0, 40)}, pick.text(1), pick.integer(-60, 70)),
        (({fig: 3}, fig, 5), ({fig: 3}, fig, -9), ({fig: 30}, fig, 90), ({fig: 4}, fig, 7)),
        f"return {{**{table}, {item}: {n}}}",
    )
    second = Function(
        replay,
        xs,
        f"Return the table after {move} with each pair of {xs}, from an empty table on.",
        f"table = {{}}\nfor item, count in {xs}:\n    table = {move}(table, item, count)\nreturn table",
        lambda: (moves(),),
        (([],),),
        f"return dict({xs})",
    )
    return first, second


@family(3, "a small cache, and what using it costs", GOODS, ROWS)
def cache(pick: Pick) -> Pair:
    touch, order, key = pick.name(GOODS, "touch", "use"), pick.word(WORDLIST), pick.word(TEXT)
    hits, xs = pick.name(ROWS, "hits", "count"), pick.word(WORDLIST)
    size, cost = pick.number(2, 5), pick.number(2, 40)

    def keys() -> list[str]:
        few = pick.texts(3, 4)
        return [pick.rng.choice(few) for _ in range(pick.integer(size + 2, size + 4))]

    def used() -> tuple[Any, ...]:
        held = list(dict.fromkeys(pick.texts(size + 1, size + 2)))[:size]
        return held, pick.rng.choice([*held, pick.text(1)])

    first = Function(
        touch,
        f"{order}, {key}",
        f"Return {order} with {key} moved or added to the end, cut to its last {size}.",
        f"return ([x for x in {order} if x != {key}] + [{key}])[-{size}:]",
        used,
        (([], pick.text(1)),),
        f"return {order} + [{key}]",
    )
    second = Function(
        hits,
        xs,
        f"Return the cost of using {xs} one by one: 1 for one that is kept, {cost} for one that is not. "
        f"What is kept follows from {touch}, starting with nothing.",
        f"kept, total = [], 0\nfor x in {xs}:\n    total += 1 if x in kept else {cost}\n"
        f"    kept = {touch}(kept, x)\nreturn total",
        lambda: (keys(),),
        (([],),),
        f"return len({xs}) * {cost}",
    )
    return first, second


@family(3, "intervals that meet, and how many do", TIMES, ROWS)
def clashes(pick: Pick) -> Pair:
    meet, a, b = pick.name(TIMES, "meet", "touch"), pick.word(NUMBER), pick.word(NUMBER)
    count, xs = pick.name(ROWS, "count", "check"), pick.word(LIST)
    gap, worth = pick.number(1, 9), pick.number(2, 30)

    def span() -> tuple[int, int]:
        start = pick.integer(0, 30)
        return start, start + pick.integer(1, 12)

    def close() -> tuple[Any, ...]:
        one = span()
        start = one[1] + pick.rng.choice([gap, gap - 1, gap + 1, -1])
        other = start, start + pick.integer(1, 9)
        return (one, other) if pick.integer(0, 1) else (other, one)

    first = Function(
        meet,
        f"{a}, {b}",
        f"Return whether fewer than {gap} lie between {a} and {b}, both pairs of start and end, in either order.",
        f"return {a}[0] - {b}[1] < {gap} and {b}[0] - {a}[1] < {gap}",
        close,
        (((1, 2), (2 + gap, 30)), ((2 + gap - 1, 30), (1, 2)), ((0, 50), (5, 6)), ((2 + gap, 30), (1, 2))),
        f"return {a} == {b}",
    )
    second = Function(
        count,
        xs,
        f"Return {worth} for each two of {xs} that meet by {meet}, added up.",
        f"total = 0\nfor i, one in enumerate({xs}):\n    for other in {xs}[:i]:\n        if {meet}(one, other):\n"
        f"            total += {worth}\nreturn total",
        lambda: ([span() for _ in range(pick.integer(2, 4))],),
        (([],), ([(0, 1), (0, 1), (0, 1)],), ([(0, 1), (90, 99)],)),
        f"return len({xs}) * {worth}",
    )
    return first, second


@family(3, "a product of rows, applied to a matrix", AMOUNTS, ROWS)
def matrix(pick: Pick) -> Pair:
    dot, a, b = pick.name(AMOUNTS, "weigh", "mix"), pick.word(LIST), pick.word(LIST)
    apply, x, y = pick.name(ROWS, "apply", "score"), pick.word(ROWS), pick.word(LIST)
    offset, low = pick.number(2, 30), pick.number(5, 60)

    def vector(size: int) -> list[int]:
        return [pick.integer(-6, 9) for _ in range(size)]

    def draw() -> tuple[Any, ...]:
        size = pick.integer(2, 3)
        return [vector(size) for _ in range(pick.integer(1, 3))], vector(size)

    first = Function(
        dot,
        f"{a}, {b}",
        f"Return {offset} plus the sum of the products of {a} and {b}, place by place.",
        f"return {offset} + sum(x * y for x, y in zip({a}, {b}))",
        lambda: (vector(3), vector(3)),
        (([], []),),
        f"return sum({a}) + {offset}",
    )
    second = Function(
        apply,
        f"{x}, {y}",
        f"Return {dot} of each row of {x} with {y}, where less than {low} counts as 0.",
        f"out = []\nfor row in {x}:\n    value = {dot}(row, {y})\n    out.append(value if value >= {low} else 0)\n"
        "return out",
        draw,
        (([], [1]), ([[low - offset, 0], [low - offset - 1, 0]], [1, 1])),
        f"return [0 for row in {x}]",
    )
    return first, second


@family(3, "a check digit, and codes that carry it", CODES, CODES)
def digit(pick: Pick) -> Pair:
    make, x = pick.name(CODES, "digit", "seal"), pick.word(TEXT)
    valid, y = pick.name(CODES, "valid", "trust"), pick.word(TEXT)
    factor, size = pick.number(2, 9), pick.number(5, 10)
    mark = pick.mark()

    def code() -> str:
        return "".join(str(pick.integer(0, 9)) for _ in range(pick.integer(3, 6)))

    def signed() -> tuple[str]:
        digits = code()
        right = sum(int(c) * (factor if i % 2 else 1) for i, c in enumerate(digits)) % size
        return (f"{digits}{mark}{right if pick.integer(0, 1) else (right + 1) % size}",)

    first = Function(
        make,
        x,
        f"Return the sum of the digits of {x}, every second one times {factor}, as remainder by {size}.",
        f"total = 0\nfor i, c in enumerate({x}):\n    total += int(c) * ({factor} if i % 2 else 1)\n"
        f"return total % {size}",
        lambda: (code(),),
        (("",),),
        f"return len({x}) % {size}",
    )
    second = Function(
        valid,
        y,
        f"Return whether the number after {show(mark)} in {y} is what {make} gives for what stands before it.",
        f"code, check = {y}.split({show(mark)})\nreturn {make}(code) == int(check)",
        signed,
        wrong=f"return {show(mark)} in {y}",
    )
    return first, second


@family(3, "widths of columns, and a table laid out", ROWS, ROWS)
def columns(pick: Pick) -> Pair:
    widths, rows = pick.name(ROWS, "widths", "measure"), pick.word(ROWS)
    lay, lines = pick.name(ROWS, "lay", "draw"), pick.word(ROWS)
    extra, mark = pick.number(1, 5), pick.mark(single=True)
    side, method = pick.choose(("right", "ljust"), ("left", "rjust"))

    def cells() -> tuple[Any, ...]:
        return ([[pick.text(1) for _ in range(2)] for _ in range(pick.integer(2, 3))],)

    first = Function(
        widths,
        rows,
        f"Return for each column of {rows} the length of its longest text plus {extra}.",
        f"return [max(len(cell) for cell in column) + {extra} for column in zip(*{rows})]",
        cells,
        (([],),),
        f"return [len(cell) for cell in {rows}[0]]",
    )
    second = Function(
        lay,
        lines,
        f"Return each row of {lines} as one text: its cells, each filled with {show(mark)} on the {side} "
        f"to the width that {widths} gives.",
        f"sizes = {widths}({lines})\n"
        f'return ["".join(cell.{method}(size, {show(mark)}) for cell, size in zip(row, sizes)) for row in {lines}]',
        cells,
        (([],),),
        f'return ["".join(row) for row in {lines}]',
    )
    return first, second


@family(3, "neighbours in a graph, and steps between places", PLACES, PLACES, unseen=True)
def roads(pick: Pick) -> Pair:
    near, links, x = pick.name(PLACES, "near", "around"), pick.word(LIST), pick.word(TEXT)
    hops, y, start, end = pick.name(PLACES, "hops", "reach"), pick.word(LIST), pick.word(TEXT), pick.word(TEXT)
    most, lost = pick.number(2, 5), pick.number(20, 90)

    chain = list(pairwise("abcdefg"[: most + 2]))  # one step longer than allowed

    def net() -> list[tuple[str, str]]:
        names = pick.rng.sample("abcdefg", most + 2)
        links = list(pairwise(names))
        return [*links[: pick.integer(2, len(links))], (pick.rng.choice(names), names[0])]

    def trip() -> tuple[Any, ...]:
        links = net()
        names = sorted({name for link in links for name in link})
        return links, links[0][0], pick.rng.choice([*names, "z"])

    def place() -> tuple[Any, ...]:
        links = net()
        return links, pick.rng.choice(links)[0]

    first = Function(
        near,
        f"{links}, {x}",
        f"Return the set of all that the pairs in {links} join to {x}, in either direction.",
        f"return {{b for a, b in {links} if a == {x}}} | {{a for a, b in {links} if b == {x}}}",
        place,
        (([], "a"),),
        f"return {{b for a, b in {links} if a == {x}}}",
    )
    second = Function(
        hops,
        f"{y}, {start}, {end}",
        f"Return how many steps of {near} over {y} lead from {start} to {end}, or {lost} if {most} are not enough.",
        f"seen = {{{start}}}\nfor steps in range({most} + 1):\n    if {end} in seen:\n        return steps\n"
        f"    seen |= {{name for one in seen for name in {near}({y}, one)}}\nreturn {lost}",
        trip,
        (([], "a", "a"), (chain, "a", chain[-1][1]), (chain, "a", chain[-2][1]), (chain, chain[-2][1], "a")),
        f"return {lost}",
    )
    return first, second
