"""An engine's side of a chain: what it holds is kept where the store fails, and read anew where it is not the base."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from etude.core.errors import EtudeError
from etude.core.policy import Version
from etude.model.weight_transfer import receive
from etude.model.weight_transfer.delta_chain import ChainWriter
from etude.model.weight_transfer.object_store import DirectoryStore
from etude.model.weight_transfer.receive import ChainSource


class Shaky(DirectoryStore):
    """Fails as often as it is told to, and remembers what was read."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.failures, self.read = 0, list[str]()

    def get(self, name: str) -> bytes | None:
        if self.failures:
            self.failures -= 1
            raise EtudeError("the store is away")
        self.read.append(name)
        return super().get(name)


def test_what_is_held_outlives_a_store_that_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, writer = Shaky(tmp_path), ChainWriter(DirectoryStore(tmp_path))
    monkeypatch.setattr(receive, "open_store", lambda _: store)
    monkeypatch.setattr(receive, "SHORTEST_LOOK", 0.001)
    source = ChainSource(str(tmp_path), 60.0)
    for step in (1, 2):
        writer.publish({"w": torch.full((3,), float(step))}, Version(0, step))
        store.failures, store.read = 3, []
        assert source.read(Version(0, step))[0]["w"].tolist() == [step] * 3
    assert store.read == ["HEAD", "delta/0.2-0"]  # and not the full base once more
    held = source._reader
    assert held is not None
    held._parts["0"]["w"][0] = 9.0  # somebody wrote over it: no base of what comes
    writer.publish({"w": torch.full((3,), 3.0)}, Version(0, 3))
    assert source.read(Version(0, 3))[0]["w"].tolist() == [3.0] * 3
    assert source._reader is not held
