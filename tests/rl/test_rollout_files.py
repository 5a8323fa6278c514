"""Large rollouts as files: written off the event loop, named by path and digest, and gone with their rows."""

from __future__ import annotations

import asyncio
import hashlib
import struct
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etude.core import transport
from etude.core.errors import EtudeError
from etude.core.terms import Terms
from etude.harness.trajectory import Trajectory
from etude.rl import groups
from etude.rl.groups import Rollout, Trace, pack, unpack
from etude.rl.journal import Journal
from etude.rl.rollout_files import RolloutFile
from etude.rollout.rollout import Scored
from etude.tasks.format.task import Task
from etude.tasks.grading.submission import Submission
from etude.tasks.grading.verdict import Grade


def large() -> Rollout:
    count = 20_000
    trace = Trace(np.arange(count, dtype=np.int32), np.ones(count, bool), np.zeros(count), np.zeros((count, 2)))
    return Rollout(0.0, {}, False, "final", 1, 0, 0, count, 1.0, 0.1, (trace,))


def test_a_file_lives_as_long_as_its_row(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db", 0)
    journal.resume(0, 0)
    for number in (0, 1, 2):
        journal.admit(number, 1, 0)
        journal.ready(number, 0, journal.files.write(number, 0, 0, f"data {number}".encode()))
    journal.trained([(0, [0])], 1)
    row = journal.row
    journal.trained([(1, [0])], 2)
    journal.void_group(2)
    journal.forget(row)
    assert [path.name for path in sorted(journal.files.folder.iterdir())] == ["000001-00-0.safetensors"]
    journal.files.write(7, 0, 0, b"a killed process wrote this and never named it")
    journal.close()
    again = Journal(tmp_path / "journal.db", 1)
    (slot,) = again.resume(row, 1).groups[1][1]
    assert slot.state == "ready" and slot.file is not None and again.files.read(slot.file) == b"data 1"
    assert len(list(again.files.folder.iterdir())) == 1


@pytest.mark.parametrize("name", ["../outside", "{folder}/outside", "", "..", "a\0b"])
def test_a_name_that_leads_elsewhere_is_neither_read_nor_removed(tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"abc")
    journal = Journal(tmp_path / "journal.db", 0)
    journal.files.write(0, 0, 0, b"mine")
    file = RolloutFile(name.format(folder=tmp_path), hashlib.sha256(b"abc").hexdigest())
    with pytest.raises(EtudeError, match="is no name of a rollout's file"):
        journal.files.read(file)
    journal.resume(0, 0)
    journal.admit(0, 1, 0)
    journal.ready(0, 0, file)
    journal.void_group(0)
    assert outside.exists()


def test_a_file_that_was_changed_or_is_gone_is_refused_by_name(tmp_path: Path) -> None:
    files = Journal(tmp_path / "journal.db", 0).files
    file = files.write(0, 0, 0, b"abc")
    (files.folder / file.path).write_bytes(b"abd")
    with pytest.raises(EtudeError, match=r"000000-00-0\.safetensors is not the one that was written"):
        files.read(file)
    with pytest.raises(EtudeError, match="cannot be read"):
        files.read(RolloutFile("nothing", ""))


def test_a_large_rollout_is_packed_and_written_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed_in: list[threading.Thread] = []

    def packing(rollout: Rollout) -> bytes:
        packed_in.append(threading.current_thread())
        return pack(rollout)

    monkeypatch.setattr(groups, "compact", lambda scored, source, terms: scored.parts["rollout"])
    monkeypatch.setattr(groups, "pack", packing)
    journal = Journal(tmp_path / "journal.db", 0)
    small = replace(large(), traces=())

    async def work() -> list[Any]:
        found = []
        for rollout in (small, large()):
            scored = Scored(Task("t", ""), Trajectory(), Submission(), Grade(False, "tests", ""), 0.0, {})
            scored.parts["rollout"] = rollout  # type: ignore[assignment]
            found.append((await groups.packed(scored, "", Terms(), journal.files, (3, 1, 0)))[1])
        return found

    inline, file = asyncio.run(work())
    assert isinstance(inline, bytes) and isinstance(file, RolloutFile)
    assert packed_in[0] is threading.main_thread() and packed_in[-1] is not threading.main_thread()
    assert unpack(journal.files.read(file)).tokens == 20_000


def test_frames_above_4_gib_are_taken() -> None:
    good = transport.write_frame(transport.Frame({"verb": "step"}))[: transport.PREFIX_BYTES]
    assert transport.read_prefix(good[:8] + struct.pack("<Q", 5 << 30))[1] == 5 << 30


def test_a_frame_is_the_same_bytes_whatever_the_layout_of_its_arrays() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    frames = [transport.write_frame(transport.Frame({}, {"a": a})) for a in (array, np.asfortranarray(array))]
    assert frames[0] == frames[1]
    size = transport.read_prefix(frames[0][: transport.PREFIX_BYTES])
    body = frames[0][transport.PREFIX_BYTES :]
    read = transport.read_frame(body[: size[0]], body[size[0] :])
    np.testing.assert_array_equal(read.arrays["a"], array)
