"""Level 2: text read character by character, word by word or line by line."""

from __future__ import annotations

from typing import Any

from etude.forge.katas.draft import Edges, Function, Pick, family, show
from etude.forge.katas.vocabulary import AMOUNTS, CODES, NUMBER, ROWS, TEXT, TITLES


@family(2, "letters moved along the alphabet", CODES)
def cipher(pick: Pick) -> Function:
    name, x = pick.name(CODES, "shift", "encode", "turn"), pick.word(TEXT)
    n, head = pick.constant(2, 20, CODES)
    word, sign = pick.choose(("forward", "+"), ("back", "-"))
    doc = f"Return {x} with each small letter moved {n} {word} in the alphabet, z before a. Other characters stay."
    body = (
        f'out = ""\nfor c in {x}:\n    if "a" <= c <= "z":\n'
        f"        c = chr((ord(c) - 97 {sign} {n}) % 26 + 97)\n    out += c\nreturn out"
    )
    return Function(
        name, x, doc, body, lambda: (pick.text(2, pick.rng.choice(" -7")),), (("",), ("az",)), f"return {x}", head
    )


@family(2, "words flowed into lines", TITLES)
def wrap(pick: Pick) -> Function:
    name, x = pick.name(TITLES, "wrap", "fold", "flow"), pick.word(TEXT)
    width, head = pick.constant(8, 16, TITLES)
    doc = f"Return the words of {x} as lines of at most {width} characters, filled from the first word on."
    body = (
        f'lines = [""]\nfor word in {x}.split():\n    line = (lines[-1] + " " + word).strip()\n'
        f"    if len(line) <= {width}:\n        lines[-1] = line\n    else:\n        lines.append(word)\nreturn lines"
    )
    value = int(pick.values[-1])
    edges = (("a" * (value - 3) + " bb c",), ("a" * (value - 3) + " bbb c",))
    return Function(name, x, doc, body, lambda: (pick.text(pick.integer(3, 6)),), edges, f"return {x}.split()", head)


@family(2, "lines of keys and values, with comments", ROWS)
def settings(pick: Pick) -> Function:
    name, x = pick.name(ROWS, "read", "parse", "load"), pick.word(TEXT)
    joint = pick.mark()
    note = pick.mark(joint)
    doc = (
        f"Return the lines of {x} as a table: what stands before {show(joint)}, then what stands after it. "
        f"Lines that start with {show(note)} do not count."
    )
    body = (
        f"out = {{}}\nfor line in {x}.splitlines():\n    if not line.startswith({show(note)}):\n"
        f"        key, value = line.split({show(joint)})\n        out[key] = value\nreturn out"
    )

    def draw() -> tuple[Any, ...]:
        lines = [f"{pick.text(1)}{joint}{pick.text(1)}" for _ in range(pick.integer(1, 3))]
        lines.insert(pick.integer(0, len(lines)), note + pick.text(1))
        return ("\n".join(lines),)

    return Function(name, x, doc, body, draw, (("",),), f"return {{{x}: {show(joint)}}}")


@family(2, "how deep brackets go", TITLES)
def nesting(pick: Pick) -> Function:
    name, x = pick.name(TITLES, "depth", "measure", "probe"), pick.word(TEXT)
    start, end = pick.choose(("(", ")"), ("[", "]"), ("{", "}"), ("<", ">"))
    extra = pick.number(2, 30)
    doc = f"Return how deep {show(start)} and {show(end)} are nested in {x}, plus {extra} if one is left open."
    body = (
        f"depth = most = 0\nfor c in {x}:\n    if c == {show(start)}:\n        depth += 1\n"
        f"        most = max(most, depth)\n    elif c == {show(end)}:\n        depth -= 1\n"
        f"if depth > 0:\n    most += {extra}\nreturn most"
    )

    def draw() -> tuple[str]:
        text, depth = "", 0
        for _ in range(pick.integer(4, 9)):
            up = depth == 0 or pick.integer(0, 1)
            text, depth = text + (start if up else end), depth + (1 if up else -1)
        return (text + end * (depth if pick.integer(0, 1) else 0),)

    return Function(name, x, doc, body, draw, (("",),), f"return {x}.count({show(start)})")


@family(2, "words counted, short or long ones left out", TITLES)
def frequent(pick: Pick) -> Function:
    name, x = pick.name(TITLES, "tally", "count", "rank"), pick.word(TEXT)
    least, head = pick.constant(2, 6, AMOUNTS)
    doc, test = pick.choose(
        (f"Only words of at least {least} letters count.", f"len(word) >= {least}"),
        (f"Only words of at most {least} letters count.", f"len(word) <= {least}"),
    )
    doc = f"Return a table of how often each word stands in {x}. {doc}"
    body = f"out = {{}}\nfor word in {x}.split():\n    if {test}:\n        out[word] = out.get(word, 0) + 1\nreturn out"

    def draw() -> tuple[str]:
        few = [*pick.texts(2, 3), pick.text(2, ""), pick.text(1)[:2]]
        return (" ".join(pick.rng.choice(few) for _ in range(pick.integer(4, 6))),)

    value = int(pick.values[-1])
    edges = ((" ".join(["a" * value, "b" * (value + 1), "c" * (value - 1)]),), ("",))
    return Function(name, x, doc, body, draw, edges, "return {}", head)


@family(2, "numbers written with digits of one's own", CODES)
def base(pick: Pick) -> Function:
    name, x = pick.name(CODES, "write", "digits", "spell"), pick.word(NUMBER)
    signs = pick.letters(pick.number(3, 8))
    table = pick.word(CODES).upper()
    pick.names[-1] = table
    doc = f"Return {x} (above 0) in base {len(signs)}. The characters of {table} are its digits from 0 on."
    body = (
        f'out = ""\nwhile {x} > 0:\n    out = {table}[{x} % {len(signs)}] + out\n    {x} //= {len(signs)}\nreturn out'
    )

    def draw() -> tuple[Any, ...]:
        return (pick.integer(1, 300),)

    edges: Edges = ((len(signs),), (len(signs) - 1,), (len(signs) ** 2,))
    return Function(name, x, doc, body, draw, edges, f"return str({x})", f"{table} = {show(signs)}")


@family(2, "roman numerals with letters of one's own", CODES, unseen=True)
def numerals(pick: Pick) -> Function:
    name, x = pick.name(CODES, "value", "decode", "solve"), pick.word(TEXT)
    one, five, ten = pick.letter(), pick.letter(), pick.letter()
    table = pick.word(CODES).upper()
    pick.names[-1] = table
    rest = pick.number(4, 9)
    values = {one: 1, five: rest, ten: 2 * rest}
    doc = (
        f"Return the sum of the values that {table} gives to the letters of {x}. "
        "A value before a larger one is taken away."
    )
    body = (
        f"total = 0\nfor i, c in enumerate({x}):\n    value = {table}[c]\n"
        f"    if i + 1 < len({x}) and {table}[{x}[i + 1]] > value:\n        total -= value\n"
        "    else:\n        total += value\nreturn total"
    )

    def draw() -> tuple[Any, ...]:
        return ("".join(pick.rng.choice([one, five, ten]) for _ in range(pick.integer(2, 5))),)

    edges: Edges = (("",), (one + ten,))
    head = f"{table} = {show(values)}"
    return Function(name, x, doc, body, draw, edges, f"return sum({table}[c] for c in {x})", head)
