"""Tensors in parts: any rows of what several writers wrote, and one sentence about files that lie."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from etude.core.errors import EtudeError
from etude.learn.tensor_parts import Part, StoredParts, write_parts

WHOLE = torch.arange(35.0).view(7, 5)


def test_any_rows_are_read_whoever_wrote_them(tmp_path: Path) -> None:
    for writer, (start, stop) in enumerate([(0, 3), (3, 6), (6, 7), (7, 7)]):  # the last one has no row
        write_parts(tmp_path, "x", {"a": Part(WHOLE[start:stop], (7, 5), start)}, writer, 4)
    with StoredParts(tmp_path, "x") as stored:
        assert stored.shapes == {"a": (7, 5)}
        for start, stop in [(0, 7), (2, 4), (5, 7), (7, 7)]:
            assert torch.equal(stored.read("a", start, stop), WHOLE[start:stop])


@pytest.mark.parametrize(
    "said",
    [
        "[]",
        "null",
        "7",
        "[" * 100_000,
        '{"a": 5}',
        '{"a": [[7, 5], 0.0]}',
        '{"a": [[7.0, 5.0], 0]}',
        '{"a": [[7, 5], -1]}',
        '{"a": [[7], 0]}',
        '{"a": ["75", 0]}',
        '{"a": [[7, 5], 3]}',
        '{"scalar": [[9], 0]}',
    ],
)
def test_a_header_that_cannot_be_is_one_sentence(said: str, tmp_path: Path) -> None:
    save_file({"a": WHOLE, "scalar": torch.zeros(())}, tmp_path / "x.safetensors", metadata={"parts": said})
    with pytest.raises(EtudeError, match=r"x\.safetensors"):
        StoredParts(tmp_path, "x")


def test_rows_that_nobody_wrote_are_missed(tmp_path: Path) -> None:
    said = json.dumps({"a": [[9, 5], 0]})
    save_file({"a": WHOLE}, tmp_path / "x.safetensors", metadata={"parts": said})
    with StoredParts(tmp_path, "x") as stored, pytest.raises(EtudeError, match="lack row 7 of 'a'"):
        stored.read("a")
