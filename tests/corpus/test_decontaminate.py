import re

import pytest

from etude.core.errors import EtudeError
from etude.corpus.decontaminate import Forbidden, digest, read_texts

SOLUTION = (
    "def solve(board, depth): best = None; for move in board.moves(): score = evaluate(move, depth - 1, alpha, beta)"
)


def test_a_document_that_quotes_a_forbidden_text_is_found(code):
    forbidden = Forbidden([("bench/one.py", SOLUTION), ("bench/two.py", code(1))], 13)
    hit = forbidden.find(code(5) + "\n# " + SOLUTION.upper().replace(";", "\n") + code(6))
    assert hit is not None and hit.text == "bench/one.py"
    assert hit.words == "def solve board depth best none for move in board moves score evaluate"
    assert forbidden.find("x = 1\n" + code(1)[40:]).text == "bench/two.py"
    assert forbidden.find(code(5)) is None
    assert forbidden.find("") is None


def test_overlaps_agree_with_brute_force(code):
    texts = [code(seed, functions=2) for seed in range(6)]
    documents = [code(seed, functions=3) + texts[seed % 6][n * 15 :] for n, seed in enumerate(range(20, 40))]

    def runs(text, n):
        words = re.findall(r"\w+", text.lower())
        return {tuple(words[i : i + n]) for i in range(len(words) - n + 1)}

    for ngram in (5, 8, 13, 25):
        forbidden = Forbidden([(str(n), text) for n, text in enumerate(texts)], ngram)
        for document in documents:
            overlap = any(runs(document, ngram) & runs(text, ngram) for text in texts)
            assert (forbidden.find(document) is not None) == overlap


def test_a_text_shorter_than_the_run_must_occur_whole():
    forbidden = Forbidden([("short", "return fibonacci(n - 1) + fibonacci(n - 2)"), ("tiny", "x = 1")], 13)
    assert forbidden.find("if n > 1: return fibonacci(n-1) + fibonacci(n-2) # done").text == "short"
    assert forbidden.find("return fibonacci(n - 1) + fibonacci(n - 3)") is None
    assert forbidden.find("return fibonacci") is None
    assert forbidden.ignored == ["tiny"]


def test_a_licence_header_is_no_contamination(code):
    header = "# Copyright 2024 The Authors. Licensed under the Apache License, Version 2.0 (the License); you may not\n"
    forbidden = Forbidden([("bench", header + code(1))], 13)
    assert forbidden.find(header + code(2)) is None
    assert forbidden.find(header + code(1)) is not None


def test_without_texts_nothing_is_found(code):
    assert Forbidden([], 13).find(code(1)) is None


def test_texts_come_from_files_and_folders(tree):
    root = tree({"bench/a.py": "one", "bench/sub/b.md": "two", "single.txt": "three", "bench/image.py": b"\0"})
    texts = read_texts([str(root / "bench"), str(root / "single.txt")])
    assert [text for _, text in texts] == ["one", "two", "three"]
    assert texts[1][0].endswith("bench/sub/b.md")
    assert digest(texts) != digest(texts[:2])


def test_texts_that_are_not_there_are_one_sentence(tree):
    root = tree({"bin/x.py": b"\0"})
    for path, words in ((root / "none", "does not exist"), (root / "bin", "no text"), (root / "bin/x.py", "binary")):
        with pytest.raises(EtudeError, match=words):
            read_texts([str(path)])
