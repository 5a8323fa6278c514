"""Which engine a rollout goes to: groups stay together, load is even, and engines come and go."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from etude.core.errors import EtudeError
from etude.policies.placement import Placement


def test_groups_stay_together_and_the_emptiest_engine_takes_the_next() -> None:
    placement = Placement(range(4))
    chosen = {group: [placement.begin(str(group)) for _ in range(8)] for group in range(16)}
    assert all(len(set(names)) == 1 for names in chosen.values())
    assert set(placement.in_flight.values()) == {32}


def test_counts_agree_with_a_plain_list_whatever_happens() -> None:
    chance, placement, there = random.Random(0), Placement(range(3)), list[tuple[int, str]]()
    names = {0, 1, 2}
    for _ in range(3000):
        event = chance.random()
        if event < 0.5:
            group = str(chance.randrange(40))
            there.append((placement.begin(group), group))
        elif event < 0.9 and there:
            name, _ = there.pop(chance.randrange(len(there)))
            placement.end(name)
        elif event < 0.94:
            names.add(new := max(names) + 1)
            placement.add(new)
        elif event < 0.97 and len(names) > 1:
            names.remove(gone := chance.choice(sorted(names)))
            placement.remove(gone)
        elif there:
            place = chance.randrange(len(there))
            name, group = there[place]
            there[place] = (placement.moved(name, group), group)
            assert there[place][0] in names
        counts = Counter(name for name, _ in there)
        assert placement.in_flight == {name: counts[name] for name in names}
        assert all(placement.leaving(name) == count for name, count in counts.items() if name not in names)


def test_an_engine_that_does_not_exist_and_the_last_one_cannot_be_removed() -> None:
    placement = Placement(["a"])
    with pytest.raises(EtudeError, match="no engine b"):
        placement.remove("b")
    with pytest.raises(EtudeError, match="the only one"):
        placement.remove("a")
    with pytest.raises(EtudeError, match="there already"):
        placement.add("a")
