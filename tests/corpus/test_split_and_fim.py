import random

import pytest

from etude.corpus import fim
from etude.corpus.split import side_of
from etude.tokens.text_tokenizer import FimTokens

NAMES = [(f"repo{n % 200}", f"src/file{n}.py") for n in range(6000)]


def test_the_sides_of_today_are_the_sides_of_tomorrow():
    held = [(repo, path) for repo, path in NAMES[:600] if side_of(repo, path, 0.02, True) == "held_out"]
    assert len(held) == 20 and held[0] == ("repo107", "src/file107.py")


def test_whole_repositories_and_single_files_are_held_out():
    sides = {name: side_of(*name, 0.1, True) for name in NAMES}
    by_repo = {}
    for (repo, _), side in sides.items():
        by_repo.setdefault(repo, []).append(side)
    whole = [repo for repo, of in by_repo.items() if set(of) == {"held_out"}]
    partly = [repo for repo, of in by_repo.items() if set(of) == {"held_out", "train"}]
    assert 8 <= len(whole) <= 35 and len(partly) > 100
    assert abs(sum(side == "held_out" for side in sides.values()) / len(sides) - 0.19) < 0.03


def test_without_repositories_only_files_are_held_out():
    share = sum(side_of(*name, 0.1, False) == "held_out" for name in NAMES) / len(NAMES)
    assert abs(share - 0.1) < 0.02
    assert all(side_of(*name, 0.0, True) == "train" for name in NAMES)


def test_a_larger_share_only_adds_files():
    small = {name for name in NAMES if side_of(*name, 0.05, True) == "held_out"}
    assert small < {name for name in NAMES if side_of(*name, 0.2, True) == "held_out"}


MARKS = FimTokens(prefix=1000, suffix=1001, middle=1002)


def text_of(ids):
    """The inverse of what order_ids does, for texts whose ids are their code points plus 2000."""
    assert ids[0] == MARKS.prefix
    after, fill = ids.index(MARKS.suffix), ids.index(MARKS.middle)
    prefix, suffix, middle = ids[1:after], ids[after + 1 : fill], ids[fill + 1 :]
    if not prefix:  # suffix first: the middle follows its prefix without a mark
        prefix, middle = middle, []
    return "".join(chr(i - 2000) for i in [*prefix, *middle, *suffix])


@pytest.mark.parametrize("window", [16, 100, 1200])
def test_examples_put_together_again_are_the_document(code, window):
    kinds = set()
    for seed in range(20):
        text = code(seed)
        examples = list(fim.make_examples(text, window, 7, "repo", f"{seed}.py"))
        whole = ""
        for example in examples:
            assert example.prefix and example.middle and example.suffix
            parts = [[ord(c) + 2000 for c in part] for part in (example.prefix, example.middle, example.suffix)]
            whole += text_of(fim.order_ids(*parts, example.suffix_first, MARKS))
            assert len(example.prefix + example.middle + example.suffix) < window + 3
            kinds.add(example.suffix_first)
        assert whole == text
    assert kinds == {True, False}


def test_windows_end_at_lines_where_they_can(code):
    text = code(3, functions=30)
    examples = list(fim.make_examples(text, 300, 0, "repo", "a.py"))
    assert all((e.prefix + e.middle + e.suffix).endswith("\n") for e in examples[:-1])
    assert "".join(e.prefix + e.middle + e.suffix for e in examples) == text


def test_cuts_depend_on_seed_and_document_alone():
    text = "".join(random.Random(0).choices("abc\n", k=3000))
    assert list(fim.make_examples(text, 500, 1, "r", "p")) == list(fim.make_examples(text, 500, 1, "r", "p"))
    assert list(fim.make_examples(text, 500, 1, "r", "p")) != list(fim.make_examples(text, 500, 2, "r", "p"))
    assert list(fim.make_examples(text, 500, 1, "r", "p")) != list(fim.make_examples(text, 500, 1, "r", "q"))


def test_every_place_of_a_text_is_cut_sooner_or_later():
    text = "abcdefgh"
    cuts = set()
    for number in range(400):
        (example,) = fim.make_examples(text, 100, number, "r", "p")
        cuts.add((len(example.prefix), len(example.middle)))
    assert cuts == {(start, size) for start in range(1, 7) for size in range(1, 8 - start)}


def test_the_share_of_documents_is_the_rate():
    chosen = [fim.is_chosen(0, *name, 0.3) for name in NAMES]
    assert abs(sum(chosen) / len(chosen) - 0.3) < 0.02
    assert not any(fim.is_chosen(0, *name, 0.0) for name in NAMES)
    assert all(fim.is_chosen(0, *name, 1.0) for name in NAMES)
