"""What a behaviour is: settings, and the sites of a trajectory where it happened.

One file serves three readers: a reward counts the sites, feedback puts the hint above the message, a monitor watches
the rate. Knows trajectories; neither tasks, grades nor tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pydantic

from etude.harness.trajectory import Trajectory


@dataclass(frozen=True)
class Site:
    """One place where a behaviour happened."""

    message: int  # entry of the trajectory: the turn that did it
    kind: str  # name of the behaviour, or of one of its classes
    hint: str  # what would have helped, in a sentence or two; empty: nothing to say there


class Behaviour:
    """Base of all behaviours. One instance serves a whole run."""

    class Settings(pydantic.BaseModel, extra="forbid", frozen=True):
        """What a recipe may set beside `use`."""

    def __init__(self, settings: Any) -> None:
        self.settings = settings

    def sites(self, trajectory: Trajectory) -> list[Site]:
        """Where it happened, in the order of the messages."""
        raise NotImplementedError
