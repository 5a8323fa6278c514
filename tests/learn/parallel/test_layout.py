"""Layouts: numbers that fit each other, or a sentence."""

from __future__ import annotations

import pytest

from etude.core.cluster_settings import LearnerRanks
from etude.core.errors import EtudeError
from etude.learn.parallel.layout import Layout


def test_a_layout_from_a_recipe_takes_the_ranks_that_are_left() -> None:
    assert Layout.of(LearnerRanks()) == Layout()
    assert Layout.of(LearnerRanks(ranks=8, replicate=2, context=2)) == Layout(8, 2, 2, 1, 2)
    layout = Layout.of(LearnerRanks(ranks=8, expert=8, context=2))
    assert (layout.shard, layout.sharing, layout.data) == (4, 8, 4)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (LearnerRanks(ranks=4, shard=3), "replicate \\* shard \\* context is 1 \\* 3 \\* 1 = 3"),
        (LearnerRanks(ranks=3, replicate=2), "cluster.learner.ranks is 3"),
        (LearnerRanks(ranks=4, expert=3), "cluster.learner.expert is 3, which does not divide the 4 ranks"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(settings: LearnerRanks, sentence: str) -> None:
    with pytest.raises(EtudeError, match=sentence):
        Layout.of(settings)
