"""Weights & Biases: `{ use = "wandb", project = "mine" }`.

All commands on a run write to one of its runs. Each stage has its own axis, since each counts its own steps.
"""

from __future__ import annotations

from typing import Any, Literal

import pydantic

from etude.core.sinks.base import Row, RunFacts, Sink, numbers


class WeightsAndBiases(Sink):
    class Settings(pydantic.BaseModel, extra="forbid", frozen=True):
        project: str = pydantic.Field("etude", description="project")
        entity: str = pydantic.Field("", description="user or team; empty: your default")
        mode: Literal["", "online", "offline"] = pydantic.Field(
            "", description="offline: `wandb sync` sends it later; empty: what WANDB_MODE says, else online"
        )

    package = "wandb"

    def open(self, run: RunFacts) -> None:
        import wandb

        self._known: set[str] = set()
        self._run: Any = wandb.init(
            project=self.settings.project,
            entity=self.settings.entity or None,
            name=run.path.name,
            id=run.id,
            resume="allow",
            dir=run.path,
            config=run.recipe,
            mode=self.settings.mode or None,
            # It would take over standard output and error, where the dashboard is.
            settings=wandb.Settings(console="off", silent=True),
        )

    def log(self, row: Row) -> None:
        stage = row["stage"]
        if stage not in self._known:
            self._known.add(stage)
            self._run.define_metric(f"{stage}/*", step_metric=f"{stage}/step")
        self._run.log({f"{stage}/step": row["step"], **numbers(row)})

    def close(self) -> None:
        self._run.finish()
