"""Shingles: the vectorised numbers say what a plain loop over tokens says."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest

from etude.corpus.word_hashes import hash_runs
from etude.forge.leaks import shingles
from etude.forge.leaks.shingles import RUN, code_tokens, text_marks, text_shingles, token_hashes

TEXT = """
def area(width, height=1.5, *, unit="m"):
    # the plain formula
    if width < 0 or height <= 0:
        raise ValueError(f"no area: {width} x {height}")
    return {"value": width * height, "unit": unit}
"""


def test_tokens_are_words_and_punctuation() -> None:
    text = "a_b = c[0] + naïve_2 ** ~x; y != z -> {k: v}"
    tokens = [each for each in re.findall(r"\w+|[^\w\s]", text) if each not in "'\",()\\"]
    one_by_one = np.concatenate([token_hashes(token.encode()) for token in tokens])
    assert token_hashes(text.encode()).tolist() == one_by_one.tolist()
    assert len(set(one_by_one.tolist())) == len(set(tokens))


def test_tokens_do_not_depend_on_where_a_text_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    data = TEXT.encode() * 50
    whole = token_hashes(data)
    monkeypatch.setattr(shingles, "BLOCK", 1024)
    assert token_hashes(data).tolist() == whole.tolist()


@pytest.mark.parametrize(
    "copy",
    [
        TEXT.replace("    ", "\t"),
        TEXT.replace('"', "'"),
        TEXT.replace("(width, height=1.5, *, unit", "(\n    width,\n    height=1.5,\n    *,\n    unit"),
        TEXT.replace("    # the plain formula\n", "").replace("0:", "0:  # never"),
        TEXT.replace("    if width", '    """Square metres."""\n    if width'),
        "".join(f"# {line}\n" for line in TEXT.splitlines() if "plain" not in line),
        "x = '''" + TEXT + "'''\n",
        "".join(f">>> {line}\n" for line in TEXT.splitlines()),
        repr(TEXT * 2),
    ],
    ids=["tabs", "quotes", "lines", "comments", "docstring", "commented out", "in a string", "prompts", "escaped"],
)
def test_layout_quotes_and_comments_hide_nothing(copy: str) -> None:
    wanted = np.unique(hash_runs(code_tokens(TEXT.encode()), RUN))
    found = text_shingles(copy.encode(), "copy.txt")
    assert np.isin(wanted, found).mean() > 0.95


def test_other_code_shares_nothing() -> None:
    other = b"def volume(radius):\n    return 4 / 3 * math.pi * radius ** 3 if radius > 0 else None\n"
    assert not np.isin(text_shingles(other, "a.py"), text_shingles(TEXT.encode(), "b.py")).any()


@pytest.mark.parametrize("window", [1, 4, 8, 16])
def test_marks_hit_every_stretch_that_is_long_enough(window: int) -> None:
    rng = random.Random(window)
    words = [rng.choice("abcdefgh") + str(rng.randrange(40)) for _ in range(600)]
    marks = set(text_marks(" ".join(words).encode(), "a.py", window).tolist())
    everything = text_shingles(" ".join(words).encode(), "a.py")
    assert marks <= set(everything.tolist())
    for start in range(len(words) - window - RUN + 2):
        stretch = " ".join(words[start : start + window + RUN - 1]).encode()
        assert marks & set(text_shingles(stretch, "a.py").tolist())
