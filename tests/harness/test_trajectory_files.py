"""Trajectories on disk: what was saved comes back equal, and nothing else comes in."""

from __future__ import annotations

import dataclasses
import json
import os
import random
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import numpy as safetensors_numpy

from etude.core.errors import EtudeError
from etude.core.policy import Assistant, Call, Message, Sample, Sampling, System, ToolResult, User, Version
from etude.core.settings import AgentLimits
from etude.core.terms import Terms
from etude.harness.failures import ErrorClass
from etude.harness.trajectory import MessageRecord, Parent, Segment, Trajectory
from etude.harness.trajectory_files import load_trajectory, save_trajectory
from etude.tokens.tokenizer import to_text

texts = st.one_of(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), st.binary(max_size=6).map(to_text))
calls = st.builds(Call, texts, st.dictionaries(texts, texts, max_size=2))
turns = st.builds(Assistant, texts, texts, st.lists(calls, max_size=2).map(tuple))
prompts: st.SearchStrategy[Message] = st.one_of(
    st.builds(System, texts), st.builds(User, texts), st.builds(ToolResult, texts, texts)
)
seconds = st.integers(0, 10**9).map(lambda number: number / 64)


@st.composite
def trajectories(draw: Any, dialect: Any) -> Trajectory:
    made = Trajectory(
        task=draw(st.text("abc/é", max_size=5)),
        policy="script",
        tokenizer=dialect.fingerprint,
        tools=("read", "finish"),
        limits=AgentLimits(turns=draw(st.integers(1, 9))),
        sampling=Sampling(temperature=draw(st.sampled_from([0.0, 0.7, 1.0])), stop_ids=(1, 2)),
        terms=draw(st.builds(Terms, st.sampled_from(["", "low"]), st.integers(0, 3))),
        stop=draw(st.sampled_from(["finish", "time", ""])),
        seconds=draw(seconds),
    )
    for number in range(draw(st.integers(0, 2))):
        segment = Segment()
        if number:
            parent = draw(st.integers(0, number - 1))
            offset = draw(st.integers(0, len(made.segments[parent].ids)))
            segment = Segment(
                draw(st.sampled_from(["summary", "sub-agent", "branch", "rewrite"])), Parent(parent, offset)
            )
        made.segments.append(segment)
        for _ in range(draw(st.integers(0, 3))):
            message = draw(st.one_of(prompts, turns))
            entry = MessageRecord(
                message, draw(st.integers(-1, number)), draw(st.sampled_from([None, *get_args(ErrorClass)]))
            )
            made.entries.append(entry)
            segment.append([message], [len(made.entries) - 1], dialect, most=10**6, open_turn=False)
            if draw(st.booleans()):
                segment.append((), (), dialect, most=10**6, open_turn=True)
                ids = (*draw(st.lists(st.integers(24, 400), max_size=5)), draw(st.sampled_from([9, 11, 30])))
                probs = draw(st.lists(seconds.map(lambda number: -number), min_size=len(ids), max_size=len(ids)))
                versions = draw(st.sampled_from([None, (Version(0, 3),) * len(ids)]))
                known = draw(st.booleans())
                sample = Sample("", "stop", ids, tuple(probs) if known else None, versions if known else None)
                segment.append_sample(sample, len(made.entries), dialect)
                made.entries.append(MessageRecord(draw(turns), number, None, "note", "length", draw(seconds)))
        segment.copied = draw(st.integers(0, len(segment.ids)))
    return made


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_what_was_saved_comes_back_equal(data: Any, dialect: Any, tmp_path_factory: Any) -> None:
    made = data.draw(trajectories(dialect))
    directory = tmp_path_factory.mktemp("t") / "one"
    save_trajectory(made, directory)
    assert load_trajectory(directory) == made
    assert sorted(file.name for file in directory.iterdir()) == [
        "messages.jsonl",
        "tokens.safetensors",
        "trajectory.json",
    ]


@pytest.fixture
def saved(tmp_path: Path, rollouts: Any, script: Any, say_call: Any) -> Path:
    (rollouts.sandbox.root / "a.py").write_text("x\n")
    steps = [say_call("read", path="a.py"), say_call("raed"), say_call("finish", message="done")]
    trajectory = rollouts.play(script(rollouts.dialect, steps, Version(1, 4)), system="s")
    trajectory.task = "kata/one"
    save_trajectory(trajectory, tmp_path / "one")
    assert load_trajectory(tmp_path / "one") == trajectory
    return tmp_path / "one"


def test_a_person_can_read_it(saved: Path) -> None:
    facts = json.loads((saved / "trajectory.json").read_text())
    assert (facts["task"], facts["stop"], facts["answer"], facts["trainable"]) == ("kata/one", "finish", "done", "yes")
    assert facts["versions"] == ["1.4"] and facts["effort"]["turns"] == 3
    lines = [json.loads(line) for line in (saved / "messages.jsonl").read_text().splitlines()]
    assert [line["role"] for line in lines] == ["system", "user", *["assistant", "tool"] * 2, "assistant"]
    assert lines[3]["content"] == "x" and lines[3]["seconds"] > 0
    assert lines[5]["error"] == "InvalidArguments"


def test_a_trajectory_is_never_overwritten(saved: Path) -> None:
    with pytest.raises(EtudeError, match="exists already"):
        save_trajectory(Trajectory(), saved)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EtudeError, match=r"cannot save a trajectory to .*Not a directory"):
        save_trajectory(Trajectory(), tmp_path / "file" / "t")


# What may be trained on


def test_why_a_trajectory_cannot_be_trained_on(dialect: Any) -> None:
    def of(ids: bool = True, logprobs: bool = True, versions: bool = True, **sampling: Any) -> str:
        segment = Segment()
        segment.append([User("x")], [0], dialect, most=99, open_turn=True)
        if ids:
            sample = Sample("", "stop", (9,), (-1.0,) if logprobs else None, (Version(0, 0),) if versions else None)
            segment.append_sample(sample, 1, dialect)
        return Trajectory(segments=[segment], sampling=Sampling(**sampling)).trainable.why_not

    assert of() == ""
    assert "nothing in it was sampled" in of(ids=False)
    assert "scripted" in of(logprobs=False)
    assert "which version" in of(versions=False)
    for sampling in ({"top_p": 0.9}, {"top_k": 5}, {"temperature": 0.0}):
        assert "whole distribution" in of(**sampling)


def test_copied_tokens_are_not_trained_on_twice(dialect: Any) -> None:
    segment = Segment("branch", Parent(0, 3))
    segment.append([User("x")], [0], dialect, most=99, open_turn=True)
    segment.append_sample(Sample("", "stop", (9,), (-1.0,), (Version(0, 0),)), 1, dialect)
    segment.copied = len(segment.ids)
    trajectory = Trajectory(segments=[segment])
    assert trajectory.trainable.why_not == "nothing in it was sampled" and trajectory.sampled_tokens == 0


def test_effort_counts_a_message_where_it_was_said_first(dialect: Any) -> None:
    trajectory = Trajectory(entries=[MessageRecord(User("x")), MessageRecord(Assistant(final="yes"), stop="stop")])
    for _ in range(2):
        segment = Segment()
        segment.append([User("x"), Assistant(final="yes")], [0, 1], dialect, most=99, open_turn=False)
        trajectory.segments.append(segment)
    assert trajectory.effort.final_tokens == 2 + len(dialect.encode("yes"))


# Hostile directories


def edit_facts(directory: Path, change: Any) -> None:
    facts = json.loads((directory / "trajectory.json").read_text())
    change(facts)
    (directory / "trajectory.json").write_text(json.dumps(facts))


def edit_arrays(directory: Path, change: Any) -> None:
    arrays = {
        name: array.copy() for name, array in safetensors_numpy.load_file(directory / "tokens.safetensors").items()
    }
    change(arrays)
    safetensors_numpy.save_file(arrays, directory / "tokens.safetensors")


def put(arrays: dict[str, np.ndarray], name: str, at: Any, value: Any) -> None:
    arrays[name][at] = value


@pytest.mark.parametrize(
    "change",
    [
        lambda f: f.update(format=2),
        lambda f: f.update(extra=1),
        lambda f: f.pop("stop"),
        lambda f: f.update(stop="won"),
        lambda f: f.update(seconds=float("nan")),
        lambda f: f.update(task=7),
        lambda f: f["limits"].update(turns="many"),
        lambda f: f["segments"][0].update(cause="magic"),
        lambda f: f["segments"][0].update(cause="summary"),
        lambda f: f["segments"][0].update(parent=[0, 0], cause="branch"),
        lambda f: f["segments"][0].update(parent=[0, 0]),
        lambda f: f["segments"][0].update(copied=10**6),
        lambda f: f["segments"][0].update(copied=-1),
        lambda f: f["segments"][0]["messages"].append(99),
        lambda f: f["segments"][0].update(messages=[0]),
        lambda f: f["segments"].append(f["segments"][0]),
        lambda f: f["segments"].clear(),
    ],
)
def test_wrong_facts_are_refused(saved: Path, change: Any) -> None:
    edit_facts(saved, change)
    with pytest.raises(EtudeError, match="is not a trajectory that can be read"):
        load_trajectory(saved)


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a.pop("0.ids"),
        lambda a: a.update({"1.ids": a["0.ids"]}),
        lambda a: a.update({"0.ids": a["0.ids"].astype(np.int64)}),
        lambda a: a.update({"0.ids": a["0.ids"][:-1].copy()}),
        lambda a: a.update({"0.version": a["0.version"].reshape(-1).copy()}),
        lambda a: a.update({"0.spans": a["0.spans"][:, :4].copy()}),
        lambda a: a.update({"0.spans": a["0.spans"][:-1].copy()}),
        lambda a: a.update({"0.spans": a["0.spans"][1:].copy()}),
        lambda a: put(a, "0.ids", 0, -5),
        lambda a: put(a, "0.origin", 0, 7),
        lambda a: put(a, "0.origin", 0, 1),
        lambda a: put(a, "0.origin", -1, 0),
        lambda a: put(a, "0.logprob", -1, np.nan),
        lambda a: put(a, "0.logprob", -1, 3.0),
        lambda a: put(a, "0.logprob", 0, -1.0),
        lambda a: put(a, "0.version", (-1, 1), -9),
        lambda a: put(a, "0.version", (0, 0), 1),
        lambda a: put(a, "0.spans", (0, 0), 5),
        lambda a: put(a, "0.spans", (-1, 0), 99),
        lambda a: put(a, "0.spans", (0, 1), 99),
        lambda a: put(a, "0.spans", (0, 4), 2),
        lambda a: put(a, "0.spans", (-1, 3), 10**6),
        lambda a: put(a, "0.spans", (-1, 4), 0),
    ],
)
def test_wrong_arrays_are_refused(saved: Path, change: Any) -> None:
    edit_arrays(saved, change)
    with pytest.raises(EtudeError, match="is not a trajectory that can be read"):
        load_trajectory(saved)


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        "[1]",
        '{"role": "user"}',
        '{"role": "oracle", "content": "x"}',
        '{"role": "user", "content": "x", "spell": 1}',
        '{"role": "user", "content": "x", "segment": 5}',
        '{"role": "user", "content": "x", "segment": "0"}',
        '{"role": "user", "content": "x", "error": "Oops"}',
        '{"role": "user", "content": "x", "seconds": NaN}',
        '{"role": "user", "content": "\\ud800"}',
        '{"role": "assistant", "calls": [{"name": 1}]}',
        "[" * 100_000,
    ],
)
def test_wrong_messages_are_refused(saved: Path, line: str) -> None:
    with (saved / "messages.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(EtudeError, match=r"messages\.jsonl, line 8"):
        load_trajectory(saved)


@pytest.mark.parametrize("name", ["messages.jsonl", "tokens.safetensors", "trajectory.json"])
def test_files_that_are_not_plain_files_are_refused(saved: Path, tmp_path: Path, name: str) -> None:
    def refused(told: str) -> None:
        with pytest.raises(EtudeError, match=told):
            load_trajectory(saved)

    original = (saved / name).rename(tmp_path / "elsewhere")
    refused(f"{name}: No such file")
    (saved / name).symlink_to(original)
    refused(f"{name}: Too many levels of symbolic links")
    (saved / name).unlink()
    os.mkfifo(saved / name)
    refused(f"{name} is not a plain file")
    (saved / name).unlink()
    (saved / name).mkdir()
    refused(f"{name} is not a plain file")
    (saved / name).rmdir()
    with (saved / name).open("wb") as file:
        file.truncate(2 << 30)  # sparse
    refused(f"{name} is larger than")


def test_damaged_bytes_are_refused_or_harmless(saved: Path) -> None:
    """Any one byte changed: an error of ours, or a trajectory that passed every check. Never another exception."""
    rng = random.Random(0)
    for name in ("tokens.safetensors", "trajectory.json", "messages.jsonl"):
        data = (saved / name).read_bytes()
        for _ in range(60):
            broken = bytearray(data)
            broken[rng.randrange(len(data))] = rng.randrange(256)
            (saved / name).write_bytes(broken[: rng.choice([len(data), rng.randrange(len(data))])])
            try:
                load_trajectory(saved)
            except EtudeError as error:
                assert "is not a trajectory that can be read" in str(error)
        (saved / name).write_bytes(data)


def test_a_pickle_is_not_read(saved: Path) -> None:
    (saved / "tokens.safetensors").write_bytes(b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x04exit\x94.")
    with pytest.raises(EtudeError, match=r"tokens\.safetensors cannot be read"):
        load_trajectory(saved)


def test_entries_survive_with_all_their_facts(tmp_path: Path) -> None:
    entry = MessageRecord(ToolResult("run", "\udcff"), 0, "Timeout", "why", None, 1.5)
    save_trajectory(Trajectory(entries=[entry, dataclasses.replace(entry, error=None)]), tmp_path / "t")
    assert load_trajectory(tmp_path / "t").entries == [entry, dataclasses.replace(entry, error=None)]
