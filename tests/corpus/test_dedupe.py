import random

import numpy as np
import pytest

from etude.corpus import dedupe
from etude.corpus.dedupe import (
    SIZE,
    MinHash,
    choose_bands,
    exact_digest,
    find_copies,
    find_near_duplicates,
    jaccard,
    shingles,
)
from etude.corpus.word_hashes import hash_runs, hash_words, split_words


def edit(text, share, seed):
    """The text with a share of its lines replaced."""
    rng = random.Random(seed)
    lines = text.split("\n")
    for place in rng.sample(range(len(lines)), round(share * len(lines))):
        lines[place] = f"    changed_{rng.randrange(10**6)} = something_{rng.randrange(10**6)}()"
    return "\n".join(lines)


def true_jaccard(left, right):
    def runs(text):
        words = split_words(text)
        return {tuple(words[n : n + 5]) for n in range(max(1, len(words) - 4))}

    return len(runs(left) & runs(right)) / len(runs(left) | runs(right))


def test_runs_of_words_are_hashed_as_brute_force_would():
    words = [b"w%d" % (n % 7) for n in range(40)]
    for length in (1, 2, 5, 13):
        hashes = hash_runs(hash_words(words), length)
        spelled = [tuple(words[n : n + length]) for n in range(len(words) - length + 1)]
        assert len(hashes) == len(spelled)
        assert len(set(hashes.tolist())) == len(set(spelled))
        assert len(set(zip(hashes.tolist(), spelled, strict=True))) == len(set(spelled))
    assert len(hash_runs(hash_words(words[:3]), 5)) == 1 and len(hash_runs(hash_words([]), 5)) == 0


def test_case_spacing_and_punctuation_do_not_count():
    assert split_words("def Foo(a,b):\n\treturn a+b") == split_words("DEF foo ( a , b ) : return a + b")
    assert split_words("naïve_x = «é»") == ["naïve_x".encode(), "«é»".encode()]


def test_the_jaccard_of_shingles_is_the_one_of_word_tuples(code):
    for seed, share in enumerate((0.0, 0.1, 0.3, 0.6, 1.0)):
        text = code(seed, functions=20)
        changed = edit(text, share, seed)
        assert jaccard(shingles(text), shingles(changed)) == pytest.approx(true_jaccard(text, changed))


def test_signatures_estimate_brute_force_jaccard():
    rng = np.random.default_rng(0)
    minhash = MinHash()
    errors = []
    for similarity in np.linspace(0, 1, 21):
        for size in (10, 100, 3000):
            pool = hash_words([b"%d" % n for n in rng.integers(0, 2**60, 2 * size)])
            shared = round(2 * size * similarity / (1 + similarity))
            left, right = np.unique(pool[:size]), np.unique(pool[size - shared : 2 * size - shared])
            true = len(set(left.tolist()) & set(right.tolist())) / len(set(left.tolist()) | set(right.tolist()))
            assert jaccard(left, right) == pytest.approx(true)
            errors.append(float((minhash.sign(left) == minhash.sign(right)).mean()) - true)
    deviation = 0.5 / SIZE**0.5  # the largest standard deviation, at 0.5
    assert abs(np.mean(errors)) < 0.01
    assert np.std(errors) < deviation
    assert np.abs(errors).max() < 4 * deviation


def test_signatures_do_not_depend_on_order_repetition_or_block_boundaries():
    minhash = MinHash()
    hashes = hash_words([b"%d" % n for n in range(3000)])
    again = np.concatenate([hashes[::-1], hashes[:500]])
    assert (minhash.sign(hashes) == minhash.sign(again)).all()
    halves = np.minimum(minhash.sign(hashes[:1100]), minhash.sign(hashes[1100:]))
    assert (minhash.sign(hashes) == halves).all()


@pytest.mark.parametrize("threshold", [0.5, 0.7, 0.9])
def test_bands_propose_pairs_at_the_threshold(threshold):
    bands, rows = choose_bands(threshold)
    assert bands * rows <= SIZE
    rng = np.random.default_rng(1)
    equal = rng.random((4000, bands, rows)) < threshold
    assert equal.all(axis=2).any(axis=1).mean() > 0.98


def test_exact_copies_are_found_whatever_their_white_space():
    texts = ["def f():\n    return 1\n", "def f():\n\n\treturn 1", "def f():\n    return 2\n", "def f(): return 1"]
    digests = np.frombuffer(b"".join(map(exact_digest, texts)), np.uint64).reshape(-1, 2)
    assert find_copies(digests, np.ones(4, bool)).tolist() == [False, True, False, True]
    assert find_copies(digests, np.array([False, True, True, True])).tolist() == [False, False, False, True]
    assert find_copies(digests[:0], np.ones(0, bool)).tolist() == []


def test_exact_copies_in_several_parts_are_those_of_a_set(monkeypatch):
    digests = np.random.default_rng(0).integers(0, 12, (300, 2)).astype(np.uint64)
    seen, wanted = set(), []
    for row in map(tuple, digests.tolist()):
        wanted.append(row in seen)
        seen.add(row)
    for most in (1000, 7):
        monkeypatch.setattr(dedupe, "SORTED_AT_ONCE", most)
        assert find_copies(digests, np.ones(300, bool)).tolist() == wanted


def test_planted_near_duplicates_are_found_and_different_files_kept(code):
    originals = [code(seed, functions=15) for seed in range(60)]
    planted = [edit(originals[n], 0.04, n) for n in range(20)]
    texts = originals + planted
    order = random.Random(0).sample(range(len(texts)), len(texts))
    shuffled = [texts[n] for n in order]
    found = find_near_duplicates(
        np.stack([MinHash().sign(shingles(text)) for text in shuffled]), 0.7, lambda n: shingles(shuffled[n])
    )
    pairs = {frozenset((order[d.number], order[d.original])) for d in found}
    assert pairs == {frozenset((n, 60 + n)) for n in range(20)}
    for duplicate in found:
        assert duplicate.original < duplicate.number
        assert duplicate.similarity == pytest.approx(
            true_jaccard(shuffled[duplicate.number], shuffled[duplicate.original])
        )


def test_what_is_dropped_agrees_with_comparing_every_pair(code):
    """Families of ever stronger edits: greedy over all true similarities against greedy over proposed pairs."""
    texts = []
    for seed in range(12):
        text = code(seed, functions=12)
        texts += [text, *(edit(text, share, seed) for share in (0.02, 0.04, 0.08, 0.12, 0.2, 0.4))]
    sets = [shingles(text) for text in texts]
    signatures = np.stack([MinHash().sign(one) for one in sets])
    for threshold in (0.5, 0.7, 0.85):
        kept: list[int] = []
        for number in range(len(texts)):
            if all(jaccard(sets[number], sets[other]) < threshold for other in kept):
                kept.append(number)
        dropped = {d.number for d in find_near_duplicates(signatures, threshold, lambda n: sets[n])}
        assert dropped == set(range(len(texts))) - set(kept)


def test_a_thousand_copies_of_a_boilerplate_are_compared_with_one():
    text = " ".join(f"word{n}" for n in range(200))
    texts = [f"{text} tail{n}" for n in range(1000)]
    signatures = np.stack([MinHash().sign(shingles(text)) for text in texts])
    asked = []
    found = find_near_duplicates(signatures, 0.7, lambda n: (asked.append(n), shingles(texts[n]))[1])
    assert [d.number for d in found] == list(range(1, 1000)) and {d.original for d in found} == {0}
    assert len(asked) == 2 * 999


def test_no_documents_and_one_document_have_no_duplicates():
    assert find_near_duplicates(np.empty((0, SIZE), np.uint32), 0.7, lambda n: shingles("")) == []
    assert find_near_duplicates(MinHash().sign(shingles("a b c"))[None], 0.7, lambda n: shingles("a b c")) == []
