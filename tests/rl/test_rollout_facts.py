"""What is kept of a rollout for algorithms, and that what earlier versions wrote still loads."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from etude.behaviours.base import Site
from etude.core.policy import Assistant, Call, Sample, Sampling, ToolResult, User, Version
from etude.core.terms import Terms
from etude.harness.hinted import Hinted
from etude.harness.trajectory import PARTS, MessageRecord, Segment, Trajectory
from etude.rl.groups import Rollout, Trace, compact, pack, unpack
from etude.rl.journal import Journal
from etude.rollout.rollout import Scored
from etude.tasks.format.task import Task
from etude.tasks.grading.submission import Submission
from etude.tasks.grading.verdict import Grade
from etude.tokens.native import Native
from etude.tokens.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def scored() -> Scored:
    """Two segments: a turn with two calls of which one fails, and a turn that cannot be read after a summary."""
    dialect = Native(Tokenizer.train(["some text to learn from, and some more of it"], 300))
    calls = (Call("read", {"path": "a"}), Call("edit", {"path": "b"}))
    entries = [
        MessageRecord(User("do it")),
        MessageRecord(Assistant(calls=calls), stop="stop"),
        MessageRecord(ToolResult("read", "text")),
        MessageRecord(ToolResult("edit", "no such text"), error="UnexpectedEnvironment"),
        MessageRecord(User("the summary"), segment=1),
        MessageRecord(Assistant(), segment=1, error="InvalidArguments", stop="stop"),
    ]
    trajectory = Trajectory(
        tools=("read", "edit"), entries=entries, sampling=Sampling(temperature=0.7), stop="malformed"
    )
    first, second = Segment(), Segment(cause="summary")
    first.append([User("do it")], [0], dialect, most=1000, open_turn=True)
    first.append_sample(Sample("", "stop", (65, 66, 67), (-1.0, -2.0, -0.5), (Version(0, 3),) * 3), 1, dialect)
    second.append([User("the summary")], [4], dialect, most=1000, open_turn=True)
    second.append_sample(Sample("", "stop", (70, 71), (-1.0, -2.0), (Version(0, 4),) * 2), 5, dialect)
    trajectory.segments = [first, second]
    sites = (Site(1, "text_not_found", "Read the file first."), Site(5, "malformed", ""))
    return Scored(
        Task("one", "do it"),
        trajectory,
        Submission(),
        Grade(False, "tests", "it fails"),
        0.25,
        {"tests": 0.0},
        sites=sites,
        hints=(Hinted(0, 0, 2, (9, 8), 3, 6),),
    )


def test_a_rollout_keeps_where_things_happened(scored: Scored) -> None:
    rollout = compact(scored, source="katas", terms=Terms("low", 2))
    assert (rollout.task, rollout.source, rollout.terms) == ("one", "katas", Terms("low", 2))
    assert rollout.errors == {"UnexpectedEnvironment": 1, "malformed": 1}
    assert rollout.behaviours == {"text_not_found": 1, "malformed": 1}
    assert (rollout.parallel_calls, rollout.summaries, rollout.edited) == (1.0, 1, False)
    assert [trace.cause for trace in rollout.traces] == ["start", "summary"]
    for trace, segment in zip(rollout.traces, scored.trajectory.segments, strict=True):
        kept = [(row[0], PARTS[row[1]], row[2], row[3], bool(row[4])) for row in trace.spans_S5.tolist()]
        # the entry of the trajectory, and not the segment's own count of messages
        assert kept == [(segment.messages[s.message], s.part, s.start, s.end, s.own) for s in segment.rendered.spans]
    assert set(rollout.traces[1].spans_S5[:, 0].tolist()) == {4, 5}


def test_all_of_it_survives_packing(scored: Scored) -> None:
    rollout = compact(scored, source="katas", terms=Terms("low", 2))
    assert rollout.submission == scored.changes.digest
    again = unpack(pack(rollout))
    assert replace(again, traces=()).__dict__ == replace(rollout, traces=()).__dict__
    for one, other in zip(rollout.traces, again.traces, strict=True):
        np.testing.assert_array_equal(one.spans_S5, other.spans_S5)
        assert one.cause == other.cause


def test_a_rollout_that_an_earlier_version_packed_still_loads() -> None:
    facts = {"reward": 1.0, "parts": {"tests": 1.0}, "passed": True, "stop": "final", "turns": 2, "malformed": 0}
    facts |= {"tool_errors": 0, "tokens": 2, "temperature": 1.0, "seconds": 0.5}
    arrays = {
        "0.ids_T": np.array([1, 2], np.int32),
        "0.sampled_T": np.array([False, True]),
        "0.logprob_T": np.array([0, -1], np.float32),
        "0.version_T2": np.array([[-1, -1], [0, 1]], np.int32),
    }
    rollout = unpack(save(arrays, {"facts": json.dumps(facts)}))
    assert (rollout.terms, rollout.sites, rollout.task, rollout.errors) == (Terms(), (), "", {})
    assert rollout.traces[0].spans_S5.shape == (0, 5) and rollout.traces[0].cause == "start"


def test_terms_of_a_group_are_in_the_journal_and_a_journal_without_them_still_opens(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    base = sqlite3.connect(path)
    base.executescript(
        "CREATE TABLE changes (row INTEGER PRIMARY KEY, lineage INTEGER NOT NULL, number INTEGER NOT NULL, "
        "slot INTEGER NOT NULL, state TEXT NOT NULL, step INTEGER NOT NULL);"
        "CREATE INDEX changes_of_slot ON changes (number, slot, row);"
        "CREATE TABLE rollouts (number INTEGER NOT NULL, slot INTEGER NOT NULL, data BLOB NOT NULL, "
        "PRIMARY KEY (number, slot));"
        "CREATE TABLE lineages (lineage INTEGER PRIMARY KEY, step INTEGER NOT NULL, row INTEGER NOT NULL);"
        "INSERT INTO lineages VALUES (0, 0, 0);"
        "INSERT INTO changes VALUES (1, 0, 0, 0, 'queued', 0), (2, 0, 0, 0, 'ready', 0);"
        "INSERT INTO rollouts VALUES (0, 0, x'6f6c64');"
        "PRAGMA user_version = 1;"
    )
    base.close()
    journal = Journal(path, 1)
    resumed = journal.resume(0, 0)
    assert resumed.groups[0][1][0].data == b"old" and resumed.next == 1
    journal.admit(1, 1, 0, Terms("high", 3))
    journal.close()
    again = Journal(path, 2).resume(0, 0)
    assert again.terms.get(0, Terms()) == Terms() and again.terms[1] == Terms("high", 3)


def test_traces_without_spans_can_be_made_by_hand() -> None:
    trace = Trace(np.zeros(1, np.int32), np.ones(1, bool), np.zeros(1, np.float32), np.zeros((1, 2), np.int32))
    rollout = Rollout(0.0, {}, False, "final", 1, 0, 0, 1, 1.0, 0.1, (trace,))
    assert unpack(pack(rollout)).summaries == 0
