"""What the answers in a test are worth, guessed from its text alone: before anything has run, so that a task can choose
which tests it holds out.

What the source spells counts as it will when it is recorded; a value that the source does not spell counts little, and
whether an assertion holds counts nothing. `bits` says what it came to. Reads text, runs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from etude.tasks.grading.withheld.bits import worth
from etude.tasks.grading.withheld.compare import Record
from etude.tasks.grading.withheld.rewrite import Rewritten, rewrite
from etude.tasks.grading.withheld.sites import PINNED, Site
from etude.tasks.sandbox_side import wire_values

UNSPELLED: Final = 4.0  # bits of a value that only the reference's run tells
_VALUES: Final = ("eq", "is", "approx", "almost", "same_items", "has", "starts", "ends", "regex", "js_same", "js_alike")


def estimated_bits(source: str, tests: Collection[str], without_answers: Callable[[str], Rewritten] = rewrite) -> float:
    """Bits of the answers in these tests (`Class.method` or `function`, or as the language names them) of a file."""
    try:
        made = without_answers(source)
    except (SyntaxError, ValueError, RecursionError):
        return 0.0
    asked = [site for site in made.sites if site.owner in tests and site.operator in _VALUES and not site.exposed]
    spelled = [(site, _record(site), made.units.get(site.owner, made.text)) for site in asked if _is_spelled(site)]
    return worth(spelled) + UNSPELLED * (len(asked) - len(spelled))


def _is_spelled(site: Site) -> bool:
    return site.expected is not PINNED


def _record(site: Site) -> Record:
    return [site.number, wire_values.encode(site.expected, lambda _: ["other", ""])]
