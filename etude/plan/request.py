"""What a user asks a plan about: words of the command line -> a workload, a machine, and plans for numbers of ranks."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields

from etude.core import recipe as recipes
from etude.core.errors import EtudeError
from etude.core.recipe import hint
from etude.learn.parallel.layout import Layout
from etude.plan import shapes, workload
from etude.plan.machines import Machine, find_machine
from etude.plan.search import Candidate, assess, explain, search
from etude.plan.workload import Workload

MOST_NUMBERS = 16  # of ranks, compared in one plan


@dataclass(frozen=True)
class Request:
    recipe: str
    overrides: Sequence[str] = ()
    model: str = ""  # in place of the recipe's: a named shape, a config.json or a folder with one
    stage: str = "pretrain"
    ranks: str = ""  # numbers, with commas between them
    layout: str = ""  # shard=4,expert=8
    machine: str = ""

    def command(self) -> str:
        """The command that asks this."""
        options = {"--model": self.model, "--ranks": self.ranks, "--layout": self.layout, "--machine": self.machine}
        options |= {"--stage": self.stage if self.stage != "pretrain" else ""}
        words = [word for name, value in options.items() if value for word in (name, value)]
        return shlex.join(["etude", "plan", self.recipe, *words, *self.overrides])


@dataclass(frozen=True)
class Plan:
    """All candidates of one number of ranks, best first, and the layout that was asked about."""

    ranks: int
    found: Sequence[Candidate]
    asked: Candidate | None = None

    @property
    def best(self) -> Candidate | None:
        return self.found[0] if not self.found[0].problem else None


@dataclass(frozen=True)
class Answer:
    request: Request
    work: Workload
    machine: Machine
    plans: Sequence[Plan]


def make_plans(request: Request) -> Answer:
    if request.stage not in workload.STAGES:
        raise EtudeError(
            f"{request.stage!r} is no stage that trains{hint(request.stage, workload.STAGES)}; those are "
            f"{', '.join(workload.STAGES)}"
        )
    config = shapes.named(request.model) if request.model else None
    # A recipe's sequences are checked against its own model's positions, and another model takes that one's place.
    wider = [f"model.max_positions={config.max_position_embeddings}"] if config else []
    recipe = recipes.load(request.recipe, [*wider, *request.overrides])
    config = config or shapes.of_recipe(recipe, request.stage)
    machine = find_machine(request.machine or ("cpu" if recipe.run.device == "cpu" else "h200-8"))
    work = workload.of_recipe(recipe, request.stage, config, machine.gpu)
    asked = read_layout(request.layout) if request.layout else Layout.of(recipe.cluster.learner)
    numbers = read_ranks(request.ranks) if request.ranks else [asked.ranks]
    if request.layout and asked.ranks not in numbers:
        raise EtudeError(f"--layout is of {asked.ranks} ranks and --ranks asks for {request.ranks}; make them agree")
    plans = []
    for number in numbers:
        found = search(work, number, machine)
        own = explain(assess(work, asked, machine), found[0]) if asked.ranks == number else None
        plans.append(Plan(number, found, own))
    return Answer(request, work, machine, plans)


def read_ranks(words: str) -> list[int]:
    parts = [part.strip() for part in words.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() and int(part) for part in parts):
        raise EtudeError(f"--ranks is {words!r}; give a number of ranks, or several with commas between: 8,64,512")
    if len(parts) > MOST_NUMBERS:
        raise EtudeError(f"--ranks has {len(parts)} numbers; a plan compares {MOST_NUMBERS} at most")
    return sorted({int(part) for part in parts})


def read_layout(words: str) -> Layout:
    """`shard=4,context=2,expert=8`; ranks follow from the others."""
    given: dict[str, int] = {}
    for part in (part.strip() for part in words.split(",")):
        name, equals, number = part.partition("=")
        if not equals or not number.strip().isdecimal():
            raise EtudeError(f"cannot read {part!r} of --layout; write it as shard=4,expert=8,context=2")
        given[name.strip()] = int(number)
    known = [field.name for field in fields(Layout)]
    for name in given:
        if name not in known:
            raise EtudeError(f"a layout has no {name!r}{hint(name, known)}; it has {', '.join(known)}")
    whole = given.get("replicate", 1) * given.get("shard", 1) * given.get("context", 1)
    return Layout(**{"ranks": whole} | given)
