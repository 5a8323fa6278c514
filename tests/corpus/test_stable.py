import itertools

from etude.corpus.stable_random import permuted, stable_hash, stable_share


def test_the_numbers_of_today_are_the_numbers_of_tomorrow():
    """Splits and resumed mixes depend on them: a change here breaks every corpus and run that exists."""
    assert stable_hash("a", 1) == 0x3D19_F238_4654_5F21
    assert stable_share("held-out file", "r", "p") == 0.9474054096622826
    assert [permuted(i, 7, 3) for i in range(7)] == [5, 1, 4, 0, 6, 3, 2]
    assert [permuted(i, 1000, 2**64 - 1) for i in range(5)] == [693, 851, 980, 905, 921]


def test_a_shuffle_visits_each_index_once():
    for size in (1, 2, 3, 4, 5, 16, 17, 64, 65, 1000, 4097):
        for key in (0, 1, 2**63):
            assert sorted(permuted(i, size, key) for i in range(size)) == list(range(size))


def test_shuffles_of_different_keys_differ_and_look_random():
    size = 2000
    first = [permuted(i, size, 1) for i in range(size)]
    second = [permuted(i, size, 2) for i in range(size)]
    assert sum(a == b for a, b in zip(first, second, strict=True)) < 12  # one is expected by chance
    ascents = sum(a < b for a, b in itertools.pairwise(first))
    assert abs(ascents - size / 2) < 4 * (size / 12) ** 0.5
    assert len({tuple(permuted(i, 3, key) for i in range(3)) for key in range(200)}) == 6


def test_parts_do_not_run_together():
    assert stable_hash("ab", "c") != stable_hash("a", "bc")
    assert stable_hash("1") != stable_hash(1)


def test_shares_are_even():
    shares = [stable_share("file", number) for number in range(4000)]
    assert all(0 <= share < 1 for share in shares)
    for edge in (0.02, 0.3, 0.7):
        assert abs(sum(share < edge for share in shares) / 4000 - edge) < 0.03
