"""Trackio: `{ use = "trackio", project = "mine" }`, then `trackio show` draws the curves on this machine.

All commands on a run write to one of its runs. Where it keeps them, its own TRACKIO_DIR says.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import pydantic

from etude.core.sinks.base import Row, RunFacts, Sink, numbers


class Trackio(Sink):
    class Settings(pydantic.BaseModel, extra="forbid", frozen=True):
        project: str = pydantic.Field("etude", description="project")
        space: str = pydantic.Field("", description="a Hugging Face Space to log to; empty: this machine")

    package = "trackio"

    def open(self, run: RunFacts) -> None:
        # It greets on standard output, which belongs to results.
        with contextlib.redirect_stdout(sys.stderr):
            import trackio

            self._run: Any = trackio.init(
                project=self.settings.project,
                name=run.id,
                space_id=self.settings.space or None,
                config=run.recipe,
                resume="allow",
                auto_log_gpu=False,
                auto_log_cpu=False,
            )

    def log(self, row: Row) -> None:
        self._run.log(numbers(row), step=row["step"])

    def close(self) -> None:
        with contextlib.redirect_stdout(sys.stderr):
            self._run.finish()
