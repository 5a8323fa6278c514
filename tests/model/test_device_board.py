"""The board whose slots lie in device memory: the same verbs, here with the memory of this process for the device's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from etude.core.errors import EtudeError
from etude.core.policy import Version
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder
from etude.model.weight_transfer.device_memory import DeviceBoard
from etude.model.weight_transfer.shared_memory import WeightBoard, create_board


def decoder(seed: int = 0, width: int = 32) -> Decoder:
    shape = ModelConfig(50, width, 40, 2, 4, 2, 8, num_experts=3, num_experts_per_tok=1, moe_intermediate_size=8)
    return Decoder(shape, seed)


def same(a: Decoder, b: Decoder) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


def test_whoever_attaches_finds_the_last_two_versions(tmp_path: Path) -> None:
    path, learners, engine = tmp_path / "board", [decoder(seed) for seed in range(4)], decoder(9)
    board = DeviceBoard.create(path, learners[0])
    for step in (1, 2, 3):
        board.publish(learners[step], Version(0, step))
    attached = WeightBoard.attach(path)
    assert isinstance(attached, DeviceBoard)
    assert attached.versions() == (Version(0, 2), Version(0, 3))
    for step in (2, 3):
        attached.load_into(engine, Version(0, step))
        assert same(engine, learners[step])
    with pytest.raises(EtudeError, match=r"version 0\.1 is not on the weight board"):
        attached.load_into(engine, Version(0, 1))
    assert same(engine, learners[3])


def test_a_version_overwritten_while_it_is_read_leaves_the_decoder_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, engine, before = decoder(1), decoder(2), decoder(2)
    board = DeviceBoard.create(tmp_path / "board", learner)
    board.publish(learner, Version(0, 1))
    part = DeviceBoard._part

    def slow(self: DeviceBoard, name: str, slot: int) -> torch.Tensor:
        monkeypatch.setattr(DeviceBoard, "_part", part)
        for step in (2, 3):
            board.publish(learner, Version(0, step))
        return part(self, name, slot)

    monkeypatch.setattr(DeviceBoard, "_part", slow)
    with pytest.raises(EtudeError, match="overwritten while it was read"):
        board.load_into(engine, Version(0, 1))
    assert same(engine, before)


def test_another_models_board_is_refused(tmp_path: Path) -> None:
    board = DeviceBoard.create(tmp_path / "board", decoder())
    board.publish(decoder(), Version(0, 1))
    with pytest.raises(EtudeError, match="made for another model"):
        board.load_into(decoder(width=48), Version(0, 1))


def test_a_cpus_memory_is_shared_through_the_file_and_the_other_kind_says_so(tmp_path: Path) -> None:
    assert not isinstance(create_board(tmp_path / "shared", decoder()), DeviceBoard)
    board = DeviceBoard.create(tmp_path / "board", decoder())
    board.publish(decoder(), Version(0, 1))
    script = """
import sys
from pathlib import Path
from etude.model.weight_transfer.shared_memory import WeightBoard
board = WeightBoard.attach(Path(sys.argv[1]))
print(board.versions())
board._opened()
"""
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "board"], capture_output=True, text=True, timeout=60
    )
    assert "Version(lineage=0, step=1)" in done.stdout and "cannot be opened here" in done.stderr
