"""An assertion whose answer is withheld: what the test process records there, and how the grader compares it.

The test process is given the number of a site and nothing else of it. Plain data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

# eq to regex_not: the recorded value against what the test names; finds: the recorded pattern in a text of the test's;
# pair: two recorded values against each other; true: the truth of the recorded value; raises: the recorded exception.
# js_same, js_alike: strict and loose equality of JavaScript with the reference's own value.
# fmt: off
Operator = Literal[
    "eq", "ne", "is", "is_not", "lt", "le", "gt", "ge", "in", "not_in", "has", "has_not", "starts", "ends",
    "approx", "almost", "same_items", "regex", "regex_not", "finds", "finds_not", "pair", "true", "false", "raises",
    "js_same", "js_alike",
]
# fmt: on
MIRRORED: Final[dict[Operator, Operator]] = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}
OPPOSITE: Final[dict[Operator, Operator]] = {
    **{"eq": "ne", "is": "is_not", "in": "not_in", "has": "has_not", "true": "false"},
    **{"ne": "eq", "is_not": "is", "not_in": "in", "has_not": "has", "false": "true"},
}


class _Pinned:
    """The place of an expected value that the source does not spell: the reference's own value stands for it."""

    def __repr__(self) -> str:
        return "PINNED"


PINNED: Final = _Pinned()


@dataclass(frozen=True)
class Site:
    """One assertion."""

    number: int  # within its file
    owner: str  # the test or helper that it stands in: `Class.method` or `function`
    operator: Operator
    expected: Any = PINNED
    inner: Operator = "eq"  # how the two values of a pair are compared
    options: tuple[tuple[str, Any], ...] = ()  # of approx, almost and raises
    exposed: bool = False  # the process can find the expected value elsewhere: it is worth nothing

    @property
    def is_boolean(self) -> bool:
        return self.operator in ("true", "false")

    @property
    def is_javascript(self) -> bool:
        """Whether its values are compared as JavaScript does."""
        return not {"js_same", "js_alike"}.isdisjoint((self.operator, self.inner))

    def option(self, name: str) -> Any:
        return dict(self.options).get(name)
