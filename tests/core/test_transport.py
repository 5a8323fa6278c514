"""What a process is started with survives as JSON; what is not declared is refused (frames: test_learner_wire)."""

from __future__ import annotations

import json
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from typing_extensions import TypeAliasType

from etude.core.errors import EtudeError
from etude.core.policy import Version
from etude.core.settings import EngineSettings, LoraSettings, OptimSettings
from etude.core.transport import from_json, pack, to_json, unpack
from etude.rl.learner.messages import LearnerSpec
from etude.serve.messages import EngineSpec

LEARNER = LearnerSpec(
    Path("/m"), OptimSettings(lr=1 / 3), 5, 7, Path("/b"), LoraSettings(rank=2), restore=Path("/r"), frozen=None
)
ENGINE = EngineSpec(Path("/m"), EngineSettings(max_running=3), version=Version(2, 9))


@pytest.mark.parametrize("spec", [LEARNER, ENGINE], ids=lambda spec: type(spec).__name__)
def test_a_spec_survives_as_json(spec: Any) -> None:
    assert from_json(type(spec), json.loads(json.dumps(to_json(spec)))) == spec


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"board": 3}, "'board' must be a text, not 3"),
        ({"more": 3}, "unknown key 'more'"),
        ({"optim": {"matrices": "sgd"}}, "'optim.matrices' must be one of"),
        ({"optim": {"betas": [0.9]}}, "'optim.betas' must be a list of 2"),
        ({"optim": {"betas": [0.9, "x"]}}, "'optim.betas.1' must be a number, not 'x'"),
        ({"threads": True}, "'threads' must be a whole number, not True"),
        ({"lora": {"rank": float("inf")}}, "'lora.rank' must be a whole number"),
        ({"optim": {"lr": 10**400}}, "'optim.lr' must be a number, not 1000"),
    ],
)
def test_what_is_not_declared_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(EtudeError, match=message):
        from_json(LearnerSpec, to_json(LEARNER) | change)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(EtudeError, match="'optim' is missing"):
        from_json(LearnerSpec, {"model": "/m"})


def test_arrays_are_found_behind_an_alias_of_their_type() -> None:
    """NumPy 2.5 declares `NDArray` with the `type` statement where Python has one (3.12), and no alias before."""
    number = TypeVar("number", bound=np.generic)
    alias = TypeAliasType("alias", np.ndarray[Any, np.dtype[number]], type_params=(number,))
    message = make_dataclass("Message", [("values_T", alias[np.float32])])
    frame = pack(message(np.ones(3, np.float32)))
    assert unpack(message, frame).values_T.tolist() == [1.0, 1.0, 1.0]
    with pytest.raises(EtudeError, match="must be an array of float32 with 1 dimensions"):
        unpack(message, pack(message(np.ones((3, 1), np.float32))))
