"""A batch as bytes: the same batch comes out, and nothing that is damaged or hostile does."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from etude.core import transport
from etude.core.errors import EtudeError
from etude.core.transport import Frame, pack, unpack
from etude.learn.streams import Batch, Correction, Item, Label, MainHead, Sampled, Stream, Twin
from etude.rl.learner.messages import Scores, read_batch, read_metrics

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


def parts_of(frame: Frame) -> tuple[dict[str, Any], bytes]:
    """Header and body as they travel."""
    data = transport.write_frame(frame)
    header, body = transport.read_prefix(data[: transport.PREFIX_BYTES])
    rest = data[transport.PREFIX_BYTES :]
    assert len(rest) == header + body
    return json.loads(rest[:header]), rest[header:]


def from_parts(header: dict[str, Any], body: bytes) -> Frame:
    return transport.read_frame(json.dumps(header).encode(), body)


def through_bytes(frame: Frame) -> Frame:
    """As it would arrive at the other side of a socket."""
    return from_parts(*parts_of(frame))


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype.newbyteorder("=") and np.ascontiguousarray(a).tobytes() == b.astype(a.dtype).tobytes()


def test_a_batch_comes_out_as_it_went_in() -> None:
    batch = everything()
    read = read_batch(through_bytes(pack(batch)))
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
    assert parts_of(pack(read)) == parts_of(pack(batch))
    array = read.items[0].tokens_T
    assert array.flags.aligned and array.flags.writeable  # torch asks for both


def test_scores_and_metrics_come_out_as_they_went_in() -> None:
    scores = [np.array([0, -1.5], np.float32), np.zeros(0, np.float32)]
    read = unpack(Scores, through_bytes(pack(Scores(scores)))).scores
    assert all(same(a, b) for a, b in zip(read, scores, strict=True))
    measured = {"metrics": {"loss": 0.1, "norm": math.inf}}
    metrics = read_metrics(through_bytes(Frame({"message": measured, "seconds": 2})))
    assert metrics == {"loss": 0.1, "norm": math.inf, "seconds": 2.0}


def test_no_items_are_no_bytes() -> None:
    assert read_batch(through_bytes(pack(Batch([])))).items == []


def stream(change: dict[str, Any], number: int = 1) -> Callable[[dict[str, Any]], None]:
    return lambda header: header["message"]["items"][0]["streams"][number].update(change)


def target(change: dict[str, Any], number: int = 2) -> Callable[[dict[str, Any]], None]:
    return lambda header: header["message"]["items"][0]["streams"][number]["target"].update(change)


def item(change: dict[str, Any]) -> Callable[[dict[str, Any]], None]:
    return lambda header: header["message"]["items"][0].update(change)


def array(name: str, described: Any) -> Callable[[dict[str, Any]], None]:
    """Another description in the table of arrays."""

    def damage(header: dict[str, Any]) -> None:
        place = next(place for place, entry in enumerate(header["arrays"]) if entry[0] == name)
        header["arrays"][place] = described if not isinstance(described, tuple) else [name, *described]

    return damage


def correction(change: dict[str, Any]) -> Callable[[dict[str, Any]], None]:
    return lambda header: header["message"]["correction"].update(change)


def message(change: dict[str, Any]) -> Callable[[dict[str, Any]], None]:
    return lambda header: header["message"].update(change)


TOKENS, EXPERTS, WEIGHT = "items.0.tokens_T", "items.0.experts_TBK", "items.0.streams.1.weight_T"
HOSTILE: list[tuple[Callable[[dict[str, Any]], None], str]] = [
    (array(TOKENS, ("<i8", [1 << 62])), "announced where"),
    (array(TOKENS, ("<i8", [-1])), "a dtype and a shape"),
    (array(TOKENS, ("<i8", [True])), "a dtype and a shape"),
    (array(TOKENS, ("<i8", 7)), "a dtype and a shape"),
    (array(TOKENS, ("<i8", [1, 1, 1, 1, 1])), "a dtype and a shape"),
    (array(TOKENS, ("|O", [1])), "a dtype and a shape"),
    (array(TOKENS, ("<U9", [1])), "a dtype and a shape"),
    (array(TOKENS, None), "a dtype and a shape"),
    (array(TOKENS, [EXPERTS, "<u2", [LENGTH]]), "two arrays 'items.0.experts_TBK'"),
    (array(TOKENS, ["mine", "<u2", [LENGTH]]), "'items.0.tokens_T' must be an array of integer"),
    (array(TOKENS, ("<u2", [LENGTH, 1])), "'items.0.tokens_T' must be an array of integer with 1 dimension"),
    (lambda header: header.update(arrays=3), "a table of arrays"),
    (lambda header: header["message"].pop("items"), "'items' is missing"),
    (item({"temperature": 0}), "temperature is 0"),
    (item({"temperature": math.nan}), "temperature' must be a number, not nan"),
    (item({"temperature": math.inf}), "temperature is inf"),
    (item({"temperature": "1"}), "temperature' must be a number, not '1'"),
    (item({"streams": {}}), r"'items.0.streams' must be a list"),
    (item({"more": 1}), "unknown key 'items.0.more'"),
    (item({"plausible": 2}), "between 0 and 1"),
    (array(EXPERTS, ("<i2", [LENGTH * 6, 1])), "must be an array of int16 with 3 dimensions"),
    (array(EXPERTS, ("|i1", [LENGTH, 3, 4])), "must be an array of int16 with 3 dimensions"),
    (stream({"head": "mtp.0"}), "head is 'mtp.0'"),
    (stream({"head": "mtp."}), "head is 'mtp.'"),
    (stream({"head": "7"}), "head is '7'"),
    (stream({"head": ["main"]}), "head' must be a text"),
    (stream({"target": "pickle"}), "the class of 'items.0.streams.1.target' is None"),
    (target({"class": "pickle"}), "the class of 'items.0.streams.2.target' is 'pickle'; there are: Label"),
    (target({"class": ["Label"]}), "the class of 'items.0.streams.2.target' is"),
    (target({"class": "Label"}, 1), "unknown key 'items.0.streams.1.target.advantage_T'"),
    (array(WEIGHT, ("<f4", [LENGTH - 1])), "bytes of a frame belong to no array|announced where"),
    (target({"weights": "best"}), "weights' must be one of live, ema, frozen, not 'best'"),
    (target({"support": "most"}), "support' must be one of full, sampled, not 'most'"),
    (target({"support": True}), "support' must be one of full, sampled, not True"),
    (target({"beta": None}), "beta' must be a number, not None"),
    (message({"items": 3}), "'items' must be a list"),
    (message({"items": [3]}), "'items.0' must be a JSON object"),
    (lambda header: header["message"]["items"].pop(), "belongs to no field"),
    (message({"correction": {"kind": "none", "more": 1}}), "unknown key 'correction.more'"),
    (correction({"kind": "hope"}), "kind' must be one of none, truncate, mask, clip, not 'hope'"),
    (correction({"level": "hope"}), "level' must be one of"),
    (correction({"high": math.nan}), "high' must be a number, not nan"),
]


@pytest.mark.parametrize(("damage", "message"), HOSTILE)
def test_what_no_batch_can_hold_is_refused(damage: Callable[[dict[str, Any]], None], message: str) -> None:
    header, body = parts_of(pack(everything()))
    damage(header)
    with pytest.raises(EtudeError, match=message):
        read_batch(from_parts(header, body))


def test_arrays_of_another_length_than_the_sequence_are_refused() -> None:
    frame = pack(everything())
    short = {name: array[:-1] if name == WEIGHT else array for name, array in frame.arrays.items()}
    with pytest.raises(EtudeError, match="entries for a sequence"):
        read_batch(through_bytes(Frame(frame.header, short)))


def test_a_body_that_is_cut_or_too_long_is_refused() -> None:
    header, body = parts_of(pack(everything()))
    with pytest.raises(EtudeError, match="announced where"):
        from_parts(dict(header), body[:-1])
    with pytest.raises(EtudeError, match="1 bytes of a frame belong to no array"):
        from_parts(dict(header), body + b"x")


def test_a_twin_that_points_past_its_end_is_refused() -> None:
    header, body = parts_of(pack(everything()))
    align = np.full(LENGTH, 2 + LENGTH, np.int32).tobytes()
    right = (np.arange(LENGTH, dtype=np.int32) + 2).tobytes()
    assert body.count(right) == 1
    with pytest.raises(EtudeError, match="past the twin's end"):
        read_batch(from_parts(header, body.replace(right, align)))


def test_frames_of_strangers_and_of_absurd_sizes_are_refused() -> None:
    good = transport.write_frame(Frame({"verb": "step"}))[: transport.PREFIX_BYTES]
    with pytest.raises(EtudeError, match="no frame"):
        transport.read_prefix(b"GET " + good[4:])
    for bad in (good[:4] + b"\xff" * 4 + good[8:], good[:8] + b"\xff" * 8):
        with pytest.raises(EtudeError, match="too large"):
            transport.read_prefix(bad)
    for header in (b"[1]", b"{", b"\xff", b"[" * 100_000):
        with pytest.raises(EtudeError, match="header is not"):
            transport.read_frame(header, b"")


def test_only_numbers_are_written() -> None:
    for array in (np.array(["a"]), np.array([None]), np.zeros((1,) * 5, np.int64)):
        with pytest.raises(EtudeError, match="only numbers can be sent"):
            transport.write_frame(pack(Scores([array])))


def test_random_damage_is_refused_or_read_but_never_anything_else() -> None:
    rng = np.random.default_rng(3)
    header, body = parts_of(pack(everything()))
    text = json.dumps(header).encode()
    refused = 0
    for _ in range(2000):
        damaged = bytearray(text), bytearray(body)
        for data in damaged:
            data[rng.integers(len(data))] = rng.integers(256)
        try:
            read_batch(transport.read_frame(*map(bytes, damaged)))
        except EtudeError:
            refused += 1
    assert 0 < refused < 2000
