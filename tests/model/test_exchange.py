"""Weights through shared memory: what is read is exactly what was written, or it is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from etude.core.errors import EtudeError
from etude.core.policy import Version
from etude.model.checkpoint.directory import save_model
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder
from etude.model.weight_transfer.shared_memory import WeightBoard


def decoder(seed: int = 0, width: int = 32) -> Decoder:
    return Decoder(
        ModelConfig(
            vocab_size=50,
            hidden_size=width,
            intermediate_size=40,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
        ),
        seed,
    )


def same(a: Decoder, b: Decoder) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


def test_a_version_arrives_bit_for_bit(tmp_path: Path) -> None:
    learner, engine = decoder(1), decoder(2)
    board = WeightBoard.create(tmp_path / "board", learner)
    board.publish(learner, Version(0, 1))
    WeightBoard.attach(tmp_path / "board").load_into(engine, Version(0, 1))
    assert same(learner, engine)


def test_an_engine_that_serves_fewer_bits_rounds_what_it_reads(tmp_path: Path) -> None:
    """Several ranks of a learner on GPUs publish their float32 masters here, and the engine serves bfloat16."""
    learner, engine = decoder(1), decoder(2).bfloat16()
    WeightBoard.create(tmp_path / "board", learner).publish(learner, Version(0, 1))
    WeightBoard.attach(tmp_path / "board").load_into(engine, Version(0, 1))
    assert same(learner.bfloat16(), engine)


def test_another_process_reads_the_version(tmp_path: Path) -> None:
    learner = decoder(1)
    save_model(tmp_path / "model", learner)
    WeightBoard.create(tmp_path / "board", learner).publish(learner, Version(0, 1))
    script = """
import sys, torch
from pathlib import Path
from etude.model.checkpoint.directory import load_model
from etude.model.decoder import Decoder
from etude.model.weight_transfer.shared_memory import WeightBoard
from etude.core.policy import Version
written = load_model(Path(sys.argv[1]))
read = Decoder(written.config, seed=5)
WeightBoard.attach(Path(sys.argv[2])).load_into(read, Version(0, 1))
assert all(torch.equal(a, b) for a, b in zip(written.parameters(), read.parameters()))
"""
    arguments = [sys.executable, "-c", script, str(tmp_path / "model"), str(tmp_path / "board")]
    finished = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
    assert finished.returncode == 0, finished.stderr


def test_the_newest_two_versions_stay_readable_and_older_ones_are_named_as_gone(tmp_path: Path) -> None:
    board = WeightBoard.create(tmp_path / "board", decoder())
    models = {step: decoder(step) for step in range(4)}
    for step, model in models.items():
        board.publish(model, Version(0, step))
    assert board.versions() == (Version(0, 2), Version(0, 3))
    engine = decoder(9)
    for step in (2, 3):
        board.load_into(engine, Version(0, step))
        assert same(engine, models[step])
    with pytest.raises(EtudeError, match=r"version 0\.1 is not on the weight board .*there: 0\.2, 0\.3"):
        board.load_into(engine, Version(0, 1))
    assert same(engine, models[3])


def test_a_newer_lineage_replaces_the_older_one(tmp_path: Path) -> None:
    board = WeightBoard.create(tmp_path / "board", decoder())
    for version in (Version(0, 8), Version(0, 9), Version(1, 5)):
        board.publish(decoder(), version)
    assert board.versions() == (Version(0, 9), Version(1, 5))


def test_a_step_back_to_an_older_version_is_what_stays_when_the_next_one_comes(tmp_path: Path) -> None:
    """Engines have just loaded it, or are about to; the slot to give up is the one written before it."""
    board = WeightBoard.create(tmp_path / "board", decoder())
    models = {step: decoder(step) for step in range(10)}
    for step in (8, 9, 5, 6):  # training went wrong at 9: back to the weights of 5
        board.publish(models[step], Version(0, step))
    assert board.versions() == (Version(0, 5), Version(0, 6))
    board.publish(models[4], Version(0, 4))
    board.publish(models[7], Version(0, 7))
    assert board.versions() == (Version(0, 4), Version(0, 7))
    engine = decoder(99)
    WeightBoard.attach(tmp_path / "board").load_into(engine, Version(0, 4))
    assert same(engine, models[4])


def test_of_two_writes_under_one_version_the_later_one_is_read(tmp_path: Path) -> None:
    board = WeightBoard.create(tmp_path / "board", decoder())
    engine = decoder(99)
    for seed in (1, 2, 3):
        board.publish(decoder(seed), Version(0, 1))
        board.load_into(engine, Version(0, 1))
        assert same(engine, decoder(seed))


def test_a_write_that_was_cut_off_is_written_over_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    board = WeightBoard.create(tmp_path / "board", decoder())
    for step in (1, 2):
        board.publish(decoder(step), Version(0, step))
    with monkeypatch.context() as patched:
        patched.setattr("zlib.crc32", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            board.publish(decoder(3), Version(0, 3))
    assert board.versions() == (Version(0, 2),)
    board.publish(decoder(4), Version(0, 4))
    assert board.versions() == (Version(0, 2), Version(0, 4))


def test_damaged_weights_are_refused_and_the_decoder_keeps_its_own(tmp_path: Path) -> None:
    path = tmp_path / "board"
    board = WeightBoard.create(path, decoder(1))
    board.publish(decoder(1), Version(0, 1))
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 4)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))
    engine, before = decoder(3), decoder(3)
    with pytest.raises(EtudeError, match="damaged"):
        WeightBoard.attach(path).load_into(engine, Version(0, 1))
    assert same(engine, before)


def test_another_models_board_is_refused(tmp_path: Path) -> None:
    board = WeightBoard.create(tmp_path / "board", decoder())
    with pytest.raises(EtudeError, match="made for another model"):
        board.publish(decoder(width=48), Version(0, 1))


def test_a_missing_or_foreign_file_is_no_board(tmp_path: Path) -> None:
    with pytest.raises(EtudeError, match="no weight board"):
        WeightBoard.attach(tmp_path / "nothing")
    (tmp_path / "text").write_text("not a board, but long enough to hold a magic")
    with pytest.raises(EtudeError, match="not a weight board"):
        WeightBoard.attach(tmp_path / "text")


def test_removing_the_board_leaves_nothing_behind(tmp_path: Path) -> None:
    WeightBoard.create(tmp_path / "board", decoder()).close(remove=True)
    assert not list(tmp_path.iterdir())
