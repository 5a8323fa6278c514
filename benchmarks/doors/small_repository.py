"""Writes a small Python package with a history: 10 modules, 20 functions, 60 tests, 20 commits, nothing to download.

    python benchmarks/doors/small_repository.py shop

Every commit adds one function and its three tests, so that the three default origins of `etude tasks make` (deletion,
bug, commit) find something. The same folder name gives the same commits.
"""

from __future__ import annotations

import argparse
import os
import subprocess
from pathlib import Path

PROJECT = """[project]
name = "{name}"
version = "0.1"
requires-python = ">=3.11"

[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[tool.setuptools.packages.find]
where = ["src"]
"""

# module, subject of the commit, function, and what three tests say of it: (a name, an assertion)
COMMITS: list[tuple[str, str, str, list[tuple[str, str]]]] = [
    (
        "money",
        "Add parse_amount, which reads an amount of money into cents",
        '''def parse_amount(text):
    """Cents of an amount such as "12.50" or "-3"; ValueError with more than two digits behind the point."""
    sign = -1 if text.startswith("-") else 1
    whole, _, part = text.lstrip("-").partition(".")
    if len(part) > 2:
        raise ValueError("more than two digits behind the point")
    return sign * (int(whole) * 100 + int(part.ljust(2, "0")))
''',
        [
            ("whole", 'parse_amount("7") == 700'),
            ("one_digit", 'parse_amount("12.5") == 1250'),
            ("negative", 'parse_amount("-3.25") == -325'),
        ],
    ),
    (
        "cart",
        "Add merge_lines, which joins lines of a cart with one name",
        '''def merge_lines(lines):
    """Pairs of name and number, each name once in the order of its first line; names without a number left go."""
    total = {}
    for name, number in lines:
        total[name] = total.get(name, 0) + number
    return [(name, number) for name, number in total.items() if number > 0]
''',
        [
            ("sums", 'merge_lines([("tea", 1), ("tea", 2)]) == [("tea", 3)]'),
            ("keeps_order", 'merge_lines([("b", 1), ("a", 1), ("b", 1)]) == [("b", 2), ("a", 1)]'),
            ("drops_nothing_left", 'merge_lines([("tea", 1), ("tea", -1), ("jam", 2)]) == [("jam", 2)]'),
        ],
    ),
    (
        "text",
        "Add slug, the form of a title that an address can hold",
        '''def slug(title):
    """Lower-case letters and digits of a title, with one hyphen for whatever lies between them."""
    words, word = [], ""
    for letter in title.lower():
        if letter.isalnum():
            word += letter
        elif word:
            words.append(word)
            word = ""
    return "-".join([*words, word] if word else words)
''',
        [
            ("words", 'slug("Green Tea") == "green-tea"'),
            ("marks", 'slug("  Tea & jam, 2 for 1! ") == "tea-jam-2-for-1"'),
            ("nothing", 'slug("?!") == ""'),
        ],
    ),
    (
        "dates",
        "Add is_leap for years with 29 days in February",
        '''def is_leap(year):
    """Whether February of a year has 29 days."""
    if year % 400 == 0:
        return True
    return year % 4 == 0 and year % 100 != 0
''',
        [
            ("fourth", "is_leap(2024) and not is_leap(2023)"),
            ("century", "not is_leap(1900)"),
            ("fourth_century", "is_leap(2000)"),
        ],
    ),
    (
        "stock",
        "Add reserve, which takes articles out of stock",
        '''def reserve(stock, name, number):
    """A copy of the stock with that many fewer; KeyError for an unknown name, ValueError where too few are left."""
    if name not in stock:
        raise KeyError(name)
    left = stock[name] - number
    if left < 0:
        raise ValueError("too few are left")
    changed = dict(stock)
    changed[name] = left
    return changed
''',
        [
            ("takes", 'reserve({"tea": 5, "jam": 1}, "tea", 2) == {"tea": 3, "jam": 1}'),
            ("takes_all", 'reserve({"tea": 5}, "tea", 5) == {"tea": 0}'),
            ("others_stay", 'reserve({"tea": 1, "jam": 4}, "jam", 3) == {"tea": 1, "jam": 1}'),
        ],
    ),
    (
        "prices",
        "Add discount, which takes off a share from a number of articles on",
        '''def discount(cents, number, least=10, percent=5):
    """Price of that many articles; from `least` on the share is taken off, rounded down in favour of the shop."""
    whole = cents * number
    if number < least:
        return whole
    return whole - whole * percent // 100
''',
        [
            ("below", "discount(100, 9) == 900"),
            ("at_least", "discount(100, 10) == 950"),
            ("rounded", "discount(33, 10, percent=7) == 307"),
        ],
    ),
    (
        "codes",
        "Add check_digit for article numbers",
        '''def check_digit(digits):
    """The digit that makes the weighted sum of all a multiple of ten; weights are 1 and 3 in turn."""
    total = 0
    for place, digit in enumerate(digits):
        total += int(digit) * (3 if place % 2 else 1)
    return (10 - total % 10) % 10
''',
        [
            ("book", 'check_digit("978030640615") == 7'),
            ("zero", 'check_digit("0000") == 0'),
            ("weights", 'check_digit("12") == 3'),
        ],
    ),
    (
        "orders",
        "Add next_state, the way of an order",
        '''def next_state(state, event):
    """The state of an order after an event; ValueError where the event cannot happen in that state."""
    ways = {
        ("new", "paid"): "paid",
        ("new", "cancelled"): "closed",
        ("paid", "sent"): "sent",
        ("paid", "cancelled"): "refunded",
        ("sent", "arrived"): "closed",
    }
    if (state, event) not in ways:
        raise ValueError(f"{event} cannot happen to an order that is {state}")
    return ways[state, event]
''',
        [
            ("paid", 'next_state("new", "paid") == "paid"'),
            ("refund", 'next_state("paid", "cancelled") == "refunded"'),
            ("arrived", 'next_state("sent", "arrived") == "closed"'),
        ],
    ),
    (
        "pages",
        "Add page_of, which cuts a list into pages",
        '''def page_of(items, number, size=10):
    """The items of a page, counted from one; ValueError for a page that cannot be."""
    if number < 1 or size < 1:
        raise ValueError("pages and their sizes begin at one")
    start = (number - 1) * size
    return items[start : start + size]
''',
        [
            ("first", "page_of(list(range(25)), 1) == list(range(10))"),
            ("last", "page_of(list(range(25)), 3) == [20, 21, 22, 23, 24]"),
            ("size", "page_of([1, 2, 3, 4], 2, size=3) == [4]"),
        ],
    ),
    (
        "search",
        "Add rank, which orders articles by how well they match",
        '''def rank(names, words):
    """Names that hold at least one of the words, those with more of them first, then by the alphabet."""
    wanted = {word.lower() for word in words}
    found = []
    for name in names:
        hits = len(wanted.intersection(name.lower().split()))
        if hits:
            found.append((-hits, name))
    return [name for _, name in sorted(found)]
''',
        [
            ("more_first", 'rank(["green jam", "green tea"], ["tea", "green"]) == ["green tea", "green jam"]'),
            ("alphabet", 'rank(["tea b", "tea a"], ["TEA"]) == ["tea a", "tea b"]'),
            ("no_hit", 'rank(["jam"], ["tea"]) == []'),
        ],
    ),
    (
        "money",
        "Add format_amount, the way back from cents",
        '''def format_amount(cents):
    """Cents as text with two digits behind the point."""
    sign = "-" if cents < 0 else ""
    whole, part = divmod(abs(cents), 100)
    return f"{sign}{whole}.{part:02d}"
''',
        [
            ("two_digits", 'format_amount(1205) == "12.05"'),
            ("below_one", 'format_amount(7) == "0.07"'),
            ("negative", 'format_amount(-325) == "-3.25"'),
        ],
    ),
    (
        "cart",
        "Add total, the price of all lines of a cart",
        '''def total(lines, prices, shipping=490, free_from=5000):
    """Cents of a cart with its shipping, which is free from an amount on; an empty cart costs nothing."""
    if not lines:
        return 0
    amount = sum(prices[name] * number for name, number in lines)
    return amount if amount >= free_from else amount + shipping
''',
        [
            ("ships", 'total([("tea", 2)], {"tea": 300}) == 1090'),
            ("free", 'total([("tea", 10)], {"tea": 500}) == 5000'),
            ("empty", "total([], {}) == 0"),
        ],
    ),
    (
        "text",
        "Add shorten, which cuts a text at a word",
        '''def shorten(text, most):
    """The text in at most that many letters, cut behind a word and ended by three points."""
    if len(text) <= most:
        return text
    kept = text[: most - 2].rpartition(" ")[0]
    return kept.rstrip(" ,.") + "..."
''',
        [
            ("fits", 'shorten("green tea", 9) == "green tea"'),
            ("cut", 'shorten("green tea and jam", 14) == "green tea..."'),
            ("marks", 'shorten("tea, jam and more", 9) == "tea..."'),
        ],
    ),
    (
        "dates",
        "Add days_in, the number of days of a month",
        '''def days_in(year, month):
    """Days of a month; ValueError for a month that is none."""
    if not 1 <= month <= 12:
        raise ValueError("a month is 1 to 12")
    if month == 2:
        return 29 if is_leap(year) else 28
    return 30 if month in (4, 6, 9, 11) else 31
''',
        [
            ("february", "days_in(2024, 2) == 29 and days_in(2023, 2) == 28"),
            ("short", "[days_in(2023, month) for month in (4, 6, 9, 11)] == [30] * 4"),
            ("long", "[days_in(2023, month) for month in (1, 7, 8, 12)] == [31] * 4"),
        ],
    ),
    (
        "stock",
        "Add missing, what has to be ordered again",
        '''def missing(stock, wanted):
    """How many of each wanted article are not in stock; articles of which there are enough are left out."""
    found = {}
    for name, number in wanted.items():
        short = number - stock.get(name, 0)
        if short > 0:
            found[name] = short
    return found
''',
        [
            ("short", 'missing({"tea": 2}, {"tea": 5}) == {"tea": 3}'),
            ("unknown", 'missing({}, {"jam": 1}) == {"jam": 1}'),
            ("enough", 'missing({"tea": 2}, {"tea": 2}) == {}'),
        ],
    ),
    (
        "prices",
        "Add with_tax, net and tax of a price",
        '''def with_tax(net, percent=19):
    """Net cents, tax and what is to be paid; half a cent of tax counts as a whole one."""
    tax = (net * percent + 50) // 100
    return net, tax, net + tax
''',
        [
            ("normal", "with_tax(1000) == (1000, 190, 1190)"),
            ("half", "with_tax(50, 7) == (50, 4, 54)"),
            ("down", "with_tax(7, 7) == (7, 0, 7)"),
        ],
    ),
    (
        "codes",
        "Add is_valid, which checks an article number",
        '''def is_valid(code):
    """Whether a code of 13 digits, hyphens aside, ends with its check digit."""
    digits = code.replace("-", "")
    if len(digits) != 13 or not digits.isdigit():
        return False
    return check_digit(digits[:-1]) == int(digits[-1])
''',
        [
            ("right", 'is_valid("978-0-306-40615-7")'),
            ("wrong_digit", 'not is_valid("9780306406158")'),
            ("too_short", 'not is_valid("97803064061") and not is_valid("x780306406157")'),
        ],
    ),
    (
        "orders",
        "Add overdue, orders that wait for too long",
        '''def overdue(orders, today, days=14):
    """Names of the orders that are paid and not sent for more than so many days, the oldest first."""
    late = []
    for name, state, day in orders:
        if state == "paid" and today - day > days:
            late.append((day, name))
    return [name for _, name in sorted(late)]
''',
        [
            ("oldest_first", 'overdue([("b", "paid", 5), ("a", "paid", 9)], 30) == ["b", "a"]'),
            ("last_day", 'overdue([("a", "paid", 1)], 15) == []'),
            ("sent", 'overdue([("a", "sent", 0), ("b", "paid", 0)], 20, days=19) == ["b"]'),
        ],
    ),
    (
        "pages",
        "Add page_numbers, which links are shown below a list",
        '''def page_numbers(current, last, around=1):
    """First, last and neighbouring pages in order; None stands where some are left out."""
    near = range(current - around, current + around + 1)
    shown = sorted({1, last, *(number for number in near if 1 <= number <= last)})
    found = []
    for number in shown:
        if found and number - found[-1] > 1:
            found.append(None)
        found.append(number)
    return found
''',
        [
            ("middle", "page_numbers(5, 9) == [1, None, 4, 5, 6, None, 9]"),
            ("few", "page_numbers(2, 3) == [1, 2, 3]"),
            ("wider", "page_numbers(1, 9, around=2) == [1, 2, 3, None, 9]"),
        ],
    ),
    (
        "search",
        "Add completions, what somebody may mean by a few letters",
        '''def completions(names, letters, most=3):
    """Names that begin with the letters, whatever their case, the shortest first; nothing for no letters."""
    if not letters:
        return []
    start = letters.lower()
    found = [name for name in names if name.lower().startswith(start)]
    return sorted(found, key=lambda name: (len(name), name))[:most]
''',
        [
            ("shortest_first", 'completions(["Teapot", "tea", "jam"], "TE") == ["tea", "Teapot"]'),
            ("most", 'completions(["ab", "ac", "ad", "ae"], "a") == ["ab", "ac", "ad"]'),
            ("no_letters", 'completions(["tea"], "") == []'),
        ],
    ),
]


def write_repository(folder: Path) -> None:
    """The package in a new git checkout at `folder`, named after it."""
    name = folder.name
    package, tests = folder / "src" / name, folder / "tests"
    package.mkdir(parents=True)
    tests.mkdir()
    (folder / "pyproject.toml").write_text(PROJECT.format(name=name))
    (folder / ".gitignore").write_text("__pycache__/\n*.egg-info/\n")
    (package / "__init__.py").write_text(f'"""Parts of a {name}."""\n')
    _git(folder, 0, "init", "--quiet", "--initial-branch=main")
    for number, (module, subject, function, cases) in enumerate(COMMITS):
        code, checks = package / f"{module}.py", tests / f"test_{module}.py"
        called = function.partition("(")[0].removeprefix("def ")
        body = code.read_text() if code.exists() else f'"""{module.capitalize()} of the {name}."""\n'
        code.write_text(f"{body}\n\n{function}")
        before = checks.read_text() if checks.exists() else f"from {name} import {module}\n"
        said = [f"def test_{called}_{what}():\n    assert {_qualified(line, called, module)}\n" for what, line in cases]
        checks.write_text("\n\n".join([before, *said]))
        _git(folder, number, "add", "--all")
        _git(folder, number, "commit", "--quiet", "--message", subject)


def _qualified(line: str, function: str, module: str) -> str:
    return line.replace(f"{function}(", f"{module}.{function}(")


def _git(folder: Path, number: int, *words: str) -> None:
    """Git with no settings but ours: an author of its own, and a day for each commit."""
    day = f"2026-01-{number + 1:02d}T12:00:00+00:00"
    who = {f"GIT_{role}_{what}": value for role in ("AUTHOR", "COMMITTER") for what, value in _AUTHOR.items()}
    when = {"GIT_AUTHOR_DATE": day, "GIT_COMMITTER_DATE": day}
    alone = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", *words], cwd=folder, check=True, timeout=60, env=os.environ | who | when | alone)


_AUTHOR = {"NAME": "A. Shopkeeper", "EMAIL": "shop@example.org"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a new folder; its name is the package's")
    folder = parser.parse_args().folder.absolute()
    write_repository(folder)
    print(f"{folder.name}: {len(COMMITS)} commits, {sum(len(cases) for *_, cases in COMMITS)} tests")


if __name__ == "__main__":
    main()
