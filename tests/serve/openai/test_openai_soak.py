"""The soak benchmark in small: a crowd of good and bad clients changes no answer and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any


def test_a_crowd_changes_no_answer_and_leaves_nothing_behind(
    soak_module: ModuleType, tiny_model: Path, tmp_path: Path
) -> None:
    # So many requests, however long they take: of a few seconds a busy machine makes too few.
    small: dict[str, Any] = {"count": 12, "model": tiny_model, "schema": False, "least": 3}
    found = soak_module.soak(seconds=0.0, clients=16, seed=3, folder=tmp_path, **small)
    assert found["ok"], found["problems"]
    assert found["compared"] > 20
    assert len(found["by_manner"]) > 6
    assert {"200", "400"} <= set(found["by_status"])
