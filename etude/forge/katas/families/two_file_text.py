"""Level 3: two functions in two files that work on text, the second on top of the first."""

from __future__ import annotations

from typing import Any

from etude.forge.katas.draft import Function, Pair, Pick, family, show
from etude.forge.katas.vocabulary import (
    AMOUNTS,
    CODES,
    GOODS,
    MONEY,
    NUMBER,
    ROWS,
    TABLE,
    TEXT,
    TIMES,
    TITLES,
    WORDLIST,
)


@family(3, "lines of names and amounts, summed for one name", ROWS, MONEY)
def ledger(pick: Pick) -> Pair:
    parse, x = pick.name(ROWS, "parse", "read"), pick.word(TEXT)
    total, xs, who = pick.name(MONEY, "total", "sum"), pick.word(WORDLIST), pick.word(TEXT)
    mark, extra = pick.mark(), pick.number(2, 30)

    def line() -> str:
        return f"{pick.text(1)}{mark}{pick.integer(1, 60)}"

    def draw() -> tuple[Any, ...]:
        lines = [line() for _ in range(pick.integer(2, 4))]
        return lines, pick.rng.choice([*(one.split(mark)[0] for one in lines), pick.text(1)])

    first = Function(
        parse,
        x,
        f"Return {x} as a pair: the name before {show(mark)} and the number after it.",
        f"name, amount = {x}.split({show(mark)})\nreturn name, int(amount)",
        lambda: (line(),),
        wrong=f"return {x}, 0",
    )
    second = Function(
        total,
        f"{xs}, {who}",
        f"Return {extra} plus the numbers of all {xs} with the name {who}, each read by {parse}.",
        f"total = {extra}\nfor line in {xs}:\n    name, amount = {parse}(line)\n    if name == {who}:\n"
        "        total += amount\nreturn total",
        draw,
        (([], pick.text(1)),),
        f"return {extra}",
    )
    return first, second


@family(3, "letters worth points, and the best word", TITLES, ROWS)
def points(pick: Pick) -> Pair:
    rate, x = pick.name(TITLES, "rate", "value"), pick.word(TEXT)
    best, xs = pick.name(ROWS, "best", "choose"), pick.word(WORDLIST)
    few, high, bound = pick.letters(4), pick.number(3, 12), pick.number(4, 20)
    what, call = pick.choose(("most", "max"), ("fewest", "min"))
    other = next(letter for letter in "aeiou" if letter not in few)

    def word() -> str:
        return "".join(pick.rng.choice(few + "aeiou") for _ in range(pick.integer(3, 6)))

    def words() -> tuple[list[str]]:
        """No two with the same points: nothing is said about which comes first."""
        found = {sum(high if letter in few else 1 for letter in one): one for one in (word() for _ in range(5))}
        return (list(found.values())[: pick.integer(2, 4)],)

    first = Function(
        rate,
        x,
        f"Return the points of {x}: {high} for each letter in {show(few)}, 1 for any other.",
        f"points = 0\nfor c in {x}:\n    points += {high} if c in {show(few)} else 1\nreturn points",
        lambda: (word(),),
        (("",),),
        f"return len({x})",
    )
    second = Function(
        best,
        xs,
        f"Return the one of {xs} with the {what} points by {rate}, among those with at least {bound}, or None.",
        f"good = [x for x in {xs} if {rate}(x) >= {bound}]\nreturn {call}(good, key={rate}) if good else None",
        words,
        (([],), ([other * bound],), ([other * (bound - 1)],)),
        f"return {xs}[0]",
    )
    return first, second


@family(3, "sizes with unit letters, and their capped sum", AMOUNTS, GOODS)
def sizes(pick: Pick) -> Pair:
    parse, x = pick.name(AMOUNTS, "read", "parse"), pick.word(TEXT)
    total, xs = pick.name(GOODS, "total", "load"), pick.word(WORDLIST)
    small, big = pick.numbers(2, 4, 60)
    a, b, most = pick.letter(), pick.letter(), pick.number(200, 900)

    def text() -> str:
        return f"{pick.integer(1, 20)}{pick.rng.choice([a, b, ''])}"

    first = Function(
        parse,
        x,
        f"Return the number in {x}, times {small} if {show(a)} follows it, times {big} if {show(b)} does.",
        f"if {x}.endswith({show(a)}):\n    return int({x}[:-1]) * {small}\nif {x}.endswith({show(b)}):\n"
        f"    return int({x}[:-1]) * {big}\nreturn int({x})",
        lambda: (text(),),
        ((f"7{a}",), (f"3{b}",), (f"9{a}",), (f"8{b}",), ("5",)),
        "return 0",
    )
    second = Function(
        total,
        xs,
        f"Return the sum of {parse} over {xs}, but at most {most}.",
        f"return min(sum({parse}(x) for x in {xs}), {most})",
        lambda: ([text() for _ in range(pick.integer(1, 4))],),
        (([],), ([f"{most}{b}"],)),
        f"return {most}",
    )
    return first, second


@family(3, "marked words found in a text, and filled in", TITLES, ROWS)
def template(pick: Pick) -> Pair:
    find, x = pick.name(TITLES, "find", "list"), pick.word(TEXT)
    fill, y, table = pick.name(ROWS, "fill", "expand"), pick.word(TEXT), pick.word(TABLE)
    mark, default = pick.mark(single=True), pick.string()

    def text() -> str:
        return " ".join(pick.rng.choice(["", mark]) + pick.text(1) for _ in range(pick.integer(2, 4)))

    def draw() -> tuple[Any, ...]:
        line = text()
        words = [word[1:] for word in line.split() if word.startswith(mark)]
        return line, {word: pick.text(1) for word in words if pick.integer(0, 2)}

    first = Function(
        find,
        x,
        f"Return the words of {x} that start with {show(mark)}, without it.",
        f"return [word[1:] for word in {x}.split() if word.startswith({show(mark)})]",
        lambda: (text(),),
        (("",),),
        f"return {x}.split()",
    )
    second = Function(
        fill,
        f"{y}, {table}",
        f"Return {y} with {show(mark)} and each word that {find} finds replaced by what {table} has for it, "
        f"or by {show(default)}.",
        f"for word in {find}({y}):\n    {y} = {y}.replace({show(mark)} + word, {table}.get(word, {show(default)}), 1)\n"
        f"return {y}",
        draw,
        (("", {}),),
        f"return {y}.replace({show(mark)}, {show(default)})",
    )
    return first, second


@family(3, "times of day, and the time between them", TIMES, TIMES)
def hours(pick: Pick) -> Pair:
    parse, x = pick.name(TIMES, "read", "minutes"), pick.word(TEXT)
    length, start, end = pick.name(TIMES, "length", "worked"), pick.word(NUMBER), pick.word(NUMBER)
    mark, rest, per = pick.mark(), pick.number(4, 50), pick.number(10, 90)
    day = pick.number(per * 20, per * 30)
    same = f"{pick.integer(0, 23)}{mark}{pick.integer(0, per - 1)}"

    def text() -> str:
        return f"{pick.integer(0, 23)}{mark}{pick.integer(0, per - 1)}"

    first = Function(
        parse,
        x,
        f"Return {x}, such as {show(f'3{mark}7')}, as one number: {per} for each before {show(mark)}, plus the rest.",
        f"hours, minutes = {x}.split({show(mark)})\nreturn int(hours) * {per} + int(minutes)",
        lambda: (text(),),
        wrong="return 0",
    )
    second = Function(
        length,
        f"{start}, {end}",
        f"Return the time from {start} to {end}, both read by {parse}, less {rest}. "
        f"If {end} is before {start}, add {day} for the next day.",
        f"length = {parse}({end}) - {parse}({start})\nif length < 0:\n    length += {day}\nreturn length - {rest}",
        lambda: (text(), text()),
        ((same, same),),
        f"return {day}",
    )
    return first, second


@family(3, "a tokeniser and a calculator", CODES, AMOUNTS)
def calc(pick: Pick) -> Pair:
    split, x = pick.name(CODES, "split", "scan"), pick.word(TEXT)
    solve, y = pick.name(AMOUNTS, "solve", "work"), pick.word(TEXT)
    plus = pick.mark("0123456789", single=True)
    minus = pick.mark(plus, single=True)
    factor = pick.number(2, 9)

    def text() -> str:
        parts = [str(pick.integer(0, 40))]
        for _ in range(pick.integer(1, 3)):
            parts += [pick.rng.choice([plus, minus]), str(pick.integer(0, 40))]
        return "".join(parts)

    first = Function(
        split,
        x,
        f"Return the numbers and signs of {x} as a list of texts; every character but a digit is a sign.",
        f'out = [""]\nfor c in {x}:\n    if c.isdigit():\n        out[-1] += c\n'
        '    else:\n        out += [c, ""]\nreturn out',
        lambda: (text(),),
        (("7",),),
        f"return list({x})",
    )
    second = Function(
        solve,
        y,
        f"Return the value of {y}, split by {split}, from left to right: {show(plus)} adds the next number, "
        f"{show(minus)} takes {factor} times the next number away.",
        f"parts = {split}({y})\ntotal = int(parts[0])\nfor sign, number in zip(parts[1::2], parts[2::2]):\n"
        f"    total += int(number) if sign == {show(plus)} else -{factor} * int(number)\nreturn total",
        lambda: (text(),),
        (("8",),),
        f"return sum(int(part) for part in {split}({y}) if part.isdigit())",
    )
    return first, second
