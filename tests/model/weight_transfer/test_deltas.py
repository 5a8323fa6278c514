"""Deltas of weights: exact for every type and density, small where little changed, and strict with what is damaged."""

from __future__ import annotations

import json
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from etude.core.errors import EtudeError
from etude.model.weight_transfer.deltas import (
    _LENGTH,
    _MAGIC,
    _read_gaps,
    _write_gaps,
    apply,
    digest,
    encode,
    header_of,
    lanes,
)

TYPES = {
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float8_e4m3fn": torch.float8_e4m3fn,  # blocks of FP8
    "uint8": torch.uint8,  # packed INT4
    "int64": torch.int64,
}


def drawn(dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> Tensor:
    """Any bits at all: NaN and both zeros have to survive, too."""
    width = torch.empty(0, dtype=dtype).element_size()
    data = np.random.default_rng(seed).integers(0, 256, int(np.prod(shape)) * width, np.uint8)
    return torch.from_numpy(data).view(dtype).reshape(shape)


def mixed(old: Tensor, new: Tensor, share: float) -> Tensor:
    """The old values, but for a share of them."""
    chosen = np.random.default_rng(3).random(old.numel()) < share
    found = np.where(chosen, lanes(new), lanes(old))
    return torch.from_numpy(found.view(np.uint8)).view(old.dtype).reshape(old.shape)


@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES.keys())
@pytest.mark.parametrize("share", [0.0, 0.002, 0.3, 1.0])
def test_what_comes_out_is_bit_for_bit_what_went_in(dtype: torch.dtype, share: float) -> None:
    old = {"a": drawn(dtype, (61, 33), 0), "b": drawn(dtype, (), 1), "c": torch.empty(0, 4, dtype=dtype)}
    new = {"a": mixed(old["a"], drawn(dtype, (61, 33), 9), share), "b": drawn(dtype, (), 9 if share else 1)}
    new["c"] = old["c"]
    before = digest(old)
    delta = encode(old, new, {"to": "0.1"})
    made = apply(delta, old)
    assert all((lanes(made[name]) == lanes(tensor)).all() for name, tensor in new.items())
    assert all(made[name].shape == tensor.shape and made[name].dtype == dtype for name, tensor in new.items())
    assert digest(made) == digest(new) and digest(old) == before
    assert header_of(delta)["to"] == "0.1" and set(header_of(delta)["tensors"]) == ({"a", "b"} if share else set())


def test_a_small_step_costs_few_bytes() -> None:
    weights = torch.randn(1000, 1000, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    new = weights.clone()
    places = torch.randperm(weights.numel(), generator=torch.Generator().manual_seed(1))[:2000]
    new.view(-1)[places] = (new.view(-1)[places].view(torch.int16) + 1).view(torch.bfloat16)
    assert len(encode({"w": weights}, {"w": new}, {})) < 0.005 * 2 * weights.numel()  # 0.2% of the values changed


@given(st.lists(st.integers(0, 2**34), min_size=1, max_size=50, unique=True))
def test_places_survive(places: list[int]) -> None:
    wanted = np.array(sorted(places))
    assert (_read_gaps(_write_gaps(wanted)) == wanted).all()


@given(st.binary(min_size=1, max_size=40))
def test_no_bytes_break_the_reading_of_places(data: bytes) -> None:
    _read_gaps(data)


@given(st.integers(0, 10_000), st.integers(0, 255))
def test_a_damaged_delta_gives_an_error_or_other_weights_and_never_anything_else(place: int, value: int) -> None:
    old = {"a": drawn(torch.bfloat16, (20, 10), 0)}
    delta = bytearray(encode(old, {"a": mixed(old["a"], drawn(torch.bfloat16, (20, 10), 1), 0.1)}, {}))
    delta[place % len(delta)] = value
    with suppress(EtudeError):
        assert apply(bytes(delta), old)["a"].shape == (20, 10)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": 201}, "more changes"),
        ({"count": -1}, "more changes"),
        ({"gaps": 10**9}, "more changes"),
        ({"count": 2}, "another size"),
        ({"count": "many"}, "does not say how"),
        ({"shape": [10, 20]}, "another model"),
        ({"dtype": "float16"}, "another model"),
        ({"bytes": 3}, "damaged"),
    ],
)
def test_a_header_that_lies_is_refused(change: dict[str, object], message: str) -> None:
    old = {"a": drawn(torch.bfloat16, (20, 10), 0)}
    new = {"a": old["a"].clone()}
    new["a"][3, 4] = 1.5
    delta = encode(old, new, {})
    header = {key: value for key, value in header_of(delta).items() if key != "start"}
    header["tensors"]["a"] |= change
    told = json.dumps(header).encode()
    with pytest.raises(EtudeError, match=message):
        apply(_MAGIC + _LENGTH.pack(len(told)) + told + delta[header_of(delta)["start"] :], old)


def test_other_models_and_other_files_are_refused() -> None:
    old, new = {"a": torch.zeros(3)}, {"a": torch.ones(3)}
    with pytest.raises(EtudeError, match="do not have"):
        apply(encode(old, new, {}), {"b": torch.zeros(3)})
    with pytest.raises(EtudeError, match="full base"):
        encode({"a": torch.zeros(4)}, new, {})
    for data in (b"", b"PK\x03\x04", _MAGIC + _LENGTH.pack(2**60) + b"{"):
        with pytest.raises(EtudeError, match="delta"):
            header_of(data)
