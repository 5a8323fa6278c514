"""Level 2: a loop that builds a list, a table or a number."""

from __future__ import annotations

from typing import Any

from etude.forge.katas.draft import Edges, Function, Pick, family
from etude.forge.katas.vocabulary import AMOUNTS, CODES, GOODS, LIST, MONEY, NUMBER, ROWS, TIMES, WORDLIST


@family(2, "a list cut into pieces", ROWS)
def chunks(pick: Pick) -> Function:
    name, xs = pick.name(ROWS, "group", "batch", "split"), pick.word(LIST)
    (n, head), size = pick.constant(2, 5, ROWS), int(pick.values[-1])
    rule, test = pick.choose(
        ("The last one may be shorter.", ""),
        ("A shorter rest is left out.", f"if start + {n} <= len({xs}):"),
    )
    add = f"out.append({xs}[start:start + {n}])"
    inner = f"    {test}\n        {add}" if test else f"    {add}"
    body = f"out = []\nfor start in range(0, len({xs}), {n}):\n{inner}\nreturn out"
    doc = f"Return {xs} cut into lists of {n}. {rule}"
    edges: Edges = (([],), (list(range(2 * size)),), (list(range(size + 1)),))
    return Function(name, xs, doc, body, lambda: (pick.integers(3, 9, 0, 50),), edges, f"return [{xs}]", head)


@family(2, "at most so many copies of each item", ROWS)
def copies(pick: Pick) -> Function:
    name, xs = pick.name(ROWS, "thin", "reduce", "trim"), pick.word(WORDLIST)
    n = pick.number(2, 5)
    which, order, turn = pick.choose(("first", xs, ""), ("last", f"reversed({xs})", "[::-1]"))
    doc = f"Return {xs} with only the {which} {n} copies of each kept, in the same order."
    body = f"out = []\nfor x in {order}:\n    if out.count(x) < {n}:\n        out.append(x)\nreturn out{turn}"

    def draw() -> tuple[Any, ...]:
        few = pick.texts(2, 2)
        return ([pick.rng.choice(few) for _ in range(pick.integer(n + 2, n + 5))],)

    return Function(name, xs, doc, body, draw, (([],),), f"return {xs}[:{n}]")


@family(2, "running sums within a bound", MONEY)
def balance(pick: Pick) -> Function:
    name, xs = pick.name(MONEY, "follow", "trace", "run"), pick.word(LIST)
    start, bound = pick.numbers(2, 3, 40)
    rule, step = pick.choose(
        (f"The sum never goes above {bound}.", f"total = min(total + x, {bound})"),
        ("The sum never falls below 0.", "total = max(total + x, 0)"),
    )
    doc = f"Return the running sums of {xs}, one for each, starting from {start}. {rule}"
    body = f"total = {start}\nout = []\nfor x in {xs}:\n    {step}\n    out.append(total)\nreturn out"
    edges: Edges = (([-50, 4],), ([90, -4],), ([],), ([-60, 5],))
    return Function(name, xs, doc, body, lambda: (pick.integers(3, 5, -20, 25),), edges, f"return {xs}")


@family(2, "a list sorted into a table of lists", ROWS)
def group(pick: Pick) -> Function:
    name, xs = pick.name(ROWS, "index", "sort", "divide"), pick.word(LIST)
    n, head = pick.constant(3, 12, ROWS)
    what, key = pick.choose(
        (f"their remainder by {n}", f"x % {n}"),
        (f"how often {n} fits in them", f"x // {n}"),
        (f"whether they are above {n}", f"x > {n}"),
    )
    doc = f"Return a table of the {xs} by {what}, each group in a list."
    body = f"groups = {{}}\nfor x in {xs}:\n    groups.setdefault({key}, []).append(x)\nreturn groups"
    value = int(pick.values[-1])
    edges: Edges = (([value, value + 1, 2 * value],), ([value + 1, value],), ([],))
    return Function(name, xs, doc, body, lambda: (pick.integers(3, 6, 0, 30),), edges, f"return {{0: {xs}}}", head)


@family(2, "intervals joined across small gaps", TIMES)
def merge(pick: Pick) -> Function:
    name, xs = pick.name(TIMES, "join", "merge", "unite"), pick.word(LIST)
    gap, head = pick.constant(1, 8, TIMES)
    value = int(pick.values[-1])
    doc = f"Return the pairs of {xs} sorted, those with a gap of at most {gap} between them made one."
    body = (
        f"out = []\nfor start, end in sorted({xs}):\n    if out and start - out[-1][1] <= {gap}:\n"
        "        out[-1] = (out[-1][0], max(end, out[-1][1]))\n    else:\n        out.append((start, end))\nreturn out"
    )

    def draw() -> tuple[Any, ...]:
        end, spans = pick.integer(0, 5), []
        for _ in range(pick.integer(2, 4)):
            start = max(0, end + pick.rng.choice([value, value + 1, value - 1, -2]))
            end = start + pick.integer(1, 9)
            spans.append((start, end))
        pick.rng.shuffle(spans)
        return (spans,)

    edges: Edges = (([],), ([(1, 30), (4, 6)],))
    return Function(name, xs, doc, body, draw, edges, f"return sorted({xs})", head)


@family(2, "the longest run of neighbours that pass a test", AMOUNTS)
def streak(pick: Pick) -> Function:
    name, xs = pick.name(AMOUNTS, "longest", "streak", "stretch"), pick.word(LIST)
    n = pick.number(5, 40)
    what, sign = pick.choose(("above", ">"), ("below", "<"), ("of at least", ">="))
    doc = f"Return the length of the longest run of neighbours in {xs} that are {what} {n}."
    body = (
        f"best = run = 0\nfor x in {xs}:\n    run = run + 1 if x {sign} {n} else 0\n"
        "    best = max(best, run)\nreturn best"
    )

    def draw() -> tuple[Any, ...]:
        return ([n + pick.rng.choice([-1, 0, 1, 5, -5]) for _ in range(pick.integer(4, 7))],)

    edges: Edges = (([],), ([n, n, n + 1, n + 2, n - 1],), ([n, n - 1, n - 2, n, n],))
    return Function(name, xs, doc, body, draw, edges, f"return len([x for x in {xs} if x {sign} {n}])")


@family(2, "a cache of the keys used last", GOODS)
def latest(pick: Pick) -> Function:
    name, xs = pick.name(GOODS, "cache", "remember", "store"), pick.word(WORDLIST)
    size, head = pick.constant(2, 4, GOODS)
    doc = f"Return the last {size} different {xs}, the one used last at the end."
    body = (
        f"kept = []\nfor x in {xs}:\n    if x in kept:\n        kept.remove(x)\n    kept.append(x)\n"
        f"return kept[-{size}:]"
    )

    def draw() -> tuple[Any, ...]:
        few = pick.texts(3, 5)
        return ([pick.rng.choice(few) for _ in range(pick.integer(4, 7))],)

    return Function(name, xs, doc, body, draw, (([],),), f"return {xs}[-{size}:]", head)


@family(2, "weighted digits of a code", CODES)
def checksum(pick: Pick) -> Function:
    name, x = pick.name(CODES, "check", "verify", "hash"), pick.word(CODES)
    (factor, head), size = pick.constant(2, 9, CODES), pick.number(7, 40)
    what, test = pick.choose(("second", "i % 2 == 1"), ("third", "i % 3 == 2"))
    doc = f"Return the sum of the digits of {x}, every {what} one times {factor}, as remainder by {size}."
    body = (
        f"total = 0\nfor i, digit in enumerate({x}):\n    if {test}:\n        total += int(digit) * {factor}\n"
        f"    else:\n        total += int(digit)\nreturn total % {size}"
    )

    def draw() -> tuple[Any, ...]:
        return ("".join(str(pick.integer(0, 9)) for _ in range(pick.integer(4, 8))),)

    edges: Edges = (("",), ("99999999",))
    return Function(name, x, doc, body, draw, edges, f"return sum(map(int, {x})) % {size}", head)


@family(2, "counting steps down to zero", AMOUNTS)
def steps(pick: Pick) -> Function:
    name, x = pick.name(AMOUNTS, "steps", "reduce", "count"), pick.word(NUMBER)
    divisor, less = pick.number(2, 7), pick.choose(1, 2)
    doc = (
        f"Return how many steps bring {x} below 1. A step divides by {divisor} where that leaves no rest, "
        f"and takes {less} away where it does."
    )
    body = (
        f"count = 0\nwhile {x} >= 1:\n    if {x} % {divisor} == 0:\n        {x} //= {divisor}\n    else:\n"
        f"        {x} -= {less}\n    count += 1\nreturn count"
    )
    return Function(name, x, doc, body, lambda: (pick.integer(1, 300),), ((0,), (1,)), f"return {x} // {divisor}")


@family(2, "a matrix changed along a line", ROWS)
def diagonal(pick: Pick) -> Function:
    name, x = pick.name(ROWS, "mark", "lift", "raise"), pick.word(ROWS)
    n, head = pick.constant(2, 50, AMOUNTS)
    what, place = pick.choose(
        ("on the diagonal", "out[i][i]"), ("in the first column", "out[i][0]"), ("in the last column", "out[i][-1]")
    )
    sign, word = pick.choose(("+", "added"), ("-", "taken away"))
    doc = f"Return a copy of {x}, a square list of rows, with {n} {word} {what}."
    body = f"out = [list(row) for row in {x}]\nfor i in range(len(out)):\n    {place} {sign}= {n}\nreturn out"

    def draw() -> tuple[Any, ...]:
        size = pick.integer(2, 3)
        return ([[pick.integer(0, 20) for _ in range(size)] for _ in range(size)],)

    return Function(name, x, doc, body, draw, (([],),), f"return {x}", head)


@family(2, "run-length coding", CODES, unseen=True)
def runs(pick: Pick) -> Function:
    name, x = pick.name(CODES, "pack", "press", "encode"), pick.word(CODES)
    least = pick.number(2, 4)
    doc = f"Return {x} with each run of {least} or more equal characters written as its length and the character."
    body = (
        f'out = ""\ni = 0\nwhile i < len({x}):\n    j = i\n'
        f"    while j < len({x}) and {x}[j] == {x}[i]:\n        j += 1\n"
        f"    out += str(j - i) + {x}[i] if j - i >= {least} else {x}[i:j]\n    i = j\nreturn out"
    )

    def draw() -> tuple[str]:
        few = pick.rng.sample("abcdxyz", 3)
        return ("".join(pick.rng.choice(few) * pick.integer(1, least + 2) for _ in range(pick.integer(2, 4))),)

    return Function(name, x, doc, body, draw, (("",), ("a" * 12,)), f"return {x}")
