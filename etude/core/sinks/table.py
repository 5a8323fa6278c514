"""Sinks by the names that recipes use."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

from etude.core.component import build
from etude.core.errors import EtudeError
from etude.core.sinks.base import Sink

SINKS = {
    "wandb": "etude.core.sinks.weights_and_biases:WeightsAndBiases",
    "trackio": "etude.core.sinks.trackio_project:Trackio",
    "tensorboard": "etude.core.sinks.tensorboard_events:TensorBoard",
}


def build_sinks(specs: Sequence[Mapping[str, Any]], where: str = "run.sinks") -> dict[str, Sink]:
    """The sinks of a recipe by their names; refuses one whose package is not installed."""
    found: dict[str, Sink] = {}
    for number, spec in enumerate(specs):
        sink: Sink = build("sink", spec, SINKS, f"{where}[{number}]")
        name = str(spec["use"]).rpartition(":")[2]
        if sink.package and importlib.util.find_spec(sink.package) is None:
            extra = f"etude[{name}]" if name in SINKS else sink.package
            raise EtudeError(f"{where}[{number}] needs the package {sink.package}: pip install '{extra}'")
        # Two of one kind may go to two places.
        found[name if name not in found else f"{name} {number + 1}"] = sink
    return found
