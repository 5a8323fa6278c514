"""Level 1: text. One expression that cleans, joins, pads, cuts or counts."""

from __future__ import annotations

from etude.forge.katas.draft import Draft, Family, Function, Pick, alone, show
from etude.forge.katas.vocabulary import CODES, NUMBER, TEXT, TIMES, TITLES


def slug(pick: Pick) -> Draft:
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
    function = Function(
        name,
        x,
        doc,
        body,
        lambda: (pick.text(2).title() + gap + pick.text(pick.integer(1, 2)),),
        wrong=f"return {x}.{method}()",
    )
    return alone(pick, TITLES, function)


def initials(pick: Pick) -> Draft:
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
    function = Function(name, x, doc, body, lambda: (pick.text(pick.integer(2, 4)),), (("",),), f"return {x}[{index}]")
    return alone(pick, TITLES, function)


def pad(pick: Pick) -> Draft:
    name, x = pick.name(CODES, "pad", "widen", "fill"), pick.word(TEXT)
    (width, head), mark = pick.constant(7, 20, CODES), show(pick.mark(single=True))
    side, method = pick.choose(("left", "rjust"), ("right", "ljust"))
    doc = f"Return {x} filled with {mark} on the {side} to {width} characters."
    body = f"return {x}.{method}({width}, {mark})"
    function = Function(name, x, doc, body, lambda: (pick.text(pick.integer(1, 2), ""),), (("",),), f"return {x}", head)
    return alone(pick, CODES, function)


def caption(pick: Pick) -> Draft:
    name = pick.name(TITLES, "format", "show", "print")
    x, n = pick.word(TEXT), pick.word(NUMBER)
    mark, word = pick.mark('{}"'), pick.string()
    shape = pick.choose(f"{{{x}}}{mark}{{{n}}}", f"{word} {{{x}}}{mark} {{{n}}}", f"{{{n}}} {mark} {{{x}}} {word}")
    example = shape.format(**{x: "a", n: 5})
    doc = f'Return {x} and {n} as one text: "a" and 5 give {show(example)}.'
    function = Function(
        name,
        f"{x}, {n}",
        doc,
        f'return f"{shape}"',
        lambda: (pick.text(1), pick.integer(0, 99)),
        wrong=f'return f"{{{x}}} {{{n}}}"',
    )
    return alone(pick, TITLES, function)


def trim(pick: Pick) -> Draft:
    name, x = pick.name(CODES, "strip", "bare", "core"), pick.word(TEXT)
    value = pick.string() + pick.mark()
    where, method = pick.choose(("start", "removeprefix"), ("end", "removesuffix"))
    doc = f"Return {x} without {show(value)} at its {where}, if it is there."
    body = f"return {x}.{method}({show(value)})"

    def draw() -> tuple[str, ...]:
        word = pick.text(1)
        return (pick.rng.choice([value + word, word + value, value + word + value]),)

    edges = ((value + value,), (value,), (value[:-1],))
    return alone(pick, CODES, Function(name, x, doc, body, draw, edges, f'return {x}.replace({show(value)}, "")'))


def letters(pick: Pick) -> Draft:
    name, x = pick.name(TITLES, "count", "weigh", "rate"), pick.word(TEXT)
    few = show(pick.letters(4))
    doc, body = pick.choose(
        (f"Return how many letters of {x} are in {few}.", f"return sum(c in {few} for c in {x})"),
        (f"Return how many letters of {x} are not in {few}.", f"return sum(c not in {few} for c in {x})"),
        (f"Return {x} without the letters in {few}.", f'return "".join(c for c in {x} if c not in {few})'),
    )
    function = Function(
        name,
        x,
        doc,
        body,
        lambda: ("".join(pick.rng.choice(few[1:-1] * 2 + "aeiorst") for _ in range(pick.integer(4, 9))),),
        (("",),),
        f"return len({x})",
    )
    return alone(pick, TITLES, function)


def shorten(pick: Pick) -> Draft:
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
    function = Function(name, x, doc, body, lambda: (pick.text(3, ""),), (("ab",),), f"return {x}[:{size}]", head)
    return alone(pick, TITLES, function)


def parts(pick: Pick) -> Draft:
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
    function = Function(
        name, x, doc, body, lambda: (pick.text(pick.integer(2, 4), mark),), (), f"return {x}.split({sign})"
    )
    return alone(pick, CODES, function)


def clock(pick: Pick) -> Draft:
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
    function = Function(
        name, x, doc, body, lambda: (pick.integer(0, 900),), ((0,), (7,)), f'return f"{{{x}}}{mark}0"', head
    )
    return alone(pick, TIMES, function)


def mask(pick: Pick) -> Draft:
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
    function = Function(name, x, doc, body, lambda: (pick.text(2, ""),), (("a",),), f"return {mark} * len({x})")
    return alone(pick, CODES, function)


FAMILIES = (
    Family("slug", 1, "titles turned into links", slug),
    Family("initials", 1, "first or last letters of words", initials),
    Family("pad", 1, "text filled up to a width", pad),
    Family("caption", 1, "a text and a number put into a pattern", caption),
    Family("trim", 1, "a known start or end taken off", trim),
    Family("letters", 1, "letters of a set counted or left out", letters),
    Family("shorten", 1, "text cut to size and marked", shorten),
    Family("parts", 1, "parts between separators", parts),
    Family("clock", 1, "a count written as whole and rest", clock),
    Family("mask", 1, "codes hidden but for a few characters", mask, unseen=True),
)
