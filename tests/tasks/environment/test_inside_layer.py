"""Our own code as a layer of sandboxes."""

from pathlib import Path

from etude.sandbox.store.layers import Store
from etude.tasks.environment import layers


def test_what_runs_inside_is_read_once(tmp_path: Path, monkeypatch) -> None:
    """A run went on for minutes, its package was updated under it, and a grade in between found a file missing."""
    store = Store(tmp_path / "store")
    first = layers.inside_layer(store)
    monkeypatch.setattr(layers, "REPORTER", tmp_path / "report.cjs")  # of the same name, and not there
    assert layers.inside_layer(store) == first
