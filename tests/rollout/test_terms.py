"""Terms of a group: drawn from seed and number, equal after a resume, with the shares that the recipe gives."""

from __future__ import annotations

from collections import Counter

import pytest

from etude.core.errors import EtudeError
from etude.core.settings import HarnessSettings
from etude.core.terms import Terms, draw_terms


def test_terms_follow_from_seed_and_number() -> None:
    settings = HarnessSettings(effort={"high": 1, "low": 2, "medium": 1})
    drawn = [draw_terms(settings, 3, number) for number in range(2000)]
    assert drawn == [draw_terms(settings, 3, number) for number in range(2000)]
    assert drawn != [draw_terms(settings, 4, number) for number in range(2000)]
    shares = Counter(terms.effort for terms in drawn)
    assert 0.46 < shares["low"] / 2000 < 0.54 and set(shares) == {"low", "medium", "high"}
    again = HarnessSettings(effort={"low": 2, "medium": 1, "high": 1})
    assert [draw_terms(again, 3, number) for number in range(50)] == drawn[:50]


def test_without_levels_no_effort_is_stated() -> None:
    assert draw_terms(HarnessSettings(), 3, 9) == Terms()


@pytest.mark.parametrize("effort", [{"most": 1.0}, {"low": 0.0}, {"low": -1.0, "high": 2.0}, {"low": float("nan")}])
def test_levels_that_nothing_can_be_drawn_from_are_refused(effort: dict[str, float]) -> None:
    with pytest.raises(EtudeError, match=r"harness\.effort"):
        draw_terms(HarnessSettings(effort=effort), 0, 0)
