"""The sinks against the real libraries without a network, and what a broken one may do to a run: nothing."""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from etude.core import recipe as recipes
from etude.core.errors import EtudeError
from etude.core.run import Run
from etude.core.sinks import feed as feeds
from etude.core.sinks.base import RunFacts, Sink
from etude.core.sinks.feed import Feed, open_sinks
from etude.core.sinks.table import SINKS, build_sinks
from etude.pipeline.stages.table import checked_stages


def log_two_steps(path: Path, spec: dict[str, Any], first: int = 1) -> None:
    with Run.open(path, {"run": {"sinks": [spec]}, "rl": {"steps": 4}}, listen=open_sinks) as run:
        for step in (first, first + 1):
            run.log("rl", step, reward=step / 4, note="words", lost=float("inf"))


def test_tensorboard_reads_what_the_sink_wrote(tmp_path: Path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log_two_steps(tmp_path / "run", {"use": "tensorboard"})
    read = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    read.Reload()
    assert read.Tags()["scalars"] == ["rl/reward"]
    assert [(event.step, event.value) for event in read.Scalars("rl/reward")] == [(1, 0.25), (2, 0.5)]


def test_trackio_keeps_one_run_over_two_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("trackio")
    from trackio import context_vars, sqlite_storage, utils

    for module in (sqlite_storage, utils):
        monkeypatch.setattr(module, "TRACKIO_DIR", tmp_path / "trackio")
    for first in (1, 3):
        log_two_steps(tmp_path / "run", {"use": "trackio", "project": "etude-test"}, first)
        context_vars.current_run.set(None)
    storage = sqlite_storage.SQLiteStorage
    (name,) = storage.get_runs("etude-test")
    assert name.startswith("run-")
    rows = storage.get_logs("etude-test", name)
    assert [(row["step"], row["rl/reward"]) for row in rows] == [(1, 0.25), (2, 0.5), (3, 0.75), (4, 1.0)]


def test_a_recipe_with_a_sink_that_is_not_there_is_refused_before_the_run(monkeypatch: pytest.MonkeyPatch):
    assert build_sinks([]) == {}
    with pytest.raises(EtudeError, match=r"no sink is called 'wandbb'; did you mean wandb"):
        checked_stages("corpus", recipes.load("nano", ["run.sinks=[{use='wandbb'}]"]))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for name in SINKS:
        with pytest.raises(
            EtudeError, match=rf"run\.sinks\[0\] needs the package {name}: pip install 'etude\[{name}\]'"
        ):
            build_sinks([{"use": name}])


class Broken(Sink):
    def __init__(self, at: str) -> None:
        self.at, self.logged = at, 0

    def open(self, run: RunFacts) -> None:
        if self.at == "open":
            raise OSError("no network")

    def log(self, row: Any) -> None:
        self.logged += 1
        raise ValueError(f"cannot send {row['step']}")

    def close(self) -> None:
        if self.at == "open":
            raise AttributeError("what open would have made")


def test_a_sink_that_fails_is_left_alone_and_the_log_says_why(tmp_path: Path):
    said: list[str] = []
    for at, problem, logged in (
        ("open", "it cannot be opened: OSError: no network", 0),
        ("log", "ValueError: cannot send 5; it is left alone", feeds.FAILURES),
    ):
        sink = Broken(at)
        feed = Feed("mine", sink, RunFacts(tmp_path, "id", {}), said.append)
        for step in range(1, 20):
            feed.put({"stage": "rl", "step": step})
        feed.close()
        assert (feed.problem, sink.logged) == (f"sink mine: {problem}", logged)
        assert said[-1] == f"sink mine: {problem}"


def test_a_sink_that_hangs_holds_up_neither_the_run_nor_its_end(tmp_path: Path):
    began, released = threading.Event(), threading.Event()

    class Hanging(Sink):
        def log(self, row: Any) -> None:
            began.set()
            released.wait(60)

    said: list[str] = []
    feed = Feed("slow", Hanging(None), RunFacts(tmp_path, "id", {}), said.append)
    feed.put({"stage": "rl", "step": 0})
    assert began.wait(60)  # the first row is with the sink, so the queue is empty
    for step in range(feeds.WAITING + 10):
        feed.put({"stage": "rl", "step": step})
    assert feed.left_out == 10
    feed.close(0.01)
    released.set()
    assert "takes no more rows" in said[0] and "rows were left out" in said[-1]


def test_a_run_with_a_broken_sink_has_every_row_and_says_so_at_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    code = (
        "from etude.core.sinks.base import Sink",
        "class Mine(Sink):",
        "    def log(self, row): raise OSError('gone')",
    )
    (tmp_path / "mine.py").write_text("\n".join(code))
    log_two_steps(tmp_path / "run", {"use": f"{tmp_path / 'mine.py'}:Mine"})
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["reward"] for row in rows] == [0.25, 0.5]
    assert "sink Mine: OSError: gone" in (tmp_path / "run" / "log").read_text()
    assert "sink Mine: OSError: gone; metrics.jsonl has every row" in capsys.readouterr().err


@pytest.mark.parametrize(("settings", "variable"), [({"mode": "offline"}, "online"), ({}, "offline")])
def test_wandb_writes_a_run_that_can_be_sent_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], variable: str
):
    wandb = pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_MODE", variable)  # holds where the recipe does not say
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    log_two_steps(tmp_path / "run", {"use": "wandb", **settings})
    wandb.teardown()  # its own process has written everything when it has ended
    (file,) = (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")
    found = []
    for data in wandb_records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
            found.append((json.loads(items["rl/step"]), json.loads(items["rl/reward"])))
    assert found == [(1, 0.25), (2, 0.5)]


def wandb_records(data: bytes) -> Iterator[bytes]:
    """The records of its file: LevelDB's log format (blocks of 32 KiB) behind a header of seven bytes."""
    at, record = 7, b""
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or its last piece
            yield record
            record = b""
