"""The loop with its weights in a delta chain: published, swapped in, probed; an engine that dies; a resume."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from etude.core import recipe as recipes
from etude.core.errors import EtudeError
from etude.core.policy import Version
from etude.core.recipe import Recipe
from etude.core.run import Run
from etude.core.run_files import read_metrics
from etude.model.checkpoint.directory import load_model, named_weights
from etude.model.weight_transfer.delta_chain import ChainReader
from etude.model.weight_transfer.object_store import open_store
from etude.rl.loop import Training
from etude.rl.orchestrator import board_path, train

SHORT = ("rl.eval_every=0", "rl.concurrent=false", "cluster.weights_base_every=2")


def test_the_loop_publishes_deltas_and_engines_that_come_back_catch_up(
    toy_model: Path, toy_recipe: Callable[..., Recipe], tmp_path: Path
) -> None:
    path, weights = tmp_path / "run", tmp_path / "weights"
    recipe = toy_recipe(f"cluster.weights={weights}", "rl.steps=4", "rl.save_every=3", *SHORT)

    async def killed(training: Training) -> dict[str, Any]:
        """Kills the engine after step 2, of which there is no checkpoint, and stops after step 3."""
        log = training.run.log

        def logged(stage: str, step: int, **values: Any) -> None:
            log(stage, step, **values)
            if stage == "rl" and step == 2:
                os.kill(training.engines.pids[0], signal.SIGKILL)
            training.run.stopping = training.run.stopping or (stage == "rl" and step == 3)

        training.run.log = logged  # type: ignore[method-assign]
        return await training.work()

    with Run.open(path, recipes.to_dict(recipe)) as run:
        first = asyncio.run(train(run, recipe, toy_model, work=killed))
    assert (first["stopped"], first["steps"], first["void"]) == (True, 3, 0)
    assert not board_path(path.resolve()).exists()
    with Run.open(path, recipes.to_dict(recipe)) as run:
        facts = asyncio.run(train(run, recipe, toy_model))
    assert (facts["steps"], facts["rollouts"]) == (4, 24) and facts["probe_max"] <= 1e-3
    rows = [row for row in read_metrics(path) if row["stage"] == "rl"]
    assert [(row["lineage"], row["step"]) for row in rows] == [(0, 1), (0, 2), (0, 3), (1, 4)]
    assert rows[2]["restarts"] == 1
    assert all(row["publish_bytes"] > 0 and 0 < row["publish_density"] <= 1 for row in rows)
    # The chain's last version is the model that was saved.
    reader = ChainReader(open_store(str(weights)))
    held = reader.update(Version(1, 4))
    saved = named_weights(load_model(path / "checkpoints" / "rl-0000004"))
    assert held.keys() == saved.keys() and all((held[name] == saved[name]).all() for name in saved)


def test_engines_may_sample_from_weights_in_fewer_bits(
    toy_model: Path, toy_recipe: Callable[..., Recipe], tmp_path: Path, train_run: Callable[..., dict[str, Any]]
) -> None:
    bounds = ("rl.probe_mean=0.5", "rl.probe_p99=2", "rl.probe_max=5", "rl.probe_k3=0.5")
    weights = (f"cluster.weights={tmp_path / 'weights'}", "cluster.weights_dtype=fp8")
    recipe = toy_recipe("rl.steps=3", "rl.optim.lr=1e-6", *weights, *bounds, *SHORT)
    facts = train_run(tmp_path / "run", recipe, toy_model)
    rows = [row for row in read_metrics(tmp_path / "run") if row["stage"] == "rl"]
    assert facts["steps"] == 3 and rows[0]["probe_mean"] < 1e-5  # the checkpoint, of which nothing was published
    assert all(row["probe_mean"] > 10 * rows[0]["probe_mean"] for row in rows[1:])  # rounding, seen at each version
    assert rows[1]["publish_density"] < 0.05 and rows[1]["publish_bytes"] < rows[0]["publish_bytes"] / 4
    held = ChainReader(open_store(str(tmp_path / "weights"))).update(Version(0, 3))
    name = "model.layers.0.self_attn.q_proj.weight"
    assert held[name].dtype == torch.float8_e4m3fn and held[f"{name}_scale_inv"].dtype == torch.float32


def test_a_version_that_does_not_come_is_told_with_its_cause() -> None:
    class Engines:
        async def update(self, version: Version) -> dict[str, Any]:
            raise EtudeError(f"version {version} is not there")

    class Learner:
        cause = "version 0.1 is not published: the disk is full"

        async def why_unpublished(self) -> str:
            return self.cause

    training: Any = SimpleNamespace(
        environment=SimpleNamespace(engine=Engines()), learner=Learner(), version=Version(0, 1)
    )
    with pytest.raises(EtudeError, match=r"0\.1 is not there; the learner says: .* the disk is full"):
        asyncio.run(Training._swap(training))
    training.learner.cause = ""  # a board in memory has nothing to add
    with pytest.raises(EtudeError, match=r"^version 0\.1 is not there$"):
        asyncio.run(Training._swap(training))


def test_a_run_is_quiet_when_no_turn_comes_and_not_when_its_rollouts_are_long(
    toy_recipe: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sampling takes nothing of a rollout's seconds, so its turns may take hours before the first of all ends."""
    monkeypatch.setattr("etude.rl.loop.LOOK", 0.001)
    nothing = ("harness.limits.seconds=0", "harness.limits.sample_seconds=0", "rl.slack_seconds=0")
    recipe = toy_recipe(*nothing)
    recipe = replace(recipe, grader=replace(recipe.grader, seconds=0.02))
    (turns := tmp_path / "rl" / "turns").mkdir(parents=True)
    looks = []

    def take() -> None:
        looks.append(1)
        if len(looks) < 200:  # a turn at every look, and then none any more
            (turns / "000000-00.turns").write_bytes(b"x")
            os.utime(turns / "000000-00.turns", (len(looks), len(looks)))

    dispatcher = SimpleNamespace(take=take, over=False, changed=asyncio.Event(), finished_at=0.0, in_flight=6)
    run, clock = SimpleNamespace(path=tmp_path, stopping=False), SimpleNamespace(wait=lambda *_: None)
    training: Any = SimpleNamespace(
        run=run, recipe=recipe, rl=recipe.rl, dispatcher=dispatcher, clock=clock, out_of_time=False
    )
    with pytest.raises(EtudeError, match="no rollout finished and no turn came within 0 s, with 6 in flight"):
        asyncio.run(Training._next_groups(training))
    assert len(looks) >= 200


def test_a_checkpoint_that_is_being_written_when_the_loop_ends_is_not_committed(tmp_path: Path) -> None:
    class Anything(SimpleNamespace):
        def __getattr__(self, name: str) -> Any:
            return lambda *_: None

    folder = ExitStack()
    with Run.open(tmp_path / "run", {}) as run:
        directory = folder.enter_context(run.checkpoint("rl", 2))
        training: Any = Anything(
            supervisors=[],
            engines=SimpleNamespace(supervisors={}),
            watches=[],
            dispatcher=Anything(),
            evaluations=Anything(),
            probing=Anything(),
            making=None,
            saving=(2, folder),
        )
        Training.close(training)
        assert training.saving is None and not directory.exists() and not run.checkpoints("rl")
