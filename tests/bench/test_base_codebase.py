"""Bits per byte of a codebase: windows against brute force, the choice of files, and a model that learned."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from etude.bench.base.bits_per_byte import measure_codebase, windows
from etude.bench.base.code_text import Code, choose, filler_lines, read_code
from etude.bench.base.model_under_test import ModelUnderTest, ScoredText
from etude.core.errors import EtudeError
from etude.corpus.document import Document
from etude.model.attention import PackedAttend

CODE = Code("mine", tuple((f"m{n}.py", f"def f{n}(x):\n    return x * {n * 37}\n") for n in range(12)))


def brute(tested: ModelUnderTest, ids: list[int], starts: list[int]) -> float:
    """The nats of every token but the first, each predicted from the tokens since its start, one forward for each."""
    total = 0.0
    with torch.inference_mode():
        for place, start in zip(range(1, len(ids)), starts, strict=True):
            before = torch.tensor(ids[start:place])
            hidden = tested.decoder(before, torch.arange(len(before)), PackedAttend([len(before)]))
            total -= float(tested.decoder.logits(hidden[-1]).double().log_softmax(-1)[ids[place]])
    return total


@pytest.mark.parametrize("length", [2, 5, 8, 9, 12, 13, 100, 101, 103])
@pytest.mark.parametrize("window", [4, 8, 9])
def test_every_token_is_scored_once_with_half_a_window_before_it(length: int, window: int) -> None:
    ids = list(range(length))
    scored = []
    for piece in windows(ids, window):
        assert len(piece.ids) <= window
        assert list(piece.ids) == ids[piece.ids[0] : piece.ids[0] + len(piece.ids)]
        for place in range(piece.first, len(piece.ids)):
            token = piece.ids[place]
            scored.append(token)
            assert place >= min(token, window // 2)
    assert scored == ids[1:]


def test_a_text_that_fits_is_scored_as_by_one_forward(make_tested: Callable[..., ModelUnderTest]) -> None:
    tested = make_tested()
    ids = [token for _, text in CODE.files for token in tested.text.encode(text)]
    found = measure_codebase(tested, CODE, 4096)
    assert found.window == 1024 > len(ids) and found.tokens == len(ids) - 1
    assert found.nats == pytest.approx(brute(tested, ids, [0] * found.tokens), rel=1e-5)
    assert found.bytes == CODE.bytes - len(tested.text.bytes_of(ids[0]))
    assert found.bits_per_byte == pytest.approx(found.nats / math.log(2) / found.bytes)


def test_a_longer_text_is_scored_as_token_by_token_within_the_windows(
    make_tested: Callable[..., ModelUnderTest],
) -> None:
    tested = make_tested()
    ids = [token for _, text in CODE.files for token in tested.text.encode(text)][:150]
    code = Code("cut", (("a.py", tested.text.decode(ids)),))
    window, starts, scored = 32, [0] * 31, 32
    while scored < len(ids):  # the same walk, told by each token's start
        end = min(scored + 16, len(ids))
        starts += [end - window] * (end - scored)
        scored = end
    assert tested.text.encode(code.files[0][1]) == ids
    assert measure_codebase(tested, code, window).nats == pytest.approx(brute(tested, ids, starts), rel=1e-5)


def test_batches_change_nothing(make_tested: Callable[..., ModelUnderTest]) -> None:
    rng = random.Random(3)
    pieces = [ScoredText([rng.randrange(300) for _ in range(rng.randint(2, 60))], 1) for _ in range(20)]
    tested = make_tested()
    together = tested.score(pieces)
    tested.batch_tokens = 1
    for one, other in zip(together, tested.score(pieces), strict=True):
        assert one == pytest.approx(other, abs=1e-5)


def test_a_model_that_learned_needs_fewer_bits(
    make_tested: Callable[..., ModelUnderTest], teach: Callable[..., None]
) -> None:
    tested = make_tested()
    before = measure_codebase(tested, CODE, 128).bits_per_byte
    teach(tested, [tested.text.encode(text) for _, text in CODE.files], steps=30)
    after = measure_codebase(tested, CODE, 128).bits_per_byte
    assert after < 0.6 * before < before < 9


def test_the_choice_of_files_depends_on_paths_alone_and_the_order_is_alphabetical() -> None:
    documents = [Document("r", f"{c}.py", c * 10, "unknown", "s") for c in "hgfedcba"]
    chosen = choose("s", documents, 45)
    assert chosen == choose("s", documents[::-1], 45)
    assert [path for path, _ in chosen.files] == sorted(path for path, _ in chosen.files) and len(chosen.files) == 4
    assert chosen.fingerprint != choose("s", documents, 35).fingerprint
    with pytest.raises(EtudeError, match="holds no file of code of at most 5 bytes"):
        choose("s", documents, 5)


def test_the_standard_library_and_folders_are_read(tmp_path: Path) -> None:
    sample = read_code("", 60_000)
    assert sample == read_code("", 60_000) and 30_000 < sample.bytes <= 60_000 and sample.name == "stdlib"
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x.py").write_text("x = 1\n\n\ny = 2\n")
    (tmp_path / "a.py").write_text("a = 1\n")
    code = read_code(str(tmp_path), 1000)
    assert [path for path, _ in code.files] == ["a.py", "b/x.py"]
    assert filler_lines(code) == ["a = 1", "x = 1", "y = 2"]
    with pytest.raises(EtudeError, match="does not exist"):
        read_code(str(tmp_path / "none"), 1000)
