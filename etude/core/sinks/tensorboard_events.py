"""TensorBoard: `{ use = "tensorboard" }`, then `tensorboard --logdir runs` draws the curves of all runs there.

Writes event files by TensorBoard's own writer: torch's would load torch into the loop, which does without it.
"""

from __future__ import annotations

from typing import Any

import pydantic

from etude.core.sinks.base import Row, RunFacts, Sink, numbers


class TensorBoard(Sink):
    class Settings(pydantic.BaseModel, extra="forbid", frozen=True):
        folder: str = pydantic.Field("tensorboard", description="folder of the event files, in the run")

    package = "tensorboard"

    def open(self, run: RunFacts) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer: Any = EventFileWriter(str(run.path / self.settings.folder))

    def log(self, row: Row) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in numbers(row).items()]
        self._writer.add_event(Event(wall_time=row["time"], step=row["step"], summary=Summary(value=values)))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
