"""The learner in a process of its own: the same numbers as one in this process, and no silent end."""

from __future__ import annotations

import asyncio
import json
import signal
import socket as sockets
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from etude.core.errors import EtudeError
from etude.core.policy import Version
from etude.core.settings import OptimSettings
from etude.core.transport import PREFIX_BYTES, Frame, write_frame
from etude.learn.learner import Learner
from etude.learn.streams import Batch, Correction, Item, Label, Sampled, Stream
from etude.model.checkpoint.directory import load_model, save_model
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder
from etude.model.weight_transfer.shared_memory import WeightBoard
from etude.rl.learner import client as learner_client
from etude.rl.learner import process as worker
from etude.rl.learner.client import LearnerClient, launch_learner
from etude.rl.learner.messages import LearnerSpec, StepRequest

SHAPE = ModelConfig(61, 16, 24, 2, 4, 2, 8)
OPTIM = OptimSettings(lr=3e-3, ema=0.9)
STEPS, MICRO = 20, 40
SECONDS = 180.0


def batch(seed: int) -> Batch:
    """Sampled and labelled items of several lengths: four micro-batches or so."""
    rng = np.random.default_rng(seed)
    items = []
    for length in (9, 30, 17, 25, 12):
        tokens, ones = rng.integers(0, SHAPE.vocab_size, length), np.ones(length, np.float32) / 93
        logprob, advantage = rng.normal(-4, 0.1, length), rng.normal(size=length)
        sampled = Sampled(advantage.astype(np.float32), logprob.astype(np.float32))
        items.append(Item(tokens, [Stream("main", ones, sampled), Stream("main", ones, Label(tokens))], 0.8))
    return Batch(items, Correction("truncate", high=2.0))


def one(head: str, target: Label) -> Batch:
    """Two tokens and one stream."""
    return Batch([Item(np.array([1, 2]), [Stream(head, np.ones(2, np.float32), target)])])


def same(a: Decoder, b: Decoder) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


class Home:
    """One learner process, the client on a loop that lives as long, and a learner here that did the same."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.model, self.board = folder, folder / "model", folder / "board"
        save_model(self.model, Decoder(SHAPE, seed=3))
        save_model(folder / "frozen", Decoder(SHAPE, seed=4))
        (self.model / "tokenizer.json").write_text('{"a": "tokenizer"}')
        self.loop = asyncio.new_event_loop()
        self.client: LearnerClient = self.launch(self.board, frozen=folder / "frozen")
        self.twin = Learner(load_model(self.model), OPTIM, STEPS, MICRO, frozen=load_model(folder / "frozen"))

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, SECONDS))

    def launch(self, board: Path, log: Path | None = None, **options: Any) -> LearnerClient:
        spec = LearnerSpec(self.model, OPTIM, total_steps=STEPS, micro_tokens=MICRO, board=board, **options)
        client: LearnerClient = self.run(launch_learner(spec, log=log))
        return client


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    home = Home(tmp_path_factory.mktemp("learner"))
    yield home
    home.run(home.client.close())
    home.loop.close()
    assert not home.board.exists()
    assert not home.client.child.folder.path.exists()


def without_seconds(metrics: dict[str, float]) -> dict[str, float]:
    assert metrics["seconds"] > 0
    return {name: value for name, value in metrics.items() if name not in ("seconds", "update_rms")}


def test_it_trains_as_a_learner_in_this_process_does(home: Home) -> None:
    before = home.client.busy_seconds
    for seed in range(3):
        expected = home.twin.forward_backward(batch(seed))
        assert without_seconds(home.run(home.client.forward_backward(batch(seed)))) == expected
        assert without_seconds(home.run(home.client.step())) == home.twin.step()
    for weights in ("live", "ema", "frozen"):
        scores = home.run(home.client.score(batch(9).items, weights))
        for got, wanted in zip(scores, home.twin.score(batch(9).items, weights), strict=True):
            assert np.array_equal(got, wanted)
    assert home.client.busy_seconds > before


def test_published_weights_are_on_the_board(home: Home) -> None:
    home.run(home.client.publish(Version(2, 7)))
    decoder = Decoder(SHAPE)
    WeightBoard.attach(home.board).load_into(decoder, Version(2, 7))
    assert same(decoder, home.twin.decoder)


def test_a_learner_that_was_saved_and_restored_goes_on_as_if_nothing_happened_and_its_bug_is_in_log_and_error(
    home: Home, tmp_path: Path
) -> None:
    saved = tmp_path / "saved"
    saved.mkdir()
    home.run(home.client.save(saved))
    assert (saved / "tokenizer.json").read_text() == '{"a": "tokenizer"}'
    with pytest.raises(EtudeError, match="the learner refused save: the learner saves into an empty folder"):
        home.run(home.client.save(saved))
    again = home.launch(tmp_path / "board", restore=saved)
    try:
        for client in (home.client, again):
            home.run(client.forward_backward(batch(5)))
        first, second = (without_seconds(home.run(client.step())) for client in (home.client, again))
        assert first == second
        home.run(again.publish(Version(0, 1)))
        home.twin.forward_backward(batch(5))
        home.twin.step()
        decoder = Decoder(SHAPE)
        WeightBoard.attach(tmp_path / "board").load_into(decoder, Version(0, 1))
        assert same(decoder, home.twin.decoder)
        # no version is as high as that, so nobody looks for it beforehand; whatever ends the process is shown
        with pytest.raises(EtudeError, match=r"ended with code 1(.|\n)*struct.error"):
            home.run(again.publish(Version(0, 1 << 80)))
    finally:
        home.run(again.close())
    assert not (tmp_path / "board").exists()


def test_a_batch_that_asks_for_nothing_costs_no_forward(home: Home) -> None:
    zeros = np.zeros(4, np.float32)
    idle = Batch([Item(np.arange(4), [Stream("main", zeros, Sampled(zeros, zeros))])])
    assert home.run(home.client.forward_backward(idle))["forward_tokens"] == 0
    assert home.run(home.client.score([])) == []


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda client: client.score(batch(0).items, "best"), "no 'best' weights; it has: live, frozen, ema"),
        (lambda client: client.score([Item(np.array([1, 61]), [])]), "ids outside of 0 to 60"),
        (lambda client: client.score([Item(np.array([-1, 6]), [])]), "ids outside of 0 to 60"),
        (lambda client: client.score([Item(np.array([], np.int64), [])]), "a sequence is empty"),
        (lambda client: client.forward_backward(one("main", Label(np.array([1, 61])))), "labels hold ids outside"),
        (lambda client: client.forward_backward(one("mtp.3", Label(np.array([1, 6])))), "asks for the head 'mtp.3'"),
        (lambda client: client.save(Path("/nowhere/at/all")), "saves into an empty folder"),
        (lambda client: client._call("dance", StepRequest()), "the learner has no verb 'dance'"),
    ],
)
def test_a_refusal_says_why_and_the_learner_goes_on(
    home: Home, ask: Callable[[LearnerClient], Coroutine[Any, Any, Any]], message: str
) -> None:
    with pytest.raises(EtudeError, match=message):
        home.run(ask(home.client))
    assert len(home.run(home.client.score(batch(0).items))) == 5


def test_a_cancelled_verb_does_not_answer_the_next_one(home: Home) -> None:
    async def scenario() -> None:
        task = asyncio.ensure_future(home.client.score(batch(1).items))
        while home.client._answer is None or home.client._answer.done():
            await asyncio.sleep(0)
        task.cancel()
        scores = await home.client.score(batch(2).items[:1])
        assert [len(row) for row in scores] == [9]

    home.run(scenario())


def test_a_stopped_process_is_told_from_a_slow_one(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    process = home.client.child.process
    process.send_signal(signal.SIGSTOP)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(home.client, "silence", 0.05)
            with pytest.raises(EtudeError, match=r"gave no sign of life for 0\.05 s in score(.|\n)*log"):
                home.run(home.client.score(batch(0).items))
        with monkeypatch.context() as patched:
            patched.setattr(home.client, "deadline", 0.05)
            with pytest.raises(EtudeError, match=r"did not finish step within 0\.05 s"):
                home.run(home.client.step())
    finally:
        process.send_signal(signal.SIGCONT)
    home.twin.step()
    assert len(home.run(home.client.score(batch(0).items))) == 5


async def speaking(answer: Callable[[LearnerClient, asyncio.StreamWriter], Awaitable[None]], path: Path) -> Any:
    """A client's step against a process that says what `answer` makes of the request."""
    arrived: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(PREFIX_BYTES)
        await arrived.put(writer)

    server = await asyncio.start_unix_server(take, path)
    client = LearnerClient(None, *await asyncio.open_unix_connection(path))  # type: ignore[arg-type]
    client.silence = 0.04
    step = asyncio.ensure_future(client.step())
    await answer(client, await arrived.get())
    try:
        return await step
    finally:
        client._listening.cancel()
        client._writer.close()
        server.close()


def test_heartbeats_keep_a_long_verb_alive(tmp_path: Path) -> None:
    async def beats_then_answers(client: LearnerClient, writer: asyncio.StreamWriter) -> None:
        for _ in range(6):  # each time half of the silence that would end it
            while client._quiet < client.silence / 2:
                await asyncio.sleep(0)
            writer.write(write_frame(Frame({"beat": True})))
            while client._quiet:
                await asyncio.sleep(0)
        writer.write(write_frame(Frame({"number": 1, "message": {"metrics": {"lr": 0.5}}, "seconds": 3.0})))

    answer = asyncio.run(asyncio.wait_for(speaking(beats_then_answers, tmp_path / "s"), SECONDS))
    assert answer == {"lr": 0.5, "seconds": 3.0}


def test_a_working_process_sends_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "BEAT", 0.001)
    here, there = sockets.socketpair()
    with here, there:
        line, other = worker.Line(here), worker.Line(there)
        with line.beating():
            assert [other.receive() for _ in range(3)] == [Frame({"beat": True})] * 3
        assert "heartbeat" not in {thread.name for thread in threading.enumerate()}


def test_half_a_frame_is_waited_for_with_patience_that_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "PATIENCE", 0.01)
    here, there = sockets.socketpair()
    with here, there:
        there.sendall(write_frame(Frame({"verb": "step"}))[:-1])
        with pytest.raises(EtudeError, match="the rest of a frame did not come"):
            worker.Line(here).receive()
        there.close()
        assert worker.Line(here).receive() is None


def test_a_killed_learner_is_reported_with_its_log_and_leaves_nothing(home: Home, tmp_path: Path) -> None:
    client = home.launch(tmp_path / "board", log=tmp_path / "log")

    async def scenario() -> None:
        (tmp_path / "log").write_text("something it had said\n")
        client.child.process.send_signal(signal.SIGSTOP)  # so that it is in the middle of the verb
        task = asyncio.ensure_future(client.score(batch(0).items))
        while client._answer is None:
            await asyncio.sleep(0)
        client.child.process.kill()
        for work in (task, client.step()):
            with pytest.raises(EtudeError, match=r"ended with code -9(.|\n)*something it had said"):
                await work
        assert (tmp_path / "board").exists()
        await client.close()

    home.run(scenario())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log"]
    assert not client.child.folder.path.exists()


def test_a_learner_that_cannot_start_says_why(home: Home, tmp_path: Path) -> None:
    with pytest.raises(EtudeError, match=r"ended with code 2(.|\n)*learner.json is missing"):
        home.launch(tmp_path / "board", restore=home.model)
    with pytest.raises(EtudeError, match=r"ended with code 2(.|\n)*device is 'warp'"):
        home.launch(tmp_path / "board", device="warp")
    assert not list(tmp_path.iterdir())


ORPHANING = """
import asyncio, os, sys
from pathlib import Path
from etude.rl.learner.client import launch_learner
from etude.rl.learner.messages import LearnerSpec
from etude.core.settings import OptimSettings
async def main():
    model, board = map(Path, sys.argv[1:])
    spec = LearnerSpec(model, OptimSettings(), total_steps=1, micro_tokens=9, board=board)
    client = await launch_learner(spec)
    assert board.exists() and client.child.folder.socket.exists()
    print(client.child.process.pid, client.child.folder.path, "torch" in sys.modules, flush=True)
    os.kill(os.getpid(), 9)
asyncio.run(main())
"""


def test_a_killed_parent_leaves_no_process_no_board_and_no_folder(home: Home, tmp_path: Path) -> None:
    board = tmp_path / "board"
    command = [sys.executable, "-c", ORPHANING, str(home.model), str(board)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == -9, done.stderr
    pid, folder, torch_loaded = done.stdout.split()
    assert torch_loaded == "False"
    deadline = time.monotonic() + SECONDS
    while _alive(pid):
        assert time.monotonic() < deadline, "the learner outlived its parent"
    assert not board.exists()
    assert not Path(folder).exists()


def _alive(pid: str) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):  # it may go between two looks
        return False


@pytest.mark.parametrize("module", ["etude.rl.learner.process", "etude.rl.learner.client", "etude.serve.server"])
def test_torch_is_not_loaded_before_the_process_is_prepared(module: str) -> None:
    script = f"import sys, json, {module}; print(json.dumps('torch' in sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=SECONDS)
    assert json.loads(done.stdout) is False, done.stderr


def test_heartbeats_come_often_enough_for_a_client_that_waits_for_them() -> None:
    assert learner_client.TICK < learner_client.SILENCE / 4
    assert worker.BEAT < learner_client.SILENCE / 4
