"""Level 1: text. One expression that cleans, joins, pads, cuts or counts."""

from __future__ import annotations

from typing import Any

from etude.forge.katas.draft import Function, Pick, family, show
from etude.forge.katas.vocabulary import CODES, NUMBER, TEXT, TIMES, TITLES


@family(1, "titles turned into links", TITLES)
def slug(pick: Pick) -> Function:
    name, x = pick.name(TITLES, "clean", "link", "plain"), pick.word(TEXT)
    mark = show(pick.mark())
    case, method = pick.choose(("lower", "lower"), ("upper", "upper"))
    doc, body = pick.choose(
        (
            f"Return {x} in {case} case with {mark} for each space.",
            f'return {x}.{method}().replace(" ", {mark})',
        ),
        (
            f"Return the words of {x} in {case} case, joined by {mark}.",
            f"return {mark}.join({x}.{method}().split())",
        ),
    )
    gap = "  " if "split" in body else " "

    def draw() -> tuple[Any, ...]:
        return (pick.text(2).title() + gap + pick.text(pick.integer(1, 2)),)

    return Function(name, x, doc, body, draw, wrong=f"return {x}.{method}()")


@family(1, "first or last letters of words", TITLES)
def initials(pick: Pick) -> Function:
    name, x = pick.name(TITLES, "short", "brief", "sign"), pick.word(TEXT)
    mark = show(pick.mark())
    which, index = pick.choose(("first", 0), ("last", -1))
    doc, body = pick.choose(
        (
            f"Return the {which} letters of the words of {x}, joined by {mark}.",
            f"return {mark}.join(word[{index}] for word in {x}.split())",
        ),
        (
            f"Return the {which} letters of the words of {x}, each followed by {mark}.",
            f'return "".join(word[{index}] + {mark} for word in {x}.split())',
        ),
    )
    return Function(name, x, doc, body, lambda: (pick.text(pick.integer(2, 4)),), (("",),), f"return {x}[{index}]")


@family(1, "text filled up to a width", CODES)
def pad(pick: Pick) -> Function:
    name, x = pick.name(CODES, "pad", "widen", "fill"), pick.word(TEXT)
    (width, head), mark = pick.constant(7, 20, CODES), show(pick.mark(single=True))
    side, method = pick.choose(("left", "rjust"), ("right", "ljust"))
    doc = f"Return {x} filled with {mark} on the {side} to {width} characters."
    body = f"return {x}.{method}({width}, {mark})"
    return Function(name, x, doc, body, lambda: (pick.text(pick.integer(1, 2), ""),), (("",),), f"return {x}", head)


@family(1, "a text and a number put into a pattern", TITLES)
def caption(pick: Pick) -> Function:
    name = pick.name(TITLES, "format", "show", "print")
    x, n = pick.word(TEXT), pick.word(NUMBER)
    mark, word = pick.mark('{}"'), pick.string()
    shape = pick.choose(f"{{{x}}}{mark}{{{n}}}", f"{word} {{{x}}}{mark} {{{n}}}", f"{{{n}}} {mark} {{{x}}} {word}")
    example = shape.format(**{x: "a", n: 5})
    doc = f'Return {x} and {n} as one text: "a" and 5 give {show(example)}.'

    def draw() -> tuple[Any, ...]:
        return (pick.text(1), pick.integer(0, 99))

    return Function(name, f"{x}, {n}", doc, f'return f"{shape}"', draw, wrong=f'return f"{{{x}}} {{{n}}}"')


@family(1, "a known start or end taken off", CODES)
def trim(pick: Pick) -> Function:
    name, x = pick.name(CODES, "strip", "bare", "core"), pick.word(TEXT)
    value = pick.string() + pick.mark()
    where, method = pick.choose(("start", "removeprefix"), ("end", "removesuffix"))
    doc = f"Return {x} without {show(value)} at its {where}, if it is there."
    body = f"return {x}.{method}({show(value)})"

    def draw() -> tuple[str, ...]:
        word = pick.text(1)
        return (pick.rng.choice([value + word, word + value, value + word + value]),)

    edges = ((value + value,), (value,), (value[:-1],))
    return Function(name, x, doc, body, draw, edges, f'return {x}.replace({show(value)}, "")')


@family(1, "letters of a set counted or left out", TITLES)
def letters(pick: Pick) -> Function:
    name, x = pick.name(TITLES, "count", "weigh", "rate"), pick.word(TEXT)
    few = show(pick.letters(4))
    doc, body = pick.choose(
        (f"Return how many letters of {x} are in {few}.", f"return sum(c in {few} for c in {x})"),
        (f"Return how many letters of {x} are not in {few}.", f"return sum(c not in {few} for c in {x})"),
        (f"Return {x} without the letters in {few}.", f'return "".join(c for c in {x} if c not in {few})'),
    )

    def draw() -> tuple[Any, ...]:
        return ("".join(pick.rng.choice(few[1:-1] * 2 + "aeiorst") for _ in range(pick.integer(4, 9))),)

    return Function(name, x, doc, body, draw, (("",),), f"return len({x})")


@family(1, "text cut to size and marked", TITLES)
def shorten(pick: Pick) -> Function:
    name, x = pick.name(TITLES, "cut", "crop", "fit"), pick.word(TEXT)
    (size, head), mark = pick.constant(3, 9, TITLES), show(pick.mark())
    doc, body = pick.choose(
        (
            f"Return the first {size} characters of {x}, then {mark}.",
            f"return {x}[:{size}] + {mark}",
        ),
        (
            f"Return the last {size} characters of {x}, with {mark} before them.",
            f"return {mark} + {x}[-{size}:]",
        ),
        (
            f"Return {x} without its first {size} characters, then {mark}.",
            f"return {x}[{size}:] + {mark}",
        ),
    )
    return Function(name, x, doc, body, lambda: (pick.text(3, ""),), (("ab",),), f"return {x}[:{size}]", head)


@family(1, "parts between separators", CODES)
def parts(pick: Pick) -> Function:
    name, x = pick.name(CODES, "split", "read", "part"), pick.word(TEXT)
    mark = pick.mark()
    sign = show(mark)
    doc, body = pick.choose(
        (f"Return the part of {x} after the last {sign}.", f"return {x}.split({sign})[-1]"),
        (f"Return the part of {x} before the first {sign}.", f"return {x}.split({sign})[0]"),
        (f"Return how many parts {x} has between its {sign}.", f"return len({x}.split({sign}))"),
        (
            f"Return {x} with its parts between {sign} in reverse order.",
            f"return {sign}.join(reversed({x}.split({sign})))",
        ),
    )
    return Function(name, x, doc, body, lambda: (pick.text(pick.integer(2, 4), mark),), (), f"return {x}.split({sign})")


@family(1, "a count written as whole and rest", TIMES)
def clock(pick: Pick) -> Function:
    name, x = pick.name(TIMES, "show", "format", "write"), pick.word(NUMBER)
    (size, head), mark = pick.constant(10, 80, TIMES), pick.mark('{}"')
    doc, body = pick.choose(
        (
            f"Return {x} as text: how often {size} fits in it, {show(mark)}, then the rest.",
            f'return f"{{{x} // {size}}}{mark}{{{x} % {size}}}"',
        ),
        (
            f"Return {x} as text: how often {size} fits in it, {show(mark)}, then the rest with two digits.",
            f'return f"{{{x} // {size}}}{mark}{{{x} % {size}:02d}}"',
        ),
    )
    return Function(
        name, x, doc, body, lambda: (pick.integer(0, 900),), ((0,), (7,)), f'return f"{{{x}}}{mark}0"', head
    )


@family(1, "codes hidden but for a few characters", CODES, unseen=True)
def mask(pick: Pick) -> Function:
    name, x = pick.name(CODES, "mask", "hide", "cover"), pick.word(TEXT)
    size, mark = pick.number(2, 6), show(pick.mark())
    doc, body = pick.choose(
        (
            f"Return {x} with {mark} for each character but the last {size}.",
            f"return {mark} * (len({x}) - {size}) + {x}[-{size}:]",
        ),
        (
            f"Return {x} with {mark} for each character but the first {size}.",
            f"return {x}[:{size}] + {mark} * (len({x}) - {size})",
        ),
    )
    return Function(name, x, doc, body, lambda: (pick.text(2, ""),), (("a",),), f"return {mark} * len({x})")
