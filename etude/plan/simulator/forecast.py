"""Forecasts for several numbers of sandboxes: the measured set-up as many times over as each of them needs.

Engines, rollout workers, learner ranks, cores and the groups of a step grow with the sandboxes. How much faster more
ranks make a step is the plan's own estimate of it (`step_time`); everything else is simulated.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from etude.core import recipe as recipes
from etude.core.errors import EtudeError
from etude.core.recipe import Recipe
from etude.plan.request import Request, make_plans
from etude.plan.simulator.environment import Faults
from etude.plan.simulator.measure import measure_run
from etude.plan.simulator.service_times import ServiceTimes, load_times
from etude.plan.simulator.simulate import Forecast, Scenario, simulate

LEAST, MOST = 1, 100_000  # sandboxes
NO_END = 1_000_000  # steps of the run: the few that are simulated are from its middle
ENOUGH = 200_000  # rollouts: with more of them in a step, fewer steps say as much
MANY = 2_000  # sandboxes from which on turns are merged
FEW_TURNS = 1  # of a rollout then, with all its tokens: events are what a simulation takes its time for


@dataclass(frozen=True)
class Size:
    """One forecast, and of how much of everything it is."""

    sandboxes: int
    engines: int
    ranks: int
    rollout_workers: int
    groups: int
    found: Forecast
    took: float  # processor seconds of the simulation

    def data(self) -> dict[str, Any]:
        facts = asdict(self)
        return {**{name: value for name, value in facts.items() if name != "found"}, **self.found.data()}


@dataclass(frozen=True)
class Question:
    """What a user asks: the recipe, the run that was measured, how many sandboxes, and what fails."""

    recipe: str
    overrides: Sequence[str]
    measured: Path  # a run, or a file of service times
    sandboxes: Sequence[int] = ()
    faults: Faults = field(default_factory=Faults)
    engines: int = 0  # 0: as many for a sandbox as were measured
    ranks: int = 0  # likewise
    steps: int = 6
    seed: int = 0


def read_times(path: Path) -> tuple[ServiceTimes, Recipe | None]:
    """Service times of a run or of a file that holds some, and a run's recipe."""
    if path.is_dir():
        recipe = recipes.load(str(path / "recipe.toml"), [])
        return measure_run(path, recipe), recipe
    return load_times(path), None


def read_sandboxes(words: str) -> list[int]:
    parts = [part.strip().replace("_", "") for part in words.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() and LEAST <= int(part) <= MOST for part in parts):
        raise EtudeError(f"--sandboxes is {words!r}; give numbers from {LEAST} to {MOST} with commas between")
    return sorted({int(part) for part in parts})


def forecast(question: Question) -> tuple[ServiceTimes, list[Size]]:
    times, of_run = read_times(question.measured)
    recipe = recipes.load(question.recipe, question.overrides)
    base = of_run or recipe  # what was measured: without a run, the recipe as it is
    sizes = question.sandboxes or [recipe.rl.concurrency]
    return times, [_size(question, recipe, base, times, number) for number in sizes]


def _size(question: Question, recipe: Recipe, base: Recipe, times: ServiceTimes, sandboxes: int) -> Size:
    grown = sandboxes / base.rl.concurrency
    copies = max(1, round(grown))
    cluster = base.cluster
    engines = question.engines or max(1, round(cluster.engines * grown))
    ranks = question.ranks or cluster.learner.ranks * copies
    workers = max(cluster.rollout_workers, math.ceil(grown) if grown > 1 else 0)
    groups = max(1, round(recipe.rl.groups * sandboxes / recipe.rl.concurrency))
    rl = replace(recipe.rl, concurrency=sandboxes, groups=groups, steps=NO_END, eval_every=0)
    speed = learner_speed(question, base.rl.groups, groups, cluster.learner.ranks, ranks)
    # After the first steps the queue is as full as admission lets it become.
    warm = max(1, recipe.rl.staleness)
    steps = max(2, min(question.steps, ENOUGH // (groups * rl.group) - warm))
    scenario = Scenario(
        rl,
        engines=engines,
        rollout_workers=workers,
        faults=question.faults,
        seed=question.seed,
        steps=warm + steps,
        warm=warm,
        most_turns=1_000 if sandboxes <= MANY else FEW_TURNS,
    )
    began = time.process_time()
    # Whoever else used the machine when it was measured will not be there.
    found = simulate(replace(times.grown(max(1.0, grown), speed), others=0.0), scenario)
    return Size(sandboxes, engines, ranks, workers, groups, found, time.process_time() - began)


def learner_speed(question: Question, groups: int, more_groups: int, ranks: int, more: int) -> float:
    """How many times as fast `more` ranks take a token than `ranks` do, each with the batch of its own size."""
    if ranks == more:
        return 1.0
    rates = []
    for number, step in ((ranks, groups), (more, max(groups, more_groups))):
        words = [*question.overrides, f"rl.groups={step}"]
        answer = make_plans(Request(question.recipe, words, stage="rl", ranks=str(number)))
        best = answer.plans[0].best
        if best is None:
            raise EtudeError(f"no layout of {number} learner ranks fits: {answer.plans[0].found[0].problem}")
        rates.append(best.time.tokens_per_second)
    return rates[1] / rates[0]
