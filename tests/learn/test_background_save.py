"""Checkpoints written beside training: what they hold, when they appear, and what becomes of their errors."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from etude.core import durable
from etude.core.errors import EtudeError
from etude.core.run import Run
from etude.core.settings import LoraSettings, OptimSettings
from etude.learn import state
from etude.learn.background_save import BackgroundSave
from etude.learn.learner import Learner
from etude.learn.loop import Draw, train
from etude.learn.lora import adapt
from etude.learn.streams import Batch, Item, Label, Stream
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder

SHAPE = ModelConfig(
    vocab_size=31,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=8,
)
BACKGROUND = {"run": {"save_in_background": True, "keep_checkpoints": 9}}


def learner(rank: int = 0, steps: int = 4) -> Learner:
    decoder = adapt(Decoder(SHAPE, seed=1), LoraSettings(rank=rank), 0)
    return Learner(decoder, OptimSettings(lr=1e-2, ema=0.5), steps, 64)


def draw() -> Draw:
    ids = np.arange(20) % 31
    batch = Batch([Item(ids, [Stream("main", np.full(20, 0.05, np.float32), Label(ids))])])
    return Draw(batch, 19, 19)


def step(of: Learner) -> None:
    of.forward_backward(draw().batch)
    of.step()


def files(directory: Path) -> dict[str, dict[str, torch.Tensor]]:
    return {str(path.relative_to(directory)): load_file(path) for path in sorted(directory.rglob("*.safetensors"))}


@pytest.mark.parametrize("rank", [0, 2])
def test_what_is_written_is_the_model_of_the_moment_at_which_it_began(tmp_path: Path, rank: int) -> None:
    trained = learner(rank)
    for name in ("now", "beside"):
        (tmp_path / name).mkdir()
    step(trained)
    trained.save(tmp_path / "now")
    trained.begin_save(tmp_path / "beside")
    with pytest.raises(EtudeError, match="still being written"):
        trained.begin_save(tmp_path / "beside")
    for _ in range(2):
        step(trained)
    trained.finish_save()
    assert trained.saved
    now, beside = files(tmp_path / "now"), files(tmp_path / "beside")
    assert now.keys() == beside.keys() and len(now) == (3 if rank else 2)
    for name, tensors in now.items():
        torch.testing.assert_close(beside[name], tensors, rtol=0, atol=0)
    again = learner(rank)
    again.restore(tmp_path / "beside")
    assert again.steps == 1


def test_steps_go_on_and_the_commit_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, seen, written = threading.Event(), [], state.write_counters
    main = threading.current_thread()

    def slow(*arguments: object) -> None:
        if threading.current_thread() is not main:
            assert disk.wait(60)
        written(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(state, "write_counters", slow)
    with Run.open(tmp_path / "run", BACKGROUND) as run:

        def counted() -> Draw:
            seen.append([run.step_of(path) for path in run.checkpoints("pretrain")])
            if len(seen) == 4:
                disk.set()
            return draw()

        train(run, "pretrain", learner(steps=5), counted, lambda directory: None, save_every=2)
        assert [run.step_of(path) for path in run.checkpoints("pretrain")] == [2, 4, 5]
    # Steps 3 and 4 ran while the checkpoint of step 2 was being written.
    assert seen[:4] == [[], [], [], []]


def test_a_file_of_another_rank_that_gets_its_name_meanwhile_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks write into one folder, each under a temporary name first."""
    synced, real = list[str](), durable.sync

    def sync(path: Path) -> None:
        if path.name == ".tmp1":
            path.rename(tmp_path / "of-another")
        real(path)
        synced.append(path.name)

    monkeypatch.setattr(durable, "sync", sync)
    for name in (".tmp1", "own"):
        (tmp_path / name).write_bytes(b"x")
    saving = BackgroundSave()
    saving.start(lambda: None, tmp_path)
    saving.finish()
    assert "own" in synced and ".tmp1" not in synced


def test_an_error_of_any_kind_is_told() -> None:
    def broken() -> None:
        raise RuntimeError("a bug")

    saving = BackgroundSave()
    saving.start(broken, Path("nowhere"))
    with pytest.raises(RuntimeError, match="a bug"):
        saving.finish()


def test_an_error_beside_training_is_told_and_the_checkpoint_before_it_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, written = [], state.write_counters

    def full(*arguments: object) -> None:
        saved.append(arguments)
        if len(saved) == 2:
            raise OSError(errno.ENOSPC, "no space left")
        written(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(state, "write_counters", full)
    with Run.open(tmp_path / "run", BACKGROUND) as run:
        with pytest.raises(EtudeError, match=r"could not save checkpoint pretrain-0000002 .*full.*0000001 is intact"):
            train(run, "pretrain", learner(), draw, lambda directory: None, save_every=1)
        assert [path.name for path in run.checkpoints("pretrain")] == ["pretrain-0000001"]
