"""A batch as bytes: the same batch comes out, and nothing that is damaged or hostile does."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from etude.core.errors import EtudeError
from etude.learn.streams import Batch, Correction, Item, Label, MainHead, Sampled, Stream, Twin
from etude.rl import learner_messages as wire
from etude.rl.learner_messages import Frame

LENGTH = 7


def floats(rng: np.random.Generator) -> np.ndarray:
    return rng.normal(size=LENGTH).astype(np.float32)


def everything(seed: int = 0) -> Batch:
    """One item with every kind of target, in several dtypes, one array not contiguous, with extreme numbers."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 60_000, LENGTH)
    extreme = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 3.4e38], np.float32)
    twin = np.concatenate([[5, 5], tokens]).astype(np.uint16)
    align = np.arange(LENGTH, dtype=np.int32) + 2
    targets = [
        Label(rng.integers(0, 200, LENGTH).astype(np.uint8)),
        Sampled(extreme, np.stack([floats(rng), floats(rng)], 1)[:, 0]),
        Twin(tokens_U=twin, align_T=align, weights="ema", trust=1 / 3, divergence="jsd", beta=0.1, support=64),
        Twin(tokens_U=twin, align_T=-np.ones(LENGTH, np.int64), weights="frozen", support="sampled"),
        MainHead(divergence="reverse"),
    ]
    heads = ["main", "main", "main", "main", "mtp.2"]
    streams = [Stream(head, floats(rng), target) for head, target in zip(heads, targets, strict=True)]
    experts = rng.integers(-1, 8, (LENGTH, 3, 2)).astype(np.int16)
    items = [
        Item(tokens.astype(np.uint16), streams, temperature=0.7, experts_TBK=experts, plausible=0.25),
        Item(np.array([3], ">i8"), []),
    ]
    return Batch(items, Correction("truncate", "sequence", 0.1, math.inf))


def through_bytes(frame: Frame) -> Frame:
    """As it would arrive at the other side of a socket."""
    data = wire.write_frame(frame)
    header, body = wire.read_prefix(data[: wire.PREFIX_BYTES])
    rest = data[wire.PREFIX_BYTES :]
    assert len(rest) == header + body
    return Frame(wire.read_header(rest[:header]), rest[header:])


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype.newbyteorder("=") and np.ascontiguousarray(a).tobytes() == b.astype(a.dtype).tobytes()


def test_a_batch_comes_out_as_it_went_in() -> None:
    batch = everything()
    read = wire.read_batch(through_bytes(wire.write_batch(batch)))
    assert read.correction == batch.correction
    assert len(read.items) == len(batch.items)
    for got, sent in zip(read.items, batch.items, strict=True):
        assert (got.temperature, got.plausible) == (sent.temperature, sent.plausible)
        if sent.experts_TBK is None:
            assert got.experts_TBK is None
        else:
            assert got.experts_TBK is not None and np.array_equal(got.experts_TBK, sent.experts_TBK)
        assert same(got.tokens_T, sent.tokens_T)
        assert [stream.head for stream in got.streams] == [stream.head for stream in sent.streams]
        for a, b in zip(got.streams, sent.streams, strict=True):
            assert type(a.target) is type(b.target)
            assert same(a.weight_T, b.weight_T)
            for name, value in vars(b.target).items():
                held = getattr(a.target, name)
                assert same(held, value) if isinstance(value, np.ndarray) else held == value, name
    assert wire.write_batch(read).body == wire.write_batch(batch).body
    array = read.items[0].tokens_T
    assert array.flags.aligned and array.flags.writeable  # torch asks for both


def test_scores_and_metrics_come_out_as_they_went_in() -> None:
    scores = [np.array([0, -1.5], np.float32), np.zeros(0, np.float32)]
    read = wire.read_scores(through_bytes(wire.write_scores(scores)))
    assert all(same(a, b) for a, b in zip(read, scores, strict=True))
    metrics = wire.read_metrics(through_bytes(Frame({"metrics": {"loss": 0.1, "norm": math.inf}, "seconds": 2})))
    assert metrics == {"loss": 0.1, "norm": math.inf, "seconds": 2.0}


def test_no_items_are_no_bytes() -> None:
    assert wire.read_batch(through_bytes(wire.write_batch(Batch([])))).items == []


def stream(change: dict[str, Any], number: int = 1) -> Callable[[dict[str, Any]], None]:
    return lambda header: header["items"][0]["streams"][number].update(change)


def item(change: dict[str, Any]) -> Callable[[dict[str, Any]], None]:
    return lambda header: header["items"][0].update(change)


HOSTILE: list[tuple[Callable[[dict[str, Any]], None], str]] = [
    (item({"tokens": ["<i8", 1 << 62]}), "announced where"),
    (item({"tokens": ["<i8", -1]}), "dtype and a length"),
    (item({"tokens": ["<i8", True]}), "dtype and a length"),
    (item({"tokens": ["|O", 1]}), "dtype and a length"),
    (item({"tokens": ["<U9", 1]}), "dtype and a length"),
    (item({"tokens": None}), "dtype and a length"),
    (item({"temperature": 0}), "temperature is 0"),
    (item({"temperature": math.nan}), "temperature is nan"),
    (item({"temperature": "1"}), "temperature is '1'"),
    (item({"streams": {}}), "'streams' must be a list"),
    (item({"more": 1}), "must have exactly"),
    (item({"plausible": 2}), "between 0 and 1"),
    (item({"experts": [["<i2", 4], 3, 0]}), "whole rows"),
    (item({"experts": [["<i4", 6], 3, 2]}), "whole rows"),
    (stream({"head": "mtp.0"}), "head is 'mtp.0'"),
    (stream({"head": "mtp."}), "head is 'mtp.'"),
    (stream({"head": "7"}), "head is '7'"),
    (stream({"head": ["main"]}), "head is"),
    (stream({"target": "pickle"}), "target is 'pickle'"),
    (stream({"target": ["label"]}), "target is"),
    (stream({"target": "label"}), "a label must have exactly: ids_T"),
    (stream({"weight": ["<f4", LENGTH - 1]}), "entries for a sequence"),
    (stream({"weights": "best"}, 2), "weights of a twin cannot be 'best'"),
    (stream({"support": "most"}, 2), "support of a twin cannot be 'most'"),
    (stream({"support": True}, 2), "support of a twin cannot be True"),
    (stream({"beta": None}, 2), "beta of a twin cannot be None"),
    (lambda header: header.update(items=3), "'items' must be a list"),
    (lambda header: header.update(items=[3]), "an item must have"),
    (lambda header: header["items"].pop(), "belong to no array"),
    (lambda header: header.update(correction={"kind": "none"}), "a correction must have exactly"),
    (lambda header: header["correction"].update(kind="hope"), "kind of a correction cannot be 'hope'"),
    (lambda header: header["correction"].update(high=math.nan), "high of a correction cannot be nan"),
]


@pytest.mark.parametrize(("damage", "message"), HOSTILE)
def test_what_no_batch_can_hold_is_refused(damage: Callable[[dict[str, Any]], None], message: str) -> None:
    frame = through_bytes(wire.write_batch(everything()))
    damage(frame.header)
    with pytest.raises(EtudeError, match=message):
        wire.read_batch(frame)


def test_a_body_that_is_cut_or_too_long_is_refused() -> None:
    header, body = wire.write_batch(everything())
    with pytest.raises(EtudeError, match="announced where"):
        wire.read_batch(Frame(header, body[:-1]))
    with pytest.raises(EtudeError, match="1 bytes of a frame belong to no array"):
        wire.read_batch(Frame(header, body + b"x"))


def test_a_twin_that_points_past_its_end_is_refused() -> None:
    header, body = wire.write_batch(everything())
    shorter = json.loads(json.dumps(header))
    align = np.full(LENGTH, 2 + LENGTH, np.int32).tobytes()
    right = (np.arange(LENGTH, dtype=np.int32) + 2).tobytes()
    assert body.count(right) == 1
    with pytest.raises(EtudeError, match="past the twin's end"):
        wire.read_batch(Frame(shorter, body.replace(right, align)))


def test_frames_of_strangers_and_of_absurd_sizes_are_refused() -> None:
    good = wire.write_frame(Frame({"verb": "step"}))[: wire.PREFIX_BYTES]
    with pytest.raises(EtudeError, match="no frame"):
        wire.read_prefix(b"GET " + good[4:])
    for bad in (good[:4] + b"\xff" * 4 + good[8:], good[:8] + b"\xff" * 8):
        with pytest.raises(EtudeError, match="too large"):
            wire.read_prefix(bad)
    for header in (b"[1]", b"{", b"\xff", b"[" * 100_000):
        with pytest.raises(EtudeError, match="header is not"):
            wire.read_header(header)


def test_only_rows_of_numbers_are_written() -> None:
    for array in (np.array(["a"]), np.array([None]), np.zeros((2, 2), np.int64)):
        with pytest.raises(EtudeError, match="rows of whole numbers or floats"):
            wire.write_scores([array])


def test_random_damage_is_refused_or_read_but_never_anything_else() -> None:
    rng = np.random.default_rng(3)
    frame = wire.write_batch(everything())
    text = json.dumps(frame.header).encode()
    refused = 0
    for _ in range(2000):
        header, body = bytearray(text), bytearray(frame.body)
        for data in (header, body):
            data[rng.integers(len(data))] = rng.integers(256)
        try:
            wire.read_batch(Frame(wire.read_header(bytes(header)), bytes(body)))
        except EtudeError:
            refused += 1
    assert 0 < refused < 2000
