"""A publisher's thread: what goes wrong there is heard, and it goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from etude.core.errors import EtudeError
from etude.core.policy import Version
from etude.model.weight_transfer.delta_chain import ChainReader
from etude.model.weight_transfer.object_store import open_store
from etude.model.weight_transfer.publish import ChainPublisher


@pytest.mark.parametrize("error", [EtudeError("refused"), MemoryError("no room"), RuntimeError("a bug")])
def test_whatever_fails_in_the_thread_is_said_at_the_next_publish_and_in_the_log(
    tmp_path: Path, error: Exception, capfd: pytest.CaptureFixture[str]
) -> None:
    publisher = ChainPublisher(str(tmp_path), "test", seconds=10.0)
    whole, publisher._publish = publisher._publish, lambda *_: _raise(error)  # type: ignore[method-assign]
    weights = [("w", torch.ones(3))]
    publisher.publish_tensors(weights, Version(0, 1))
    with pytest.raises(EtudeError, match=str(error)):
        publisher.wait()
    assert str(error) in capfd.readouterr().err
    # For the loop, which would only hear that an engine waited in vain.
    assert publisher.trouble.startswith("version 0.1 was not published: ") and str(error) in publisher.trouble
    publisher._publish = whole  # type: ignore[method-assign]
    publisher.publish_tensors(weights, Version(0, 2))
    publisher.wait()
    publisher.close()
    assert not publisher.trouble
    assert ChainReader(open_store(str(tmp_path))).newest() == Version(0, 2)


def _raise(error: Exception) -> None:
    raise error
